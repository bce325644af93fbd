"""The Gaussian posterior of latent functions whose sites couple the classes: prediction and draws.

The algebra is that of `pymc_gpep.kernels.coupled` (nested EP paper, appendix B); nested EP and the Laplace
approximation of a softmax share it, since their sites have the same form.
"""

from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from pymc_gpep.kernels.coupled import factorise

__all__ = ["CoupledPosterior", "Posterior"]

Array = NDArray[np.float64]


class Posterior(Protocol):
    """q(f) = N(m + K b, K − K M K): a joint Gaussian, by what it can do.

    Parameters and shapes of the methods are those of `CoupledPosterior`.
    """

    k: Array
    prior_mean: Array
    weights: Array

    def __init__(self, k: Array, prior_mean: Array, precision: Array, weights: Array) -> None: ...

    def predict(self, k_cross: Array, k_new: Array, prior_mean: Array) -> tuple[Array, Array]:
        """Mean and covariance between classes of the latent functions at new points."""
        ...

    def joint_covariance(self, left: Array, prior: Array) -> Array:
        """Prior − leftᵀ M left."""
        ...

    def marginal_variance(self, left: Array, prior: Array) -> Array:
        """Diagonal of `joint_covariance`."""
        ...

    def draw_whitened(self, rng: np.random.Generator, draws: int, roots: Array) -> Array:
        """Draws of z where f = m + L z."""
        ...


class CoupledPosterior:
    """q(f) = N(m + K b, K − K M K), where the sites have precision Π_i = diag(π_i) − π_iπ_iᵀ / 1ᵀπ_i.

    Parameters
    ----------
    k : array (1 or c, n, n)
        Prior covariance.
    prior_mean : array (c, n)
    precision : array (c, n)
        Site precisions, π.
    weights : array (c, n)
        b = K⁻¹ (posterior mean − prior mean).
    """

    def __init__(self, k: Array, prior_mean: Array, precision: Array, weights: Array) -> None:
        self.k = k
        self.prior_mean = prior_mean
        self.pi = precision
        self.weights = weights

    @cached_property
    def _factors(self) -> tuple[Array, Array]:
        """B_k (c, n, n) and the lower Cholesky factor of P = Σ B_k."""
        c, n = self.pi.shape
        b, p = np.empty((c, n, n)), np.empty((n, n))
        ok, _ = factorise(self.k, self.pi, b, p)
        if not ok:
            raise np.linalg.LinAlgError("The prior covariance is not positive semi-definite.")
        root = np.sqrt(self.pi)
        for matrix, d in zip(b, root, strict=True):
            lower = np.tril(matrix)
            matrix[:] = (lower + np.tril(lower, -1).T) * d[:, None] * d
        return b, np.tril(p)

    def predict(self, k_cross: Array, k_new: Array, prior_mean: Array) -> tuple[Array, Array]:
        """Mean (c, m) and covariance between classes (m, c, c) of the latent functions at m new points.

        Equations 26 and 27 of the nested EP paper.

        Parameters
        ----------
        k_cross : array (1 or c, m, n)
            Prior covariance between the new points and the old.
        k_new : array (1 or c, m)
            Prior variances at the new points.
        prior_mean : array (c, m)
            Prior mean at the new points.
        """
        b, p = self._factors
        c, m = prior_mean.shape
        n = p.shape[0]
        mean = prior_mean + np.einsum("kmn,kn->km", np.broadcast_to(k_cross, (c, m, n)), self.weights)
        smoothed = np.matmul(k_cross, b)
        variance = k_new - np.einsum("kmn,kmn->km", smoothed, np.broadcast_to(k_cross, (c, m, n)))
        shared = solve_triangular(p, smoothed.reshape(c * m, n).T, lower=True).T.reshape(c, m, n)
        cov = np.einsum("kmn,lmn->mkl", shared, shared, optimize=True)
        cov[:, range(c), range(c)] += np.maximum(variance, 0.0).T
        return mean, cov

    def joint_covariance(self, left: Array, prior: Array) -> Array:
        """Prior − leftᵀ M left, (c, n, c, n), for a factor `left` and a prior covariance (1 or c, n, n) it belongs to.

        With both the prior covariance K this is the covariance of f; with L, K = L Lᵀ, and the identity it is that of
        z = L⁻¹ (f − m).
        """
        b, p = self._factors
        c, n = self.pi.shape
        left_b = np.matmul(left.swapaxes(1, 2), b)
        shared = solve_triangular(p, left_b.reshape(c * n, n).T, lower=True).T
        cov = (shared @ shared.T).reshape(c, n, c, n)
        for a, own in enumerate(np.broadcast_to(prior - left_b @ left, (c, n, n))):
            cov[a, :, a, :] += own
        return cov

    def marginal_variance(self, left: Array, prior: Array) -> Array:
        """Diagonal (c, n) of `joint_covariance`, at O(c n³) instead of O(c² n³)."""
        b, p = self._factors
        c, n = self.pi.shape
        left_b = np.matmul(left.swapaxes(1, 2), b)
        shared = solve_triangular(p, left_b.reshape(c * n, n).T, lower=True)
        own = np.broadcast_to(prior.diagonal(axis1=-2, axis2=-1), (c, n))
        own = own - np.einsum("kij,kji->ki", left_b, np.broadcast_to(left, (c, n, n)))
        return own + np.einsum("ji,ji->i", shared, shared).reshape(c, n)

    def draw_whitened(self, rng: np.random.Generator, draws: int, roots: Array) -> Array:
        """Draws (draws, c, n) of z where f = m + L z and K = L Lᵀ: exact, at O(c n²) a draw.

        Perturbation: with f₀ ~ N(0, K) and ε ~ N(0, Π), f₀ + K (ε − M (f₀ + K ε)) has the posterior covariance.

        Parameters
        ----------
        roots : array (1 or c, n, n)
            Lower Cholesky factors L of the prior covariance.
        """
        b, p = self._factors
        c, n = self.pi.shape
        z = rng.standard_normal((c, n, draws))
        noise = rng.standard_normal((c, n, draws)) * np.sqrt(self.pi)[..., None]
        noise -= (self.pi / self.pi.sum(0))[..., None] * noise.sum(0)
        observed = b @ (roots @ z + self.k @ noise)
        half = solve_triangular(p, observed.sum(0), lower=True)
        observed -= b @ solve_triangular(p, half, lower=True, trans=1)
        z += roots.swapaxes(1, 2) @ (self.weights[..., None] + noise - observed)
        return z.transpose(2, 0, 1)
