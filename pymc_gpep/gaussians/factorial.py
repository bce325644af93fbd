"""The Gaussian posterior of latent values that are independent of each other: prediction and draws."""

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from scipy.linalg import solve_triangular

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.dense_posterior import NO_COVARIANCE, DensePosterior, scaled_symmetric
from pymc_gpep.gaussians.dense_prior import DensePrior
from pymc_gpep.gaussians.prior import NotPositiveDefiniteError
from pymc_gpep.gaussians.sites import SiteForm, Sites
from pymc_gpep.kernels.linalg.lapack import inverse_from_cholesky

__all__ = ["FactorialPosterior", "FactorialSites"]


@dataclass(frozen=True, eq=False)
class FactorialSites(Sites):
    """What makes latent values of a prior independent, Π = Dg(1/v) − K⁻¹, with the v in `precision` (c, n).

    It is not block-diagonal, and may have negative eigenvalues: at the points together it takes the prior off again.

    Attributes
    ----------
    prior : DensePrior
        The one that is taken off.
    """

    prior: DensePrior

    form = SiteForm.FACTORIAL
    pointwise = False

    def product(self, f: Array) -> Array:
        return np.asarray(f / self.precision - _inverse_times(self.prior, f))

    def quadratic(self, x: Array) -> Array:
        return np.asarray((x**2 / self.precision - x * _inverse_times(self.prior, x)).sum((-2, -1)))


class FactorialPosterior(DensePosterior):
    """N(μ, Dg(v)) at the points of the data, from `precision` v (c, n): M = K⁻¹ − K⁻¹ Dg(v) K⁻¹.

    The values there being given, the latent functions elsewhere follow the prior: variances at new points may exceed
    those of the prior.
    """

    sites_class = FactorialSites

    @classmethod
    def of(cls, prior: DensePrior, sites: Sites) -> Self:
        # b = K⁻¹(μ − m), with μ = v ν as Π + K⁻¹ = Dg(1/v) but for the pull K⁻¹m of the prior.
        pull = _inverse_times(prior, prior.mean)
        mean = sites.precision * (sites.location + pull)
        posterior = cls(prior, sites.precision, _inverse_times(prior, mean) - pull, mean)
        posterior.sites = sites
        return posterior

    @cached_property
    def sites(self) -> Sites:
        """The sites, which know the prior that they take off."""
        unlocated = FactorialSites(self.precision, self.weights, self.prior)
        return FactorialSites(self.precision, self.weights + unlocated.product(self.mean), self.prior)

    @property
    def log_determinant(self) -> float:
        roots = np.broadcast_to(_roots(self.prior), (*self.precision.shape, self.precision.shape[1]))
        return float(2.0 * np.log(roots.diagonal(axis1=1, axis2=2)).sum() - np.log(self.precision).sum())

    @property
    def divergence(self) -> float:
        # Here ΠΣ = I − K⁻¹ Dg(v).
        kept = float((self._inverses.diagonal(axis1=1, axis2=2) * self.precision).sum())
        return 0.5 * (kept - self.precision.size) - self.relative_log_normaliser

    def marginals(self) -> tuple[Array, Array]:
        return self.mean, self.precision.T[:, :, None] * np.eye(len(self.precision))

    @cached_property
    def _inverses(self) -> Array:
        """K⁻¹, (1 or c, n, n)."""
        inverses = _roots(self.prior).copy()
        for matrix in inverses:
            inverse_from_cholesky(matrix)
        return np.stack([scaled_symmetric(matrix, np.ones(len(matrix))) for matrix in inverses])

    def derivatives(self) -> tuple[Array, Array]:
        inverses, b = self._inverses, self.weights
        of_k = 0.5 * (b[:, :, None] * b[:, None] - inverses + (inverses * self.precision[:, None]) @ inverses)
        of_k = 0.5 * (of_k + of_k.swapaxes(1, 2))
        return of_k if len(self.prior.k) > 1 else of_k.sum(0, keepdims=True), b.copy()

    def _covariance_at(self, k_cross: Array, k_new: Array) -> Array:
        c, m = k_new.shape
        left = np.matmul(k_cross, self._inverses)  # what the values at the data say of those elsewhere
        kept = k_new - np.einsum("kmn,kmn->km", *np.broadcast_arrays(left, k_cross))
        cov = np.zeros((m, c, c))
        spread = np.einsum("kmn,kn->km", np.broadcast_to(left**2, (c, *left.shape[1:])), self.precision)
        cov[:, range(c), range(c)] = (np.maximum(kept, 0.0) + spread).T
        return cov

    def joint_covariance(self, left: Array, prior: Array) -> Array:
        c, n = self.precision.shape
        half = self._inverses @ left
        own = prior - left.swapaxes(1, 2) @ half + half.swapaxes(1, 2) @ (self.precision[:, :, None] * half)
        cov = np.zeros((c, n, c, n))
        cov[range(c), :, range(c)] = own
        return cov

    def marginal_variance(self, left: Array, prior: Array) -> Array:
        half = self._inverses @ left
        own = prior.diagonal(axis1=-2, axis2=-1) - np.einsum("kji,kji->ki", *np.broadcast_arrays(left, half))
        c, n = self.precision.shape
        return own + np.einsum("kji,kj->ki", np.broadcast_to(half**2, (c, n, n)), self.precision)

    def cavities(self, mean: Array, cov: Array) -> tuple[Array, Array]:
        """Mean (n, c) and covariance (n, c, c) of each point given the distribution of the others.

        Given their values the mean is m_i − D_i Σ_{j≠i} [K⁻¹]_ij (f_j − m_j), D_i = 1 / [K⁻¹]_ii, and the variance D_i;
        they are independent, of variances v_j.
        """
        c, n = self.precision.shape
        inverses = np.broadcast_to(self._inverses, (c, n, n))
        width = 1.0 / inverses.diagonal(axis1=1, axis2=2)
        others = inverses**2
        others[:, range(n), range(n)] = 0.0
        wide = width + width**2 * np.einsum("kij,kj->ki", others, self.precision)
        return (mean - width * self.weights).T, wide.T[:, :, None] * np.eye(c)

    def site_blocks(self) -> tuple[Array, Array]:
        """There are none, since the sites do not leave points apart.

        Raises
        ------
        TypeError
            Always; `cavities` does without.
        """
        raise TypeError("Factorial sites are not of single points; ask `cavities`.")

    def draw_whitened(self, rng: np.random.Generator, draws: int) -> Array:
        c, n = self.precision.shape
        noise = rng.standard_normal((draws, c, n)) * np.sqrt(self.precision)
        residual = (self.mean - self.prior.mean + noise).transpose(1, 2, 0)
        roots = np.broadcast_to(_roots(self.prior), (c, n, n))
        solved = [solve_triangular(root, own, lower=True) for root, own in zip(roots, residual, strict=True)]
        return np.stack(solved).transpose(2, 0, 1)


def _roots(prior: DensePrior) -> Array:
    """Cholesky factors (1 or c, n, n) of the prior covariance."""
    try:
        return prior.roots
    except NotPositiveDefiniteError as error:
        raise NotPositiveDefiniteError(NO_COVARIANCE) from error


def _inverse_times(prior: DensePrior, f: Array) -> Array:
    """K⁻¹ f (..., c, n) of f of that shape."""
    c, n = prior.shape
    columns = f.reshape(-1, c, n).transpose(1, 2, 0)
    roots = np.broadcast_to(_roots(prior), (c, n, n))
    solved = [
        solve_triangular(root, solve_triangular(root, own, lower=True), lower=True, trans=1)
        for root, own in zip(roots, columns, strict=True)
    ]
    return np.stack(solved).transpose(2, 0, 1).reshape(f.shape)
