"""The Gaussian posterior of latent functions whose sites leave the classes independent: prediction and draws."""

from functools import cached_property
from typing import Self

import numpy as np
from scipy.linalg.lapack import dtrtri

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.posterior import NO_COVARIANCE, DensePosterior, scaled_symmetric
from pymc_gpep.gaussians.prior import DensePrior, NotPositiveDefiniteError
from pymc_gpep.gaussians.sites import FLOOR, IndependentSites, Sites
from pymc_gpep.gaussians.whitening import IndependentWhitening
from pymc_gpep.kernels.gaussians.independent import (
    add_function_gradient,
    decompose_function,
    function_variance,
    function_weights,
)
from pymc_gpep.kernels.linalg.lapack import inverse_from_cholesky, solve_right_transposed
from pymc_gpep.solvers.problem import own_matrix


class IndependentPosterior(DensePosterior):
    """Sites of precision diag(π) ≥ 0, different for each class and point, from `precision` π (c, n): M is B.

    B is block-diagonal with the blocks B_k = D_k^½ (I + D_k^½ K_k D_k^½)⁻¹ D_k^½, D_k = diag(π_k).
    """

    sites_class = IndependentSites
    whitens = True

    @classmethod
    def of(cls, prior: DensePrior, sites: Sites) -> Self:
        posterior = cls(prior, sites.precision, np.empty(prior.shape))
        inverses = posterior._inverses
        for a, own in enumerate(zip(posterior.precision, sites.location, prior.mean, posterior.weights, strict=True)):
            function_weights(own_matrix(inverses, a), *own)
        posterior.sites = sites
        return posterior

    @cached_property
    def _decomposed(self) -> tuple[Array, float]:
        """A_k's Cholesky factors (1 or c, n, n), one where all classes have the same; and log|I + KΠ|."""
        shared = len(self.prior.k) == 1 and (self.precision == self.precision[0]).all()
        precision = self.precision[:1] if shared else self.precision
        n = precision.shape[1]
        lower = np.empty((len(precision), n, n))
        log_det = 0.0
        for a, (matrix, pi) in enumerate(zip(lower, precision, strict=True)):
            ok, own = decompose_function(own_matrix(self.prior.k, a), pi, matrix)
            if not ok:
                raise NotPositiveDefiniteError(NO_COVARIANCE)
            log_det += own
        return lower, log_det * len(self.precision) / len(precision)

    @cached_property
    def _inverses(self) -> Array:
        """A_k⁻¹, (1 or c, n, n), in the lower triangle: one where all classes have the same."""
        inverses = self._decomposed[0].copy()
        for matrix in inverses:
            inverse_from_cholesky(matrix)
        return inverses

    @property
    def _b(self) -> Array:
        """B_k, (1 or c, n, n)."""
        inverses = self._inverses
        roots = np.sqrt(self.precision[: len(inverses)])
        return np.stack([scaled_symmetric(own, root) for own, root in zip(inverses, roots, strict=True)])

    def smoothing(self) -> tuple[Array, None]:
        return self._b, None

    @property
    def log_determinant(self) -> float:
        return self._decomposed[1]

    @property
    def divergence(self) -> float:
        # tr ΠΣ = n − tr A⁻¹ for each class, and tr A⁻¹ is the sum of squares of L⁻¹, A = L Lᵀ: half an inverse.
        lower, _ = self._decomposed
        kept = sum(float((dtrtri(own.T)[0] ** 2).sum()) for own in map(np.tril, lower))
        taken = self.precision.size - kept * len(self.precision) / len(lower)
        return -self.relative_log_normaliser - 0.5 * taken

    def marginals(self) -> tuple[Array, Array]:
        inverses = self._inverses
        variance = np.empty_like(self.precision)
        for a, (pi, own) in enumerate(zip(self.precision, variance, strict=True)):
            function_variance(own_matrix(self.prior.k, a), pi, own_matrix(inverses, a), own)
        return self.mean, variance.T[:, :, None] * np.eye(len(variance))

    def derivatives(self) -> tuple[Array, Array]:
        inverses = self._inverses
        gradient = np.zeros_like(self.prior.k)
        for a, (pi, b) in enumerate(zip(self.precision, self.weights, strict=True)):
            add_function_gradient(pi, own_matrix(inverses, a), b, own_matrix(gradient, a))
        return gradient, self.weights.copy()

    def whitening(self) -> IndependentWhitening:
        inverses = self._inverses
        full = np.stack([scaled_symmetric(own, np.ones(len(own))) for own in inverses])
        return IndependentWhitening(self.prior, self.sites, self.mean, self.log_normaliser, full)

    def _covariance_at(self, k_cross: Array, k_new: Array) -> Array:
        c, m = k_new.shape
        lower, _ = self._decomposed
        explained = np.empty((max(len(lower), len(k_cross)), m))
        for a, own in enumerate(explained):
            rows = np.multiply(own_matrix(k_cross, a), np.sqrt(self.precision[a]), order="C")  # as the kernel reads it
            solve_right_transposed(own_matrix(lower, a), rows)
            own[:] = np.einsum("ij,ij->i", rows, rows)
        cov = np.zeros((m, c, c))
        cov[:, range(c), range(c)] = np.maximum(k_new - explained, 0.0).T
        return cov

    def joint_covariance(self, left: Array, prior: Array) -> Array:
        c, q = len(self.precision), left.shape[-1]
        cov = np.zeros((c, q, c, q))
        for a, own in enumerate(np.broadcast_to(prior - left.swapaxes(1, 2) @ self._b @ left, (c, q, q))):
            cov[a, :, a, :] = own
        return cov

    def marginal_variance(self, left: Array, prior: Array) -> Array:
        explained = np.empty((len(self.precision), left.shape[-1]))
        lower = np.empty(self.prior.k.shape[1:])
        for a, (pi, own) in enumerate(zip(self.precision, explained, strict=True)):
            # With A = L Lᵀ a norm of L⁻¹ D^½ times a column: neither an inverse nor a product.
            decompose_function(own_matrix(self.prior.k, a), pi, lower)
            rows = np.ascontiguousarray((np.sqrt(pi)[:, None] * own_matrix(left, a)).T)
            solve_right_transposed(lower, rows)
            own[:] = np.einsum("ij,ij->i", rows, rows)
        return np.asarray(prior.diagonal(axis1=-2, axis2=-1) - explained)

    def site_blocks(self) -> tuple[Array, Array]:
        b = self._b
        unit = np.eye(len(self.precision))
        own = b.diagonal(axis1=1, axis2=2) / np.maximum(self.precision, FLOOR)
        kept = np.where(self.precision > FLOOR, own, 1.0)
        return np.sqrt(self.precision).T[:, :, None] * unit, kept.T[:, :, None] * unit

    def draw_whitened(self, rng: np.random.Generator, draws: int) -> Array:
        c, n = self.precision.shape
        roots = self.prior.roots
        z = rng.standard_normal((c, roots.shape[-1], draws))
        noise = rng.standard_normal((c, n, draws)) * np.sqrt(self.precision)[..., None]
        observed = self._b @ (roots @ z + self.prior.k @ noise)
        z += roots.swapaxes(1, 2) @ (self.weights[..., None] + noise - observed)
        return z.transpose(2, 0, 1)
