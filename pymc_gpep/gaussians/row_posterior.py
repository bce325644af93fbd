"""The Gaussian posterior of one latent function whose prior is by rows of coefficients of few standard normals."""

from functools import cached_property
from typing import Self

import numpy as np
from scipy.linalg.lapack import dtrtri

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.dense_posterior import NO_COVARIANCE, DensePosterior
from pymc_gpep.gaussians.prior import NotPositiveDefiniteError
from pymc_gpep.gaussians.row_prior import RowPrior
from pymc_gpep.gaussians.sites import IndependentSites, Sites
from pymc_gpep.solvers.coefficients import Coefficients
from pymc_gpep.solvers.coupled_whitened import CoupledWhitened
from pymc_gpep.solvers.row_form import precision_factor

__all__ = ["RowPosterior"]

_EPS = float(np.finfo(np.float64).eps)


class RowPosterior(DensePosterior):
    """Sites of precision π ≥ 0, (1, n), on f = m + J z.

    The posterior of z is N(ẑ, Λ⁻¹) with Λ = I + JᵀπJ = L Lᵀ and ẑ = Jᵀb.
    """

    sites_class = IndependentSites
    prior: RowPrior

    @classmethod
    def of(cls, prior: RowPrior, sites: Sites) -> Self:  # type: ignore[override]
        posterior = cls(prior, sites.precision, np.empty(prior.shape))
        force = sites.location - sites.precision * prior.mean
        posterior.weights = force - posterior.precision * posterior._smoothed(force)
        posterior.sites = sites
        return posterior

    @cached_property
    def _factor(self) -> Array:
        """L, (q, q)."""
        factor = precision_factor(self.prior.rows, self.precision[0])
        if factor is None:
            raise NotPositiveDefiniteError(NO_COVARIANCE)
        return factor

    @cached_property
    def _root(self) -> Array:
        """L⁻¹, (q, q)."""
        root: Array = dtrtri(self._factor, lower=1)[0]
        return root

    def _smoothed(self, force: Array) -> Array:
        """J Λ⁻¹ Jᵀ r (1, n), of r (1, n)."""
        rows = self.prior.rows
        return rows.products(self._root.T @ (self._root @ rows.sums(force[0])))[None]

    @cached_property
    def mean(self) -> Array:
        return self.prior.latent(self.prior.whitened_slope(self.weights))

    @cached_property
    def normals(self) -> CoupledWhitened:
        """q(z), whose root is L⁻¹."""
        centre = self.prior.whitened_slope(self.weights)
        half = self._factor.T @ centre[0]
        return CoupledWhitened(centre, self._root, 0.5 * (float(half @ half) - self.log_determinant))

    @property
    def log_determinant(self) -> float:
        return 2.0 * float(np.log(self._factor.diagonal()).sum())

    @cached_property
    def _variance(self) -> Array:
        return self.prior.rows.variances(self._root)

    def marginals(self) -> tuple[Array, Array]:
        return self.mean, self._variance[:, None, None].copy()

    def derivatives(self) -> tuple[Array, Array]:
        """Derivatives of `log_normaliser` at fixed sites, in the array of the prior and in its mean (1, n)."""
        b = self.weights[0]
        rows = self.prior.rows
        gradient = rows.outer(b, rows.sums(b)) - rows.weighted(self.precision[0], self._root.T @ self._root)
        return gradient[None], self.weights.copy()

    def at_coefficients(self, rows: Coefficients, beside: Array, prior_mean: Array) -> tuple[Array, Array]:
        """Mean (1, m) and covariance (m, 1, 1) of m* + J* z + e, in which nothing is subtracted.

        Parameters
        ----------
        rows : Coefficients
            J*, (m, q).
        beside : array (1, m)
            Variance of e, which is independent of z.
        prior_mean : array (1, m)
            m*.
        """
        variance = beside + rows.variances(self._root)
        return prior_mean + rows.products(self.normals.mean[0]), variance.T[:, :, None]

    def _covariance_at(self, k_cross: Array, k_new: Array) -> Array:
        explained = self._explained(k_cross[0].T)
        return np.maximum(k_new - explained, 0.0).T[:, :, None]

    def _explained(self, left: Array) -> Array:
        """Diagonal (q′,) of leftᵀ M left, M = π − π J Λ⁻¹ Jᵀ π, for `left` (n, q′)."""
        pulled = self._root @ self._sums(self.precision[0][:, None] * left)
        return np.asarray((self.precision[0][:, None] * left**2).sum(axis=0) - (pulled**2).sum(axis=0))

    def _sums(self, left: Array) -> Array:
        """Jᵀ times `left`, (q, q′)."""
        return np.stack([self.prior.rows.sums(own) for own in left.T], axis=1)

    def joint_covariance(self, left: Array, prior: Array) -> Array:
        own = left[0]
        weighted = self.precision[0][:, None] * own
        pulled = self._root @ self._sums(weighted)
        return np.asarray(np.reshape(prior, (own.shape[1],) * 2) - own.T @ weighted + pulled.T @ pulled)[None, :, None]

    def marginal_variance(self, left: Array, prior: Array) -> Array:
        return np.asarray(np.atleast_2d(prior.diagonal(axis1=-2, axis2=-1)) - self._explained(left[0]))

    def smoothing(self) -> tuple[Array, None]:
        half = self.precision[0][:, None] * self.prior.rows.combined(self._root.T)
        return (np.diag(self.precision[0]) - half @ half.T)[None], None

    def site_blocks(self) -> tuple[Array, Array]:
        kept = np.maximum(1.0 - self.precision[0] * self._variance, _EPS)
        return np.sqrt(self.precision[0])[:, None, None], kept[:, None, None]

    def draw_whitened(self, rng: np.random.Generator, draws: int) -> Array:
        return self.normals.draw(rng, draws)
