"""The Gaussian posterior of latent functions whose prior is by rows of coefficients of few standard normals."""

from functools import cached_property
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dtrtri

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.posterior import NO_COVARIANCE, DensePosterior, PointsElsewhere
from pymc_gpep.gaussians.prior import NotPositiveDefiniteError
from pymc_gpep.gaussians.row_prior import RowPrior
from pymc_gpep.gaussians.sites import BlockSites, CoupledSites, IndependentSites, Sites
from pymc_gpep.solvers.coefficients import Coefficients
from pymc_gpep.solvers.coupled_whitened import CoupledWhitened
from pymc_gpep.solvers.inducing import Block
from pymc_gpep.solvers.row_form import precision_factor
from pymc_gpep.solvers.site_precisions import (
    BlockPrecisions,
    CoupledPrecisions,
    IndependentPrecisions,
    SitePrecisions,
)

_EPS = float(np.finfo(np.float64).eps)


class RowPosterior(DensePosterior):
    """Sites of precision diag(π), from `precision` π (c, n), on f = m + J z.

    The posterior of z is N(ẑ, Λ⁻¹) with Λ = I + JᵀΠJ = L Lᵀ and ẑ = Jᵀb, whatever Π is. With one function, π may be
    negative where Λ is positive definite.
    """

    sites_class: ClassVar[type[Sites]] = IndependentSites
    precisions_class: ClassVar[type[SitePrecisions]] = IndependentPrecisions
    """The form of Π."""
    prior: RowPrior

    @classmethod
    def of(cls, prior: RowPrior, sites: Sites) -> Self:  # type: ignore[override]
        posterior = cls(prior, sites.precision, np.empty(prior.shape))
        force = sites.slope(prior.mean)
        posterior.centre = posterior._solved(prior.rows.sums(force.ravel()))
        moved = prior.rows.products(posterior.centre).reshape(force.shape)
        posterior.weights = force - posterior.precisions.times(moved)
        posterior.sites = sites
        return posterior

    def _solved(self, right: Array) -> Array:
        """Λ⁻¹ r (q,), of r (q,)."""
        return np.asarray(self._root.T @ (self._root @ right))

    @cached_property
    def centre(self) -> Array:
        """ẑ (q,) = Λ⁻¹ Jᵀ(b + Π(mean − m)), in which nothing cancels where the prior is wide."""
        if (mean := vars(self).get("mean")) is None:
            return self.prior.whitened_slope(self.weights)[0]
        force = self.weights + self.precisions.times(mean - self.prior.mean)
        return self._solved(self.prior.rows.sums(force.ravel()))

    @cached_property
    def precisions(self) -> SitePrecisions:
        """Π by its blocks."""
        return self.precisions_class(self.precision)

    @cached_property
    def _factor(self) -> Array:
        """L, (q, q)."""
        factor = precision_factor(self.prior.rows, self.precisions)
        if factor is None:
            raise NotPositiveDefiniteError(NO_COVARIANCE)
        return factor

    @cached_property
    def _root(self) -> Array:
        """L⁻¹, (q, q)."""
        root: Array = dtrtri(self._factor, lower=1)[0]
        return root

    @cached_property
    def mean(self) -> Array:
        return self.prior.latent(self.centre[None])

    @cached_property
    def normals(self) -> CoupledWhitened:
        """q(z), whose root is L⁻¹."""
        centre = self.centre[None]
        half = self._factor.T @ centre[0]
        return CoupledWhitened(centre, self._root, 0.5 * (float(half @ half) - self.log_determinant))

    @property
    def log_determinant(self) -> float:
        return 2.0 * float(np.log(self._factor.diagonal()).sum())

    @cached_property
    def _cov(self) -> Array:
        """Marginal covariances, (n, c, c)."""
        return self.prior.rows.covariances(self._root)

    def marginals(self) -> tuple[Array, Array]:
        return self.mean, self._cov.copy()

    def derivatives(self) -> tuple[Array, Array]:
        """Derivatives of `log_normaliser` at fixed sites, in the array of the prior and in its mean (c, n)."""
        b, rows = self.weights, self.prior.rows
        gradient = rows.outer(b.ravel(), self.centre)
        gradient -= rows.coupled_weighted(self.precisions, self._root.T @ self._root)
        return gradient.reshape(self.prior.array.shape), b.copy()

    def at_coefficients(self, rows: Coefficients, beside: Array, prior_mean: Array) -> tuple[Array, Array]:
        """Mean (c, m) and covariance (m, c, c) of m* + J* z + e, in which nothing is subtracted.

        Parameters
        ----------
        rows : Coefficients
            J*, (cm, q).
        beside : array (c, m)
            Variance of e, which is independent of z.
        prior_mean : array (c, m)
            m*.
        """
        cov = rows.covariances(self._root)
        every = np.arange(len(prior_mean))
        cov[:, every, every] += beside.T
        return prior_mean + rows.products(self.normals.mean[0]).reshape(prior_mean.shape), cov

    def at(self, points: PointsElsewhere) -> tuple[Array, Array, Block]:
        rows, beside, prior_mean = points.by_normals()
        known = self.prior.known_variances(rows).reshape(beside.shape)
        mean, cov = self.at_coefficients(rows, beside, prior_mean)
        return mean, cov, Block(np.sqrt(known)[:, None], beside + known, prior_mean)

    def draw_at(self, rng: np.random.Generator, f: Array, z: Array, points: PointsElsewhere) -> Array:
        rows, beside, prior_mean = points.by_normals()
        values = prior_mean + np.stack([rows.products(each).reshape(prior_mean.shape) for each in z[:, 0]])
        return np.asarray(values + np.sqrt(beside) * rng.standard_normal(values.shape))

    def at_left_out(self, whole: RowPrior, i: int) -> tuple[Array, Array]:  # type: ignore[override]
        beside = np.zeros((len(whole.mean), 1))
        return self.at_coefficients(whole.rows_at(np.array([i])), beside, whole.mean[:, [i]])

    def covariance_among(self, points: NDArray[np.intp]) -> Array:
        half = self.root_among(points)
        return np.asarray(np.einsum("kiq,ljq->kilj", half, half, optimize=True))

    def root_among(self, points: NDArray[np.intp]) -> Array:
        return self.prior.at(points) @ self._root.T

    def whitened(self) -> tuple[Array, Array]:
        """Mean and variance (1, q) of z."""
        root = self._root
        return self.normals.mean, np.einsum("ij,ij->j", root, root)[None]

    def whitened_covariance(self) -> Array:
        """Covariance (1, q, 1, q) of z."""
        return np.asarray(self._root.T @ self._root)[None, :, None]

    def predict(self, k_cross: Array, k_new: Array, prior_mean: Array) -> tuple[Array, Array]:
        cross = np.broadcast_to(k_cross, (*prior_mean.shape, self.prior.shape[1]))
        mean = prior_mean + np.einsum("kmn,kn->km", cross, self.weights)
        return mean, self._covariance_at(cross, np.broadcast_to(k_new, prior_mean.shape))

    def _covariance_at(self, k_cross: Array, k_new: Array) -> Array:
        left = k_cross.swapaxes(1, 2)
        pulled, c = self._pulled(left), len(k_new)
        cov = np.einsum("kjm,ljm->mkl", pulled, pulled, optimize=True)
        for k in range(c):
            for other in range(c):
                if (block := self.precisions.block(k, other)) is not None:
                    cov[:, k, other] -= np.einsum("im,i,im->m", left[k], block, left[other], optimize=True)
        every = np.arange(c)
        cov[:, every, every] = np.maximum(cov[:, every, every] + k_new.T, 0.0)
        return np.asarray(cov)

    def _pulled(self, left: Array) -> Array:
        """L⁻¹ JᵀΠ times `left` (c, n, q′) of each function by itself, (c, q, q′)."""
        (c, n), rows = self.weights.shape, self.prior.rows
        found = np.empty((c, self.prior.n_normals, left.shape[2]))
        for k, own in enumerate(left):
            for j, column in enumerate(own.T):
                alone = np.zeros((c, n))
                alone[k] = column
                found[k, :, j] = rows.sums(self.precisions.times(alone).ravel())
        return self._halved(found)

    def _halved(self, vectors: Array) -> Array:
        """L⁻¹ v of the columns v of (c, q, q′)."""
        return np.asarray(self._root @ vectors)

    def joint_covariance(self, left: Array, prior: Array) -> Array:
        c, n = self.weights.shape
        size = left.shape[-1]
        left = np.broadcast_to(left, (c, n, size))
        pulled = self._pulled(left)
        cov = np.einsum("kji,ljh->kilh", pulled, pulled, optimize=True)
        for k in range(c):
            for other in range(c):
                if (block := self.precisions.block(k, other)) is not None:
                    cov[k, :, other] -= left[k].T @ (block[:, None] * left[other])
            cov[k, :, k] += prior.reshape(-1, size, size)[k if prior.size > size**2 else 0]
        return np.asarray(cov)

    def marginal_variance(self, left: Array, prior: Array) -> Array:
        c, n = self.weights.shape
        left = np.broadcast_to(left, (c, n, left.shape[-1]))
        explained = -(self._pulled(left) ** 2).sum(axis=1)
        for k in range(c):
            if (block := self.precisions.block(k, k)) is not None:
                explained[k] += (block[:, None] * left[k] ** 2).sum(axis=0)
        return np.asarray(np.atleast_2d(prior.diagonal(axis1=-2, axis2=-1)) - explained)

    def smoothing(self) -> tuple[Array, None]:
        if len(self.weights) > 1:
            super().smoothing()
        half = self.precision[0][:, None] * self.prior.rows.combined(self._root.T)
        return (np.diag(self.precision[0]) - half @ half.T)[None], None

    def cavities(self, mean: Array, cov: Array) -> tuple[Array, Array]:
        if len(mean) > 1:
            return super().cavities(mean, cov)
        wide = cov / np.maximum(1.0 - self.precision[0][:, None, None] * cov, _EPS)
        return mean.T - wide[:, 0] * self.weights.T, wide

    @property
    def divergence(self) -> float:
        if len(self.weights) > 1:
            return super().divergence
        return -self.relative_log_normaliser - 0.5 * float(self.precision[0] @ self._cov[:, 0, 0])

    def rooted(self, roots: Array) -> Self:
        return type(self)(self.prior.rooted(roots), self.precision, self.weights)

    def site_blocks(self) -> tuple[Array, Array]:
        roots: Array = self.sites_class(self.precision, self.weights).roots  # type: ignore[attr-defined]
        kept = np.eye(roots.shape[2]) - roots.swapaxes(1, 2) @ self._cov @ roots
        if roots.shape[2] == 1:
            return roots, np.maximum(kept, _EPS)
        values, vectors = np.linalg.eigh(kept)
        return roots, (vectors * np.maximum(values, _EPS)[:, None]) @ vectors.swapaxes(1, 2)

    def draw_whitened(self, rng: np.random.Generator, draws: int) -> Array:
        return self.normals.draw(rng, draws)


class RootedPosterior(RowPosterior):
    """The posterior of a prior that is given by its covariance, by which new points are known as well."""

    at = DensePosterior.at
    draw_at = DensePosterior.draw_at
    at_left_out = DensePosterior.at_left_out


class CoupledRowPosterior(RowPosterior):
    """Sites of precision Π_i = diag(π_i) − π_iπ_iᵀ / 1ᵀπ_i, from `precision` π (c, n)."""

    sites_class = CoupledSites
    precisions_class = CoupledPrecisions


class BlockRowPosterior(RowPosterior):
    """Sites of any semi-definite precision W_i with rows that sum to zero, from `precision` W (n, c, c)."""

    sites_class = BlockSites
    precisions_class = BlockPrecisions
