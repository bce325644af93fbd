"""The Gaussian posterior of latent values that are independent of each other: prediction and draws.

A variance v of 0 stands for no factor: such points, of which nothing was observed, follow the prior given the others.
Let P be the inverse of the prior covariance of the others, with 0 in the rows and columns of such points. Then all that
holds of K⁻¹ where all points have a factor holds of P.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.posterior import NO_COVARIANCE, DensePosterior, scaled_symmetric
from pymc_gpep.gaussians.posteriors import PosteriorOf
from pymc_gpep.gaussians.prior import DensePrior, NotPositiveDefiniteError
from pymc_gpep.gaussians.sites import SiteForm, Sites
from pymc_gpep.kernels.linalg.lapack import inverse_from_cholesky


@dataclass(frozen=True, eq=False)
class FactorialSites(Sites):
    """Sites that make latent values of a prior independent, Π = Dg(1/v) − P, with the v in `precision` (c, n).

    It is not block-diagonal, and may have negative eigenvalues: at the points together it takes the prior off again.

    Attributes
    ----------
    prior : DensePrior
        The prior that is taken off.
    """

    prior: DensePrior

    form = SiteForm.FACTORIAL
    pointwise = False

    def product(self, f: Array) -> Array:
        own = np.divide(f, self.precision, out=np.zeros_like(f), where=self.precision != 0.0)
        return np.asarray(own - _inverse_times(self.prior, self.precision, f))

    def quadratic(self, x: Array) -> Array:
        return np.asarray((x * self.product(x)).sum((-2, -1)))


class FactorialPosterior(DensePosterior):
    """N(μ, Dg(v)) at the points of the data, from `precision` v (c, n): M = P − P Dg(v) P.

    The values there being given, the latent functions elsewhere follow the prior: variances at new points may exceed
    those of the prior.
    """

    sites_class = FactorialSites

    @classmethod
    def of(cls, prior: DensePrior, sites: Sites) -> Self:
        # b = P(μ − m), with μ = v ν as Π + P = Dg(1/v) but for the pull Pm of the prior.
        v = sites.precision
        pull = _inverse_times(prior, v, prior.mean)
        mean = v * (sites.location + pull)
        weights = _inverse_times(prior, v, mean) - pull
        if not (has := _has_factors(v)).all():
            mean[:, ~has] = (prior.mean + np.matmul(prior.k, weights[..., None])[..., 0])[:, ~has]
        posterior = cls(prior, v, weights, mean)
        posterior.sites = sites
        return posterior

    @cached_property
    def sites(self) -> Sites:
        """The sites, which know the prior that they take off."""
        unlocated = FactorialSites(self.precision, self.weights, self.prior)
        return FactorialSites(self.precision, self.weights + unlocated.product(self.mean), self.prior)

    @property
    def log_determinant(self) -> float:
        has = _has_factors(self.precision)
        diagonal = _roots(self.prior, has).diagonal(axis1=1, axis2=2)
        logs = np.broadcast_to(np.log(diagonal), (len(self.precision), int(has.sum())))
        return float(2.0 * logs.sum() - np.log(self.precision[:, has]).sum())

    @property
    def divergence(self) -> float:
        # Here ΠΣ = I − P Dg(v) among points with factors, and 0 among the others.
        kept = float((self._inverses.diagonal(axis1=1, axis2=2) * self.precision).sum())
        return 0.5 * (kept - self.precision[:, _has_factors(self.precision)].size) - self.relative_log_normaliser

    def marginals(self) -> tuple[Array, Array]:
        return self.mean, self._variances.T[:, :, None] * np.eye(len(self.precision))

    @cached_property
    def _variances(self) -> Array:
        """Variances of all points, (c, n)."""
        has = _has_factors(self.precision)
        if has.all():
            return self.precision
        variances, k = self.precision.copy(), self.prior.k
        own = np.broadcast_to(k.diagonal(axis1=1, axis2=2)[:, ~has], (len(variances), int((~has).sum())))
        variances[:, ~has] = self._covariance_at(k[:, ~has], own).diagonal(axis1=1, axis2=2).T
        return variances

    @cached_property
    def _inverses(self) -> Array:
        """P, (1 or c, n, n)."""
        has = _has_factors(self.precision)
        inverses = _roots(self.prior, has).copy()
        for matrix in inverses:
            inverse_from_cholesky(matrix)
        whole = np.zeros_like(self.prior.k)
        whole[:, has[:, None] & has] = [scaled_symmetric(matrix, np.ones(len(matrix))).ravel() for matrix in inverses]
        return whole

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
        c, q = len(self.precision), left.shape[-1]
        half = self._inverses @ left
        own = prior - left.swapaxes(1, 2) @ half + half.swapaxes(1, 2) @ (self.precision[:, :, None] * half)
        cov = np.zeros((c, q, c, q))
        cov[range(c), :, range(c)] = own
        return cov

    def marginal_variance(self, left: Array, prior: Array) -> Array:
        half = self._inverses @ left
        own = prior.diagonal(axis1=-2, axis2=-1) - np.einsum("kji,kji->ki", *np.broadcast_arrays(left, half))
        return own + np.einsum("kji,kj->ki", np.broadcast_to(half**2, (len(own), *left.shape[1:])), self.precision)

    def cavities(self, mean: Array, cov: Array) -> tuple[Array, Array]:
        """Mean (n, c) and covariance (n, c, c) of each point given the distribution of the others.

        Given their values the mean is m_i − D_i Σ_{j≠i} [K⁻¹]_ij (f_j − m_j), D_i = 1 / [K⁻¹]_ii, and the variance is
        D_i. The others are independent, with variances v_j.
        """
        c, n = self.precision.shape
        inverses = np.broadcast_to(self._inverses, (c, n, n))
        has = np.broadcast_to(_has_factors(self.precision), (c, n))
        width = np.divide(1.0, inverses.diagonal(axis1=1, axis2=2), out=np.zeros((c, n)), where=has)
        others = inverses**2
        others[:, range(n), range(n)] = 0.0
        wide = width + width**2 * np.einsum("kij,kj->ki", others, self.precision)
        wide = np.where(has, wide, self._variances)
        return (mean - width * self.weights).T, wide.T[:, :, None] * np.eye(c)

    def site_blocks(self) -> tuple[Array, Array]:
        """Raise an error, since the sites do not leave points apart.

        Raises
        ------
        TypeError
            Always; `cavities` needs no blocks.
        """
        raise TypeError("Factorial sites are not of single points; ask `cavities`.")

    def draw_whitened(self, rng: np.random.Generator, draws: int) -> Array:
        c, n = self.precision.shape
        has = _has_factors(self.precision)
        noise = rng.standard_normal((draws, c, n))
        residual = self.mean - self.prior.mean + noise * np.sqrt(self.precision)
        roots = np.broadcast_to(_roots(self.prior, np.ones(n, dtype=bool)), (c, n, n))
        if has.all():
            solved = [
                solve_triangular(root, own.T, lower=True).T
                for root, own in zip(roots, residual.swapaxes(0, 1), strict=True)
            ]
            return np.stack(solved, axis=1)
        # A draw z from the prior, moved to where it has the values at points with factors: z + Lᵀ P (r − L z).
        z = rng.standard_normal((draws, c, n))
        apart = residual - np.einsum("kij,skj->ski", roots, z)
        return np.asarray(z + np.einsum("kji,skj->ski", roots, _inverse_times(self.prior, self.precision, apart)))


def _has_factors(v: Array) -> NDArray[np.bool_]:
    """Which points (n,) have a factor."""
    return np.asarray((v != 0.0).any(axis=0))


def _roots(prior: DensePrior, points: NDArray[np.bool_]) -> Array:
    """Cholesky factors (1 or c, m, m) of the prior covariance of some of the points."""
    if not points.all():
        prior = DensePrior(prior.k[:, points][:, :, points], prior.mean[:, points])
    try:
        return prior.roots
    except NotPositiveDefiniteError as error:
        raise NotPositiveDefiniteError(NO_COVARIANCE) from error


def _inverse_times(prior: DensePrior, v: Array, f: Array) -> Array:
    """P f (..., c, n) of f of that shape."""
    c, n = prior.shape
    has = _has_factors(v)
    columns = f.reshape(-1, c, n)[:, :, has].transpose(1, 2, 0)
    roots = np.broadcast_to(_roots(prior, has), (c, *columns.shape[1:2] * 2))
    solved = [
        solve_triangular(root, solve_triangular(root, own, lower=True), lower=True, trans=1)
        for root, own in zip(roots, columns, strict=True)
    ]
    found = np.zeros((len(columns[0].T), c, n))
    found[:, :, has] = np.stack(solved).transpose(2, 0, 1)
    return found.reshape(f.shape)


FACTORIAL = PosteriorOf(DensePrior, SiteForm.FACTORIAL, FactorialPosterior)
