"""Posteriors of latent functions with a prior by rows of coefficients, and posteriors with block and signed sites.

The algebra of block sites is that of `pymc_gpep.kernels.gaussians.block_sites`: dense, in O((cn)³). Sites whose
precisions have negative eigenvalues use that of `pymc_gpep.solvers.dense_form`, with M = W − F Fᵀ.
"""

from functools import cached_property
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from scipy.linalg.lapack import dtrtri

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.posterior import NO_COVARIANCE, DensePosterior, PointsElsewhere
from pymc_gpep.gaussians.prior import DensePrior, NotPositiveDefiniteError
from pymc_gpep.gaussians.row_prior import PrecisionPrior, RowPrior
from pymc_gpep.gaussians.sites import BlockSites, CoupledSites, IndependentSites, SignedSites, Sites
from pymc_gpep.kernels.gaussians.block_sites import (
    block_gradient,
    block_marginals,
    factorise_blocks,
    project,
    smooth_blocks,
)
from pymc_gpep.kernels.linalg.lapack import multiply_functions
from pymc_gpep.solvers.coefficients import (
    BlockPrecisions,
    Coefficients,
    CoupledPrecisions,
    Entries,
    IndependentPrecisions,
    SitePrecisions,
)
from pymc_gpep.solvers.dense_form import SignedBlocks
from pymc_gpep.solvers.inducing import Block
from pymc_gpep.solvers.prior_form import EPSILON
from pymc_gpep.solvers.problem import own_matrix
from pymc_gpep.solvers.row_form import covariance_root, precision_factor
from pymc_gpep.solvers.sparse_precision import SparsePrecision
from pymc_gpep.solvers.whitened_posterior import CoupledWhitened


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
        wide = cov / np.maximum(1.0 - self.precision[0][:, None, None] * cov, EPSILON)
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
            return roots, np.maximum(kept, EPSILON)
        values, vectors = np.linalg.eigh(kept)
        return roots, (vectors * np.maximum(values, EPSILON)[:, None]) @ vectors.swapaxes(1, 2)

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


class PrecisionPosterior(RowPosterior):
    """Sites of precision diag(π) ≥ 0, from `precision` π (1, n), on f = m + A x.

    The posterior of x is N(Q⁻¹Aᵀb, P⁻¹) with P = Q + AᵀΠA; its mean is `centre` (q,).
    """

    prior: PrecisionPrior  # type: ignore[assignment]  # has what is asked of a prior by rows here

    @classmethod
    def of(cls, prior: PrecisionPrior, sites: Sites) -> Self:  # type: ignore[override]
        posterior = cls(prior, sites.precision, np.empty(prior.shape))
        force = sites.slope(prior.mean)
        posterior.centre = posterior._solved(prior.rows.sums(force[0]))
        posterior.weights = force - posterior.precision * prior.rows.products(posterior.centre)
        posterior.sites = sites
        return posterior

    @cached_property
    def covariance(self) -> SparsePrecision:
        """P, factorised."""
        found = self.prior.as_form.posterior_precision(self.precision[0])
        if found is None:
            raise NotPositiveDefiniteError(NO_COVARIANCE)
        return found

    def _solved(self, right: Array) -> Array:
        """P⁻¹ r (q,), of r (q,)."""
        return self.covariance.solve(right)

    @property
    def log_determinant(self) -> float:
        return self.covariance.log_det - self.prior.precision.log_det

    @cached_property
    def _cov(self) -> Array:
        structure, values = self.prior.structure, self.prior.as_form.values
        found = self.covariance.row_variances(structure.posterior_slots[1], structure.cells, values)
        return found[:, None, None]

    def derivatives(self) -> tuple[Array, Array]:
        """Derivatives of `log_normaliser` at fixed sites, in the array of the prior and in its mean (1, n)."""
        form = self.prior.as_form
        return form.gradient(self.covariance, self.precision[0], self.weights[0], self.centre), self.weights.copy()

    def variances_of(self, rows: Coefficients) -> Array:
        """Return the variances (m,) of T x, of rows T."""
        return self.covariance.variances(rows)

    def at_coefficients(self, rows: Coefficients, beside: Array, prior_mean: Array) -> tuple[Array, Array]:
        variance = self.variances_of(rows) + beside[0]
        return prior_mean + rows.products(self.centre)[None], variance[:, None, None]

    def root_among(self, points: NDArray[np.intp]) -> Array:
        return self.covariance.halved(self.prior.at(points)[0])[None]

    def whitened(self) -> tuple[Array, Array]:
        """Mean and variance (1, q) of x."""
        q = self.prior.n_normals
        one_each = Entries(np.arange(q)[:, None], np.ones((q, 1)), q)
        return self.centre[None], self.variances_of(one_each)[None]

    def whitened_covariance(self) -> Array:
        """Covariance (1, q, 1, q) of x."""
        return self.covariance.solve(np.eye(self.prior.n_normals))[None, :, None]

    def _halved(self, vectors: Array) -> Array:
        return np.stack([self.covariance.halved(own.T).T for own in vectors])

    def smoothing(self) -> tuple[Array, None]:
        half = self.precision[0][:, None] * self.covariance.halved(self.prior.at(np.arange(self.prior.shape[1]))[0])
        return (np.diag(self.precision[0]) - half @ half.T)[None], None

    def draw_whitened(self, rng: np.random.Generator, draws: int) -> Array:
        """Draws (draws, 1, q) of x."""
        return (self.centre + self.covariance.spread(rng.standard_normal((draws, self.prior.n_normals))))[:, None]


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
