"""The Gaussian posterior of latent functions whose site precisions have negative eigenvalues: prediction and draws.

The algebra is that of `pymc_gpep.solvers.signed_blocks`, with M = W − F Fᵀ.
"""

from functools import cached_property
from typing import ClassVar, Self

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.posterior import NO_COVARIANCE, DensePosterior
from pymc_gpep.gaussians.prior import DensePrior, NotPositiveDefiniteError
from pymc_gpep.gaussians.row_posterior import RowPosterior
from pymc_gpep.gaussians.sites import SignedSites, Sites
from pymc_gpep.solvers.problem import own_matrix
from pymc_gpep.solvers.signed_blocks import SignedBlocks
from pymc_gpep.solvers.signed_posterior import covariance_root
from pymc_gpep.solvers.site_precisions import BlockPrecisions

__all__ = ["SignedPosterior", "SignedRowPosterior"]


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
