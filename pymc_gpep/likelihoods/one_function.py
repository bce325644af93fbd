"""Likelihoods of an observation given one latent function, from their computations at points."""

from abc import ABC
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pymc_gpep.array_types import Array, Observed
from pymc_gpep.likelihoods.gaussian_moments import gaussian_moments
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import GaussianAverage, PlainDensity, ScalarDensity
from pymc_gpep.likelihoods.observed_classes import one_for_each_point

__all__ = ["OneFunction"]

_FEWEST, _MOST = 64, 4096  # nodes of the trapezoid rule for distribution functions
_RANGE = 8.5  # standard deviations that it reaches
_SAME = 1e-8  # change of a probability with twice the nodes


@dataclass(frozen=True)
class OneFunction(Likelihood, ABC):
    """A likelihood of one latent value for each point, whose argument in a model is (n,)."""

    function_axis: ClassVar[bool] = False
    sees_common: ClassVar[bool] = True
    ways: ClassVar[tuple[str, ...]] = ("average",)

    def check_functions(self, n_functions: int) -> None:
        if n_functions != 1:
            raise ValueError(
                f"A {self.name} likelihood has one latent function, gp.prior(...) without n_outputs, and a prior mean "
                f"(1, n), but there are {n_functions}."
            )

    def checked_shape(self, observed: ArrayLike, n_functions: int, n_points: int, name: str) -> NDArray[Any]:
        """Observations as an array, one for each point."""
        self.check_functions(n_functions)
        return one_for_each_point(observed, n_points, name, classes=self.n_classes(1) > 0)

    def log_densities(self, f: Array, observed: Observed) -> Array:
        values = f[..., 0, :]
        repeats = values.size // values.shape[-1]
        out = np.empty((4, values.size))
        smooth = self.offers(ScalarDensity)
        kernel, *_ = self.computation(ScalarDensity) if smooth else self.computation(PlainDensity)
        kernel(values.ravel(), np.tile(observed, repeats), np.tile(self._rows(f), (1, repeats)), out)
        return out[0].reshape(values.shape)

    def probabilities(
        self, mean: Array, cov: Array, *, how: str | None = None, tolerance: float = 5e-5
    ) -> tuple[Array, Array]:
        self.check_way(how)
        mean, cov = gaussian_moments(mean, cov, tolerance, at_least=1)
        self.check_functions(mean.shape[1])
        classes = range(self.n_classes(1))
        p = np.stack([np.exp(self.log_tail(mean, cov, np.full(len(mean), y))) for y in classes], axis=1)
        total = p.sum(axis=1)
        return p / total[:, None], np.abs(total - 1.0)

    def cumulative_given(self, y: Array, f: Array) -> Array:
        """Probability (k, m) that an observation is at most y (m,), given latent values (k, m)."""
        raise TypeError(f"Observations of a {self.name} likelihood are classes, which have no order.")

    def cumulative(self, y: Array, mean: Array, cov: Array) -> Array:
        location, sd = mean[:, 0], np.sqrt(cov[:, 0, 0])
        found = np.zeros(len(location))
        nodes = _FEWEST
        while nodes <= _MOST:
            z = np.linspace(-_RANGE, _RANGE, nodes + 1)[:, None]
            weights = np.exp(-0.5 * z**2)
            with np.errstate(all="ignore"):
                p = self.cumulative_given(y, location + sd * z)
            before, found = found, np.clip((weights * p).sum(axis=0) / weights.sum(), 0.0, 1.0)
            if nodes > _FEWEST and np.abs(found - before).max(initial=0.0) < _SAME:
                break
            nodes *= 2
        return found

    def log_tail(self, mean: Array, cov: Array, observed: Observed) -> Array:
        # Exact in the tails and everywhere else.
        means, variance = np.ascontiguousarray(mean[:, 0]), np.ascontiguousarray(cov[:, 0, 0])
        terms = np.empty((5, len(means)))
        labels = np.ascontiguousarray(observed, self.observed_dtype)
        self.computation(GaussianAverage).terms(means, variance, labels, self._rows(mean.T), terms)
        return terms[0]

    def _rows(self, f: Array) -> Array:
        """Parameters (p, n) for latent values (..., n)."""
        return self.parameters if self.has_parameters else np.empty((0, f.shape[-1]))
