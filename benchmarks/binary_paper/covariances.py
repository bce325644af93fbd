"""The eight covariance functions of section 12.3, each with a length scale ℓ and a magnitude σ_f.

The paper does not state the second hyperparameter of the linear and polynomial functions, nor their offset. Here inputs
are divided by ℓ, values are multiplied by σ_f², and polynomials have the offset 1.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple, Self

import numpy as np
from scipy.spatial.distance import cdist

from benchmarks.paper.data import Split

Array = np.ndarray

JITTER = 1e-6  # Number added to the diagonal, as in `pm.gp.Latent` and in the paper's factorial variational method.


class Pairs(NamedTuple):
    """Squared distances, inner products and norms of pairs of points, in arrays that broadcast."""

    squared: Array
    """Squared distances."""
    inner: Array
    """Inner products."""
    left: Array
    """Squared norms of the first points."""
    right: Array
    """Squared norms of the second points."""

    @classmethod
    def between(cls, X: Array, Z: Array) -> Self:
        """Return all pairs (m, n) of the points X (m, d) and Z (n, d)."""
        return cls(cdist(X, Z, "sqeuclidean"), X @ Z.T, (X**2).sum(1)[:, None], (Z**2).sum(1))

    @classmethod
    def same(cls, X: Array) -> Self:
        """Return the pairs of each point with itself, (m,)."""
        norms = (X**2).sum(1)
        return cls(np.zeros(len(X)), norms, norms, norms)

    def over(self, lengthscale: float) -> Self:
        """Return these quantities for inputs divided by a length scale."""
        return type(self)(*(x / lengthscale**2 for x in self))


def _matern32(pairs: Pairs) -> Array:
    r = np.sqrt(3.0 * pairs.squared)
    return (1.0 + r) * np.exp(-r)


def _matern52(pairs: Pairs) -> Array:
    r = np.sqrt(5.0 * pairs.squared)
    return (1.0 + r + r**2 / 3.0) * np.exp(-r)


def _neural_network(pairs: Pairs) -> Array:
    """Return the arcsine covariance of `pairs` of the vectors (1, x) / ℓ: the bias is also divided by ℓ."""
    return np.arcsin(pairs.inner / np.sqrt((1.0 + pairs.left) * (1.0 + pairs.right)))


COVARIANCES: dict[str, Callable[[Pairs], Array]] = {
    "linear": lambda pairs: pairs.inner,
    "polynomial 1": lambda pairs: 1.0 + pairs.inner,
    "polynomial 2": lambda pairs: (1.0 + pairs.inner) ** 2,
    "polynomial 3": lambda pairs: (1.0 + pairs.inner) ** 3,
    "Matérn 3/2": _matern32,
    "Matérn 5/2": _matern52,
    "squared exponential": lambda pairs: np.exp(-0.5 * pairs.squared),
    "neural network": _neural_network,
}
"""Covariance functions at σ_f = 1, by name; their argument are pairs of points divided by ℓ."""


class Prior(NamedTuple):
    """Prior covariances of training points (n, n) and with test points (m, n), and variances of test points (m,)."""

    k: Array
    cross: Array
    variance: Array


class Priors:
    """The priors of a data set for one covariance function.

    Parameters
    ----------
    data : Split
    name : str
        One of `COVARIANCES`.
    """

    def __init__(self, data: Split, name: str) -> None:
        X, Xnew = data.X, data.Xnew
        if name == "neural network":
            X, Xnew = (np.column_stack([np.ones(len(x)), x]) for x in (X, Xnew))
        self._pairs = Pairs.between(X, X), Pairs.between(Xnew, X), Pairs.same(Xnew)
        self._function = COVARIANCES[name]
        self._unit = lru_cache(maxsize=1)(self._compute)

    def unit(self, log_lengthscale: float) -> Prior:
        """Return covariances at σ_f = 1 without the jitter. The covariances at the last log ℓ are stored."""
        return self._unit(log_lengthscale)

    def at(self, log_lengthscale: float, log_magnitude: float) -> Prior:
        """Return the prior at log ℓ and log σ_f."""
        scale = np.exp(2.0 * log_magnitude)
        k, cross, variance = (scale * values for values in self.unit(log_lengthscale))
        k.flat[:: len(k) + 1] += JITTER
        return Prior(k, cross, variance)

    def _compute(self, log_lengthscale: float) -> Prior:
        return Prior(*(self._function(pairs.over(np.exp(log_lengthscale))) for pairs in self._pairs))
