"""The posterior of whitened inducing values under scalar sites of the latent functions."""

from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_solve, cholesky, solve_triangular

from pymc_gpep.array_types import Array

__all__ = ["WhitenedPosterior", "best_shift", "whitened_posterior"]

_RIDGE = 1e-10


class WhitenedPosterior(NamedTuple):
    """q(v_k) = N(μ_k, Σ_k) of each function, Σ = (I + S)⁻¹ = Rᵀ R, μ = Σ h."""

    mean: Array
    """μ, (c, M)."""
    root: Array
    """R, lower triangular, (c, M, M)."""
    log_normaliser: float
    """log ∫ N(v | 0, I) exp(hᵀv − ½ vᵀS v) dv, summed over functions."""

    def marginals(self, k: int, w: Array) -> tuple[Array, Array]:
        """Mean and variance (B,) of wᵀv_k for features w (M, B)."""
        half = self.root[k] @ w
        return self.mean[k] @ w, (half * half).sum(axis=0)

    def covariances(self, k: int, w: Array) -> Array:
        """Σ_k w, (M, B)."""
        product: Array = self.root[k].T @ (self.root[k] @ w)
        return product


def whitened_posterior(precision: Array, location: Array) -> WhitenedPosterior:
    """The posterior for S (c, M, M) and h (c, M).

    Raises
    ------
    LinAlgError
        If I + S has no Cholesky factor, ValueError if it is not finite.
    """
    mean, root = np.empty_like(location), np.empty_like(precision)
    total = 0.0
    identity = np.eye(precision.shape[-1])
    for k, (s, h) in enumerate(zip(precision, location, strict=True)):
        factor = cholesky(identity + s, lower=True)
        mean[k] = cho_solve((factor, True), h)
        root[k] = solve_triangular(factor, identity, lower=True)
        total += 0.5 * float(h @ mean[k]) - float(np.log(factor.diagonal()).sum())
    return WhitenedPosterior(mean, root, total)


def best_shift(posterior: WhitenedPosterior) -> Array:
    """Weights a (M,) of a function wᵀa that, added to all c functions with one set of features, makes Σ_k μ_k = 0.

    A likelihood of differences does not see it, and moves with it: site locations become ν + π wᵀa. Why that is solved
    for: `pymc_gpep.solvers.shifted_posterior`.
    """
    size = posterior.mean.shape[1]
    pull = len(posterior.root) * np.eye(size) - np.einsum("kji,kjl->il", posterior.root, posterior.root)
    ridge = _RIDGE * pull.trace() / size
    if not ridge > 0.0:
        return np.zeros(size)
    shift: Array = -np.linalg.solve(pull + ridge * np.eye(size), posterior.mean.sum(axis=0))
    return shift
