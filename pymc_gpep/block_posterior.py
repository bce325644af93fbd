"""The Gaussian posterior of latent functions whose sites have full precisions over the classes: prediction and draws.

The algebra is that of `pymc_gpep.kernels.block_sites`: dense, in O((cn)³).
"""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from pymc_gpep.kernels.block_sites import block_roots, factorise_blocks

__all__ = ["BlockPosterior"]

Array = NDArray[np.float64]


class BlockPosterior:
    """q(f) = N(m + K b, K − K M K), M = W (I + K W)⁻¹, where the site of point i has precision W_i.

    Parameters
    ----------
    k : array (1 or c, n, n)
        Prior covariance.
    prior_mean : array (c, n)
    precision : array (n, c, c)
        Site precisions W_i, positive semi-definite, with rows that sum to zero.
    weights : array (c, n)
        b = K⁻¹ (posterior mean − prior mean).
    """

    def __init__(self, k: Array, prior_mean: Array, precision: Array, weights: Array) -> None:
        self.k = k
        self.prior_mean = prior_mean
        self.precision = precision
        self.weights = weights

    @cached_property
    def _roots(self) -> Array:
        """R_i with W_i = R_i R_iᵀ, (n, c, c − 1)."""
        n, c, _ = self.precision.shape
        roots = np.empty((n, c, c - 1))
        block_roots(self.precision, roots)
        return roots

    @cached_property
    def _factor(self) -> Array:
        """G with M = G Gᵀ, (c, n, n (c − 1))."""
        roots = self._roots
        n, c, rank = roots.shape
        lower = np.zeros((n * rank, n * rank))
        ok, _ = factorise_blocks(self.k, roots, lower)
        if not ok:
            raise np.linalg.LinAlgError("The prior covariance is not positive semi-definite.")
        g = np.zeros((c, n, n, rank))
        g[:, range(n), range(n)] = roots.swapaxes(0, 1)
        flat = g.reshape(c * n, n * rank)
        return solve_triangular(lower, flat.T, lower=True).T.reshape(c, n, n * rank)

    def predict(self, k_cross: Array, k_new: Array, prior_mean: Array) -> tuple[Array, Array]:
        """Mean (c, m) and covariance between classes (m, c, c) of the latent functions at m new points.

        Parameters
        ----------
        k_cross : array (1 or c, m, n)
            Prior covariance between the new points and the old.
        k_new : array (1 or c, m)
            Prior variances at the new points.
        prior_mean : array (c, m)
            Prior mean at the new points.
        """
        c, m = prior_mean.shape
        mean = prior_mean + np.einsum("kmn,kn->km", np.broadcast_to(k_cross, (c, m, self.k.shape[-1])), self.weights)
        smoothed = np.matmul(k_cross, self._factor)
        cov = -np.einsum("kmn,lmn->mkl", smoothed, smoothed, optimize=True)
        diagonal = range(c)
        cov[:, diagonal, diagonal] = np.maximum(cov[:, diagonal, diagonal] + np.broadcast_to(k_new, (c, m)).T, 0.0)
        return mean, cov

    def joint_covariance(self, left: Array, prior: Array) -> Array:
        """Prior − leftᵀ M left, (c, n, c, n), for a factor `left` and a prior covariance (1 or c, n, n) it belongs to.

        With both the prior covariance K this is the covariance of f; with L, K = L Lᵀ, and the identity it is that of
        z = L⁻¹ (f − m).
        """
        c, n = self.weights.shape
        smoothed = np.matmul(left.swapaxes(1, 2), self._factor).reshape(c * n, -1)
        cov = -(smoothed @ smoothed.T).reshape(c, n, c, n)
        for a, own in enumerate(np.broadcast_to(prior, (c, n, n))):
            cov[a, :, a, :] += own
        return cov

    def marginal_variance(self, left: Array, prior: Array) -> Array:
        """Diagonal (c, n) of `joint_covariance`."""
        smoothed = np.matmul(left.swapaxes(1, 2), self._factor)
        own = np.broadcast_to(prior.diagonal(axis1=-2, axis2=-1), self.weights.shape)
        return own - np.einsum("kij,kij->ki", smoothed, smoothed)

    def draw_whitened(self, rng: np.random.Generator, draws: int, roots: Array) -> Array:
        """Draws (draws, c, n) of z where f = m + L z and K = L Lᵀ, exact.

        Perturbation: with f₀ ~ N(0, K) and ε ~ N(0, W), f₀ + K (ε − M (f₀ + K ε)) has the posterior covariance.

        Parameters
        ----------
        roots : array (1 or c, n, n)
            Lower Cholesky factors L of the prior covariance.
        """
        c, n = self.weights.shape
        z = rng.standard_normal((c, n, draws))
        noise = np.einsum("iap,ipd->aid", self._roots, rng.standard_normal((n, c - 1, draws)))
        inner = (self._factor.swapaxes(1, 2) @ (roots @ z + self.k @ noise)).sum(0)
        z += roots.swapaxes(1, 2) @ (self.weights[..., None] + noise - self._factor @ inner)
        return z.transpose(2, 0, 1)
