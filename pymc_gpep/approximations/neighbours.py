"""Where a solve starts, from the ends of solves near by."""

from typing import NamedTuple

import numpy as np

from pymc_gpep.approximations.contract import Approximator
from pymc_gpep.array_types import Array

__all__ = ["Neighbours"]

_REACH = 4.0  # length over which starts are taken to vary, in units of the places
_NUGGET = 1e-9


class Neighbours(NamedTuple):
    """Ends of solves at some places, the latest last.

    Places are vectors of one length, hyperparameters or what else tells problems apart, in units in which the ends
    vary smoothly over a distance of a few.
    """

    places: tuple[Array, ...] = ()
    starts: tuple[Array, ...] = ()

    def joined(self, place: Array, start: Array, limit: int) -> "Neighbours":
        """These and one more, of which the last `limit` are kept."""
        return Neighbours((*self.places, place)[-limit:], (*self.starts, start)[-limit:])

    def predict(self, approximator: Approximator, place: Array) -> Array:
        """Where a solve at `place` starts: the mean of a Gaussian process that goes through the known ends.

        It has a constant mean that is not known and a squared exponential covariance, so that the prediction is a
        combination of the known ends with weights that sum to 1 (ordinary kriging).
        """
        known = np.array([*self.places, place])
        covariance = np.exp(-0.5 * ((known[:, None] - known) ** 2).sum(axis=-1) / _REACH**2)
        count = len(self.places)
        system = np.ones((count + 1, count + 1))
        system[:count, :count] = covariance[:count, :count] + _NUGGET * np.eye(count)
        system[count, count] = 0.0
        weights = np.linalg.solve(system, np.append(covariance[count, :count], 1.0))[:count]
        nearest = int(covariance[count, :count].argmax())
        return approximator.between(np.array(self.starts), weights, nearest)
