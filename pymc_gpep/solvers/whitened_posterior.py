"""The posterior of whitened inducing values: of functions that are independent given the data."""

from typing import NamedTuple, Protocol

import numpy as np
from scipy.linalg import LinAlgError, cho_solve, cholesky
from scipy.linalg.lapack import dtrtri

from pymc_gpep.array_types import Array
from pymc_gpep.solvers.triangular_products import lower_product, squared_columns


class Whitened(Protocol):
    """q(v) = N(μ, Σ) of the whitened inducing values of all functions."""

    @property
    def mean(self) -> Array:
        """μ, (c, M)."""

    @property
    def root(self) -> Array:
        """R of Σ = Rᵀ R, lower triangular: (c, M, M) where the functions are independent, (cM, cM) where not."""

    @property
    def log_normaliser(self) -> float:
        """log ∫ N(v | 0, I) exp(hᵀv − ½ vᵀS v) dv."""

    def moments(self, w: list[Array]) -> tuple[Array, Array]:
        """Means (c, B) and covariances (B, c, c) of the w_kᵀv_k for features w_k (M, B) of each function."""

    def joint_covariance(self, w: list[Array]) -> Array:
        """Covariance (c, B, c, B) of the same, of all points together."""

    def draw(self, rng: np.random.Generator, count: int) -> Array:
        """Draws (count, c, M) of v."""


class WhitenedPosterior(NamedTuple):
    """q(v_k) = N(μ_k, Σ_k) of each function, Σ = (I + S)⁻¹ = Rᵀ R, μ = Σ h."""

    mean: Array
    """μ, (c, M)."""
    root: Array
    """R, lower triangular, (c, M, M)."""
    log_normaliser: float
    """log ∫ N(v | 0, I) exp(hᵀv − ½ vᵀS v) dv, summed over functions."""

    def half(self, k: int, w: Array) -> Array:
        """R_k w, (M, B), whose columns have the variances of wᵀv_k as squared norms."""
        return lower_product(self.root[k], w)

    def marginals(self, k: int, w: Array) -> tuple[Array, Array]:
        """Mean and variance (B,) of wᵀv_k for features w (M, B)."""
        return self.mean[k] @ w, squared_columns(self.half(k, w))

    def shared_marginals(self, w: Array) -> tuple[Array, Array]:
        """Means and variances (c, B) of all functions, for features w (M, B) that they have in common."""
        variance = np.array([squared_columns(lower_product(root, w)) for root in self.root])
        return self.mean @ w, variance

    def moments(self, w: list[Array]) -> tuple[Array, Array]:
        """Means (c, B) and covariances (B, c, c), which are diagonal; see `Whitened.moments`."""
        pairs = [self.marginals(k, own) for k, own in enumerate(w)]
        mean, variance = (np.array(each) for each in zip(*pairs, strict=True))
        return mean, variance.T[:, :, None] * np.eye(len(w))

    def joint_covariance(self, w: list[Array]) -> Array:
        c, columns = len(w), w[0].shape[1]
        cov = np.zeros((c, columns, c, columns))
        for k, own in enumerate(w):
            half = lower_product(self.root[k], own)
            cov[k, :, k] = half.T @ half
        return cov

    def draw(self, rng: np.random.Generator, count: int) -> Array:
        noise = rng.standard_normal((count, *self.mean.shape))
        drawn: Array = self.mean + np.einsum("kij,ski->skj", self.root, noise)
        return drawn

    def covariances(self, k: int, w: Array) -> Array:
        """Σ_k w, (M, B)."""
        return lower_product(self.root[k], self.half(k, w), transposed=True)


def whitened_posterior(precision: Array, location: Array) -> WhitenedPosterior:
    """The posterior for S (c, M, M) and h (c, M).

    Raises
    ------
    LinAlgError
        If I + S has no Cholesky factor, or is not finite.
    """
    if not np.isfinite(precision).all():
        raise LinAlgError("S is not finite")
    mean, root = np.empty_like(location), np.empty_like(precision)
    total = 0.0
    identity = np.eye(precision.shape[-1])
    for k, (s, h) in enumerate(zip(precision, location, strict=True)):
        factor = cholesky(identity + s, lower=True)
        mean[k] = cho_solve((factor, True), h)
        root[k], _ = dtrtri(factor, lower=1)
        total += 0.5 * float(h @ mean[k]) - float(np.log(factor.diagonal()).sum())
    return WhitenedPosterior(mean, root, total)
