"""The Gaussian posterior of latent functions whose sites have full precisions over the classes: prediction and draws.

The algebra is that of `pymc_gpep.kernels.gaussians.block_sites`: dense, in O((cn)³). Where
precisions have negative eigenvalues it is that of `pymc_gpep.solvers.signed_blocks`, with M = W − F Fᵀ.
"""

from functools import cached_property
from typing import ClassVar, Self

import numpy as np
from scipy.linalg import solve_triangular

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.posterior import NO_COVARIANCE, DensePosterior
from pymc_gpep.gaussians.prior import DensePrior, NotPositiveDefiniteError
from pymc_gpep.gaussians.row_posterior import RowPosterior
from pymc_gpep.gaussians.sites import BlockSites, SignedSites, Sites
from pymc_gpep.kernels.gaussians.block_sites import (
    block_gradient,
    block_marginals,
    factorise_blocks,
    project,
    smooth_blocks,
)
from pymc_gpep.kernels.linalg.lapack import multiply_functions
from pymc_gpep.solvers.problem import own_matrix
from pymc_gpep.solvers.signed_blocks import SignedBlocks
from pymc_gpep.solvers.signed_posterior import covariance_root
from pymc_gpep.solvers.site_precisions import BlockPrecisions


class _OfSignedSites(DensePosterior):
    """Posteriors of sites that have no roots."""

    sites_class: ClassVar[type[Sites]] = SignedSites

    def cavities(self, mean: Array, cov: Array) -> tuple[Array, Array]:
        # Π annihilates what is common to all functions: its part of Σ is the same in the cavity.
        wide = np.linalg.solve(np.eye(len(mean)) - cov @ self.precision, cov)
        wide = 0.5 * (wide + wide.swapaxes(1, 2))
        return mean.T - np.einsum("iab,bi->ia", wide, self.weights), wide

    @property
    def divergence(self) -> float:
        taken = float((self.precision * self.marginals()[1]).sum())
        return -self.relative_log_normaliser - 0.5 * taken

    def site_blocks(self) -> tuple[Array, Array]:
        raise TypeError("Site precisions with negative eigenvalues have no roots; ask `cavities`.")


class SignedPosterior(_OfSignedSites):
    """Sites of any precision W_i (n, c, c) for which there is a posterior."""

    @classmethod
    def of(cls, prior: DensePrior, sites: Sites) -> Self:
        posterior = cls(prior, sites.precision, np.empty(prior.shape))
        posterior._factorised[0].weights(sites.slope(prior.mean), posterior.weights)
        posterior.sites = sites
        return posterior

    @cached_property
    def _factorised(self) -> tuple[SignedBlocks, float]:
        """The algebra that has taken W, and log|I + KW|."""
        algebra = SignedBlocks(self.prior.k, len(self.weights))
        ok, log_det = algebra.factorise(self.precision)
        if not ok:
            raise NotPositiveDefiniteError(NO_COVARIANCE)
        return algebra, log_det

    @cached_property
    def _factor(self) -> Array:
        """F, (c, n, cn)."""
        return self._factorised[0].weighted

    @property
    def log_determinant(self) -> float:
        return self._factorised[1]

    def marginals(self) -> tuple[Array, Array]:
        (c, n), half = self.weights.shape, self._factorised[0].half
        cov: Array = np.einsum("aiq,eiq->iae", half, half, optimize=True).reshape(n, c, c)
        return self.mean, cov

    def derivatives(self) -> tuple[Array, Array]:
        return self._factorised[0].gradient(self.weights), self.weights.copy()

    def _covariance_at(self, k_cross: Array, k_new: Array) -> Array:
        c, m = k_new.shape
        cross = np.broadcast_to(k_cross, (c, m, k_cross.shape[-1]))
        half = np.matmul(cross, self._factor)
        cov = np.einsum("ajq,ejq->jae", half, half, optimize=True)
        cov -= np.einsum("aji,iae,eji->jae", cross, self.precision, cross, optimize=True)
        cov[:, range(c), range(c)] = np.maximum(cov[:, range(c), range(c)] + k_new.T, 0.0)
        return np.asarray(cov)

    def joint_covariance(self, left: Array, prior: Array) -> Array:
        c, q = len(self.weights), left.shape[-1]
        every = np.broadcast_to(left, (c, *left.shape[1:]))
        half = np.matmul(every.swapaxes(1, 2), self._factor).reshape(c * q, -1)
        cov = (half @ half.T).reshape(c, q, c, q)
        for a in range(c):
            for e in range(c):
                cov[a, :, e] -= every[a].T @ (self.precision[:, a, e, None] * every[e])
            cov[a, :, a] += own_matrix(prior.reshape(-1, q, q), a)
        return cov

    def marginal_variance(self, left: Array, prior: Array) -> Array:
        c, q = len(self.weights), left.shape[-1]
        every = np.broadcast_to(left, (c, *left.shape[1:]))
        half = np.matmul(every.swapaxes(1, 2), self._factor)
        own = self.precision.diagonal(axis1=1, axis2=2).T[:, :, None]
        taken = (own * every**2).sum(axis=1) - np.einsum("ajq,ajq->aj", half, half)
        return np.asarray(np.broadcast_to(prior.diagonal(axis1=-2, axis2=-1), (c, q)) - taken)

    def draw_whitened(self, rng: np.random.Generator, draws: int) -> Array:
        roots, c = self.prior.roots, len(self.weights)
        q = roots.shape[-1]
        root = covariance_root(self.joint_covariance(roots, np.eye(q)).reshape(c * q, c * q))
        z = (root @ rng.standard_normal((c * q, draws))).T.reshape(draws, c, q)
        return np.asarray(z + self.prior.whitened_slope(self.weights))


class SignedRowPosterior(_OfSignedSites, RowPosterior):
    """The same with a prior by rows of coefficients."""

    precisions_class = BlockPrecisions


class BlockPosterior(DensePosterior):
    """Sites of any semi-definite precision W_i with rows that sum to zero, from `precision` W (n, c, c).

    M = W (I + K W)⁻¹.
    """

    sites_class = BlockSites

    @classmethod
    def of(cls, prior: DensePrior, sites: Sites) -> Self:
        posterior = cls(prior, sites.precision, np.empty(prior.shape))
        pull = sites.slope(prior.mean)
        image = np.empty_like(pull)
        multiply_functions(prior.k, pull, image)
        project(prior.k, posterior._roots, posterior._factorised[0], pull, image, posterior.weights)
        posterior.sites = sites
        return posterior

    @cached_property
    def _roots(self) -> Array:
        """R_i with W_i = R_i R_iᵀ, (n, c, c − 1)."""
        return BlockSites(self.precision, self.weights).roots

    @cached_property
    def _factorised(self) -> tuple[Array, float]:
        """Lower Cholesky factor L of I + Rᵀ K R, (n (c − 1), n (c − 1)), and log|I + KΠ|."""
        n, _, rank = self._roots.shape
        lower = np.zeros((n * rank, n * rank))
        ok, log_det = factorise_blocks(self.prior.k, self._roots, lower)
        if not ok:
            raise NotPositiveDefiniteError(NO_COVARIANCE)
        return lower, float(log_det)

    @property
    def log_determinant(self) -> float:
        return self._factorised[1]

    def marginals(self) -> tuple[Array, Array]:
        (c, n), lower = self.weights.shape, self._factorised[0]
        smooth, cov = np.empty((c, n, len(lower))), np.empty((n, c, c))
        smooth_blocks(self.prior.k, self._roots, lower, smooth)
        block_marginals(self.prior.k, smooth, cov)
        return self.mean, cov

    def derivatives(self) -> tuple[Array, Array]:
        n, lower = self.weights.shape[1], self._factorised[0]
        gradient = np.empty_like(self.prior.k)
        block_gradient(self._roots, lower, self.weights, np.empty((n, len(lower))), gradient)
        return gradient, self.weights.copy()

    @cached_property
    def _factor(self) -> Array:
        """G = R L⁻ᵀ with M = G Gᵀ, (c, n, n (c − 1))."""
        n, c, rank = self._roots.shape
        g = np.zeros((c, n, n, rank))
        g[:, range(n), range(n)] = self._roots.swapaxes(0, 1)
        flat = g.reshape(c * n, n * rank)
        return solve_triangular(self._factorised[0], flat.T, lower=True).T.reshape(c, n, n * rank)

    def _covariance_at(self, k_cross: Array, k_new: Array) -> Array:
        smoothed = np.matmul(k_cross, self._factor)
        cov = -np.einsum("kmn,lmn->mkl", smoothed, smoothed, optimize=True)
        diagonal = range(len(k_new))
        cov[:, diagonal, diagonal] = np.maximum(cov[:, diagonal, diagonal] + k_new.T, 0.0)
        return np.asarray(cov)

    def joint_covariance(self, left: Array, prior: Array) -> Array:
        c, q = len(self.weights), left.shape[-1]
        smoothed = np.matmul(left.swapaxes(1, 2), self._factor).reshape(c * q, -1)
        cov = -(smoothed @ smoothed.T).reshape(c, q, c, q)
        for a, own in enumerate(np.broadcast_to(prior, (c, q, q))):
            cov[a, :, a, :] += own
        return cov

    def marginal_variance(self, left: Array, prior: Array) -> Array:
        smoothed = np.matmul(left.swapaxes(1, 2), self._factor)
        own = np.broadcast_to(prior.diagonal(axis1=-2, axis2=-1), (len(self.weights), left.shape[-1]))
        return own - np.einsum("kij,kij->ki", smoothed, smoothed)

    def site_blocks(self) -> tuple[Array, Array]:
        n, _, rank = self._roots.shape
        inverse = solve_triangular(self._factorised[0], np.eye(n * rank), lower=True).reshape(n * rank, n, rank)
        return self._roots, np.einsum("jip,jiq->ipq", inverse, inverse, optimize=True)

    def draw_whitened(self, rng: np.random.Generator, draws: int) -> Array:
        c, n = self.weights.shape
        roots = self.prior.roots
        z = rng.standard_normal((c, roots.shape[-1], draws))
        noise = np.einsum("iap,ipd->aid", self._roots, rng.standard_normal((n, c - 1, draws)))
        inner = (self._factor.swapaxes(1, 2) @ (roots @ z + self.prior.k @ noise)).sum(0)
        z += roots.swapaxes(1, 2) @ (self.weights[..., None] + noise - self._factor @ inner)
        return z.transpose(2, 0, 1)
