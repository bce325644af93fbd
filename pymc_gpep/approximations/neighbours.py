"""Where a solve starts, from the ends of solves near by."""

from typing import NamedTuple, Protocol

import numpy as np

from pymc_gpep.array_types import Array

_REACH = 4.0  # units over which starts are taken to vary
_NUGGET = 1e-9


class Combines(Protocol):
    """Makes a start from those of several problems."""

    def between(self, starts: Array, weights: Array, nearest: int) -> Array: ...


class Neighbours(NamedTuple):
    """Ends of solves at some places, the latest last."""

    places: tuple[Array, ...]
    """Vectors of one length (d,): hyperparameters, or what else tells problems apart."""
    starts: tuple[Array, ...]
    """`Solution.start` at each."""
    root: Array | None = None
    """Places are root (d, d) @ units in which starts vary smoothly over a distance of a few; one if not given."""

    def joined(self, place: Array, start: Array, limit: int) -> "Neighbours":
        """These and one more, of which the last `limit` are kept."""
        return self._replace(places=(*self.places, place)[-limit:], starts=(*self.starts, start)[-limit:])

    def predict(self, approximator: Combines, place: Array) -> Array:
        """Where a solve at `place` starts: the mean of a Gaussian process through the known ends.

        The process has a constant mean that is not known and a squared exponential covariance. So the prediction
        combines the known ends with weights that sum to 1 (ordinary kriging).
        """
        count = len(self.places)
        known = np.array([*self.places, place])
        if self.root is not None:
            known = np.linalg.solve(self.root, known.T).T
        covariance = np.exp(-0.5 * ((known[:, None] - known) ** 2).sum(axis=-1) / _REACH**2)
        system = np.ones((count + 1, count + 1))
        system[:count, :count] = covariance[:count, :count] + _NUGGET * np.eye(count)
        system[count, count] = 0.0
        weights = np.linalg.solve(system, np.append(covariance[count, :count], 1.0))[:count]
        return approximator.between(np.array(self.starts), weights, int(covariance[count, :count].argmax()))
