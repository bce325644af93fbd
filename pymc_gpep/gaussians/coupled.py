"""The Gaussian posterior of latent functions whose sites couple the functions of a point: prediction and draws.

The algebra is that of `pymc_gpep.kernels.gaussians.coupled` (nested EP paper, appendix B); nested EP and the Laplace
approximation of a softmax share it, since their sites have the same form.
"""

from functools import cached_property
from typing import Self

import numpy as np
from scipy.linalg import solve_triangular
from scipy.linalg.blas import dsymm

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.posterior import NO_COVARIANCE, DensePosterior, scaled_symmetric
from pymc_gpep.gaussians.prior import DensePrior, NotPositiveDefiniteError
from pymc_gpep.gaussians.sites import FLOOR, CoupledSites, Sites
from pymc_gpep.gaussians.whitening import CoupledWhitening
from pymc_gpep.kernels.gaussians.coupled import latent_weights
from pymc_gpep.solvers.dense_form import evidence_gradient, factorise, marginal_moments
from pymc_gpep.solvers.problem import own_matrix
from pymc_gpep.solvers.team import gather


class CoupledPosterior(DensePosterior):
    """Sites of precision Π_i = diag(π_i) − π_iπ_iᵀ / 1ᵀπ_i, from `precision` π (c, n)."""

    sites_class = CoupledSites
    whitens = True

    @classmethod
    def of(cls, prior: DensePrior, sites: Sites) -> Self:
        posterior = cls(prior, sites.precision, np.empty(prior.shape))
        inverses, p, _ = posterior._factorised
        force = np.ascontiguousarray(sites.slope(prior.mean))
        latent_weights(inverses, p, posterior.precision, force, posterior.weights)
        posterior.sites = sites
        return posterior

    @cached_property
    def _factorised(self) -> tuple[Array, Array, float]:
        """A_k⁻¹ (c, n, n) in the lower triangles, the Cholesky factor of P = Σ B_k (n, n), and log|I + KΠ|."""
        c, n = self.precision.shape
        inverses, p = np.empty((c, n, n)), np.empty((n, n))
        with np.errstate(all="ignore"):
            ok, log_det = factorise(self.prior.k, self.precision, inverses, p)
            log_det -= np.log(self.precision.sum(0)).sum()
        if not ok:
            raise NotPositiveDefiniteError(NO_COVARIANCE)
        return inverses, np.tril(p), float(log_det)

    @property
    def _factors(self) -> tuple[Array, Array]:
        """B_k (c, n, n), and the Cholesky factor of P (n, n)."""
        inverses, p, _ = self._factorised
        roots = np.sqrt(self.precision)
        return np.stack([scaled_symmetric(own, root) for own, root in zip(inverses, roots, strict=True)]), p

    def smoothing(self) -> tuple[Array, Array]:
        return self._factors[0], self._shared

    @cached_property
    def _shared(self) -> Array:
        """T_k = B_k P⁻ᵀ (c, n, n)."""
        b, p = self._factors
        return np.stack([solve_triangular(p, own, lower=True, check_finite=False).T for own in b])

    @property
    def log_determinant(self) -> float:
        return self._factorised[2]

    def marginals(self) -> tuple[Array, Array]:
        inverses, p, _ = self._factorised
        c, n = self.weights.shape
        cov = np.empty((n, c, c))
        space = np.empty_like(inverses), np.empty_like(self.weights)
        marginal_moments(self.prior.k, inverses, p, self.precision, self.weights, *space, cov)
        return self.mean, cov

    def derivatives(self) -> tuple[Array, Array]:
        inverses, p, _ = self._factorised
        gradient = np.empty_like(self.prior.k)
        evidence_gradient(inverses, p, self.precision, self.weights, np.empty_like(p), gradient)
        return gradient, self.weights.copy()

    def whitening(self) -> CoupledWhitening:
        inverses, p, _ = self._factorised
        return CoupledWhitening(self.prior, self.sites, self.mean, self.log_normaliser, inverses, p)

    def _covariance_at(self, k_cross: Array, k_new: Array) -> Array:
        c, m = k_new.shape
        if c * m < self.weights.shape[1]:
            return self._covariance_at_few(k_cross, k_new)
        _, p, _ = self._factorised
        # K_*BKᵀ_* is Z Yᵀ, Z = K_*T and Y = K_*P. Where functions share K_*, their Z sum to Y, since Σ B_k = P Pᵀ.
        y = k_cross @ p
        z = np.empty((c, m, p.shape[0]))
        own = c - 1 if len(k_cross) == 1 else c
        np.matmul(k_cross, self._shared[:own], out=z[:own])
        if own < c:
            np.subtract(y[0], z[:own].sum(axis=0), out=z[own])
        variance = k_new - np.einsum("kmn,kmn->km", z, np.broadcast_to(y, z.shape))
        by_point = z.transpose(1, 0, 2)
        cov = by_point @ by_point.swapaxes(1, 2)
        cov[:, range(c), range(c)] += np.maximum(variance, 0.0).T
        return np.asarray(cov)

    def _covariance_at_few(self, k_cross: Array, k_new: Array) -> Array:
        """Without the products of matrices that many points share."""
        inverses, p, _ = self._factorised
        roots = np.sqrt(self.precision)
        c, m = k_new.shape
        n = p.shape[0]

        def smooth(a: int) -> Array:
            """K_*a B_a, without B_a: points are predicted in many parts."""
            scaled = own_matrix(k_cross, a) * roots[a]
            return np.asarray(dsymm(1.0, inverses[a].T, scaled.T).T) * roots[a]

        with gather(n) as team:
            smoothed = np.stack(team.each(smooth, range(c)))
        variance = k_new - np.einsum("kmn,kmn->km", smoothed, np.broadcast_to(k_cross, (c, m, n)))
        shared = solve_triangular(p, smoothed.reshape(c * m, n).T, lower=True).T.reshape(c, m, n)
        cov = np.einsum("kmn,lmn->mkl", shared, shared, optimize=True)
        cov[:, range(c), range(c)] += np.maximum(variance, 0.0).T
        return np.asarray(cov)

    def joint_covariance(self, left: Array, prior: Array) -> Array:
        b, p = self._factors
        (c, n), q = self.precision.shape, left.shape[-1]
        left_b = np.matmul(left.swapaxes(1, 2), b)
        shared = solve_triangular(p, left_b.reshape(c * q, n).T, lower=True).T
        cov = (shared @ shared.T).reshape(c, q, c, q)
        for a, own in enumerate(np.broadcast_to(prior - left_b @ left, (c, q, q))):
            cov[a, :, a, :] += own
        return cov

    def marginal_variance(self, left: Array, prior: Array) -> Array:
        b, p = self._factors
        (c, n), q = self.precision.shape, left.shape[-1]
        left_b = np.matmul(left.swapaxes(1, 2), b)
        shared = solve_triangular(p, left_b.reshape(c * q, n).T, lower=True)
        own = np.broadcast_to(prior.diagonal(axis1=-2, axis2=-1), (c, q))
        own = own - np.einsum("kij,kji->ki", left_b, np.broadcast_to(left, (c, n, q)))
        return own + np.einsum("ji,ji->i", shared, shared).reshape(c, q)

    def site_blocks(self) -> tuple[Array, Array]:
        # R = D^½ (I − uuᵀ) with u = (π / 1ᵀπ)^½, and E = uuᵀ + D^{-½} M_ii D^{-½}, in which nothing cancels.
        b, p = self._factors
        c, n = self.precision.shape
        root = np.sqrt(np.maximum(self.precision, FLOOR))
        unit = (root / np.sqrt((root**2).sum(0))).T
        shared = solve_triangular(p, b.reshape(c * n, n).T, lower=True).reshape(n, c, n) / root
        outer = unit[:, :, None] * unit[:, None, :]
        kept = outer - np.einsum("jki,jli->ikl", shared, shared, optimize=True)
        own = b.diagonal(axis1=1, axis2=2) / root**2
        kept[:, range(c), range(c)] += np.where(self.precision > FLOOR, own, 1.0).T
        return root.T[:, :, None] * (np.eye(c) - outer), kept

    def draw_whitened(self, rng: np.random.Generator, draws: int) -> Array:
        b, p = self._factors
        roots = self.prior.roots
        c, n = self.precision.shape
        z = rng.standard_normal((c, roots.shape[-1], draws))
        noise = rng.standard_normal((c, n, draws)) * np.sqrt(self.precision)[..., None]
        noise -= (self.precision / self.precision.sum(0))[..., None] * noise.sum(0)
        observed = b @ (roots @ z + self.prior.k @ noise)
        half = solve_triangular(p, observed.sum(0), lower=True)
        observed -= b @ solve_triangular(p, half, lower=True, trans=1)
        z += roots.swapaxes(1, 2) @ (self.weights[..., None] + noise - observed)
        return z.transpose(2, 0, 1)
