"""The Gaussian posterior of latent functions whose sites have full precisions over the classes: prediction and draws.

The algebra is that of `pymc_gpep.kernels.gaussians.block_sites`: dense, in O((cn)³).
"""

from functools import cached_property

import numpy as np
from scipy.linalg import solve_triangular

from pymc_gpep.gaussians.posterior import Array, Posterior
from pymc_gpep.kernels.gaussians.block_sites import block_roots, factorise_blocks

__all__ = ["BlockPosterior"]


class BlockPosterior(Posterior):
    """Sites of any semi-definite precision W_i with rows that sum to zero, from `precision` W (n, c, c).

    M = W (I + K W)⁻¹.
    """

    @cached_property
    def _roots(self) -> Array:
        """R_i with W_i = R_i R_iᵀ, (n, c, c − 1)."""
        n, c, _ = self.precision.shape
        roots = np.empty((n, c, c - 1))
        block_roots(self.precision, roots)
        return roots

    @cached_property
    def _lower(self) -> Array:
        """Lower Cholesky factor L of I + Rᵀ K R, (n (c − 1), n (c − 1))."""
        n, _, rank = self._roots.shape
        lower = np.zeros((n * rank, n * rank))
        ok, _ = factorise_blocks(self.k, self._roots, lower)
        if not ok:
            raise np.linalg.LinAlgError("The prior covariance is not positive semi-definite.")
        return lower

    @cached_property
    def _factor(self) -> Array:
        """G = R L⁻ᵀ with M = G Gᵀ, (c, n, n (c − 1))."""
        n, c, rank = self._roots.shape
        g = np.zeros((c, n, n, rank))
        g[:, range(n), range(n)] = self._roots.swapaxes(0, 1)
        flat = g.reshape(c * n, n * rank)
        return solve_triangular(self._lower, flat.T, lower=True).T.reshape(c, n, n * rank)

    def _covariance_at(self, k_cross: Array, k_new: Array) -> Array:
        smoothed = np.matmul(k_cross, self._factor)
        cov = -np.einsum("kmn,lmn->mkl", smoothed, smoothed, optimize=True)
        diagonal = range(len(k_new))
        cov[:, diagonal, diagonal] = np.maximum(cov[:, diagonal, diagonal] + k_new.T, 0.0)
        return np.asarray(cov)

    def joint_covariance(self, left: Array, prior: Array) -> Array:
        c, n = self.weights.shape
        smoothed = np.matmul(left.swapaxes(1, 2), self._factor).reshape(c * n, -1)
        cov = -(smoothed @ smoothed.T).reshape(c, n, c, n)
        for a, own in enumerate(np.broadcast_to(prior, (c, n, n))):
            cov[a, :, a, :] += own
        return cov

    def marginal_variance(self, left: Array, prior: Array) -> Array:
        smoothed = np.matmul(left.swapaxes(1, 2), self._factor)
        own = np.broadcast_to(prior.diagonal(axis1=-2, axis2=-1), self.weights.shape)
        return own - np.einsum("kij,kij->ki", smoothed, smoothed)

    def site_blocks(self) -> tuple[Array, Array]:
        n, _, rank = self._roots.shape
        inverse = solve_triangular(self._lower, np.eye(n * rank), lower=True).reshape(n * rank, n, rank)
        return self._roots, np.einsum("jip,jiq->ipq", inverse, inverse, optimize=True)

    def draw_whitened(self, rng: np.random.Generator, draws: int, roots: Array) -> Array:
        c, n = self.weights.shape
        z = rng.standard_normal((c, n, draws))
        noise = np.einsum("iap,ipd->aid", self._roots, rng.standard_normal((n, c - 1, draws)))
        inner = (self._factor.swapaxes(1, 2) @ (roots @ z + self.k @ noise)).sum(0)
        z += roots.swapaxes(1, 2) @ (self.weights[..., None] + noise - self._factor @ inner)
        return z.transpose(2, 0, 1)
