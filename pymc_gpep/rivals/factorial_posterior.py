"""Gaussian posterior with independent latent values: predictions and draws.

A variance of 0 marks a point without factor, for example without an observation. Given the values at points with
factors, such a point has its prior distribution. Let K be the prior covariance. In formulas a matrix P replaces K⁻¹. It
is the inverse of K at points with factors, and 0 at all other points.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.posterior import PosteriorOf
from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.gaussians.prior_form import PosteriorAlgebra, PriorForm, scaled_symmetric
from pymc_gpep.gaussians.sites import SiteForm, Sites
from pymc_gpep.kernels.linalg.lapack import inverse_from_cholesky
from pymc_gpep.solvers.site_algebra import NO_COVARIANCE, Moved, NotPositiveDefiniteError
from pymc_gpep.solvers.team import ALONE, Team


@dataclass(frozen=True, eq=False)
class FactorialSites(Sites):
    """Sites with which latent values are independent in the posterior. `precision` (c, n) is the posterior variance v.

    Sites have the precision Π = diag(1/v) − P, for the prior precision P of points with factors. It is not
    block-diagonal, and may have negative eigenvalues.

    Attributes
    ----------
    prior : DensePrior
        Prior whose precision is subtracted.
    """

    prior: DensePrior

    form = SiteForm.FACTORIAL
    pointwise = False

    @classmethod
    def of(cls, precision: Array, location: Array, prior: Any) -> Self:
        return cls(precision, location, prior)

    def product(self, f: Array) -> Array:
        own = np.divide(f, self.precision, out=np.zeros_like(f), where=self.precision != 0.0)
        return np.asarray(own - _inverse_times(self.prior, self.precision, f))

    def quadratic(self, x: Array) -> Array:
        return np.asarray((x * self.product(x)).sum((-2, -1)))


class FactorialAlgebra(PosteriorAlgebra):
    """Algebra of a posterior N(μ, diag(v)) at the points of the data, for variances v (c, n).

    With Π = diag(1/v) − P, (Π⁻¹ + K)⁻¹ = P − P diag(v) P. Here P is the inverse of the prior covariance K for the
    points with factors, see the module. Given values at the data, latent functions at new points follow the prior.
    Variances may exceed prior variances.
    """

    prior: Any

    def __init__(self, prior: Any, n_functions: int, team: Team = ALONE) -> None:
        self.prior = prior

    def factorise(self, precision: Array) -> tuple[bool, float]:
        self._v, self._has = precision, _has_factors(precision)
        diagonal = _roots(self.prior, self._has).diagonal(axis1=1, axis2=2)
        logs = np.broadcast_to(np.log(diagonal), (len(precision), int(self._has.sum())))
        return True, float(2.0 * logs.sum() - np.log(precision[:, self._has]).sum())

    def weights(self, force: Array, out: Array) -> None:
        """See `SiteAlgebra`. For prior mean m, weights are P(μ − m), and μ − m is v times `force`."""
        out[:] = _inverse_times(self.prior, self._v, self._v * force)

    def marginal_covariances(self) -> Array:
        return np.asarray(self._variances.T[:, :, None] * np.eye(len(self._v)))

    def pulled(self, f: Array) -> Array:
        moved = _inverse_times(self.prior, self._v, f)
        return np.asarray(moved - _inverse_times(self.prior, self._v, self._v * moved))

    def taken(self) -> float:
        # The trace of ΠΣ, for Σ = diag(v): ΠΣ = I − P diag(v) at points with factors, and 0 at points without factors.
        kept = float((self._inverses.diagonal(axis1=1, axis2=2) * self._v).sum())
        return self._v[:, self._has].size - kept

    @cached_property
    def _variances(self) -> Array:
        """Variances of all points, (c, n)."""
        if self._has.all():
            return self._v
        variances, k = self._v.copy(), self.prior.k
        without = k.diagonal(axis1=1, axis2=2)[:, ~self._has]
        own = np.broadcast_to(without, (len(variances), without.shape[1]))
        variances[:, ~self._has] = self.covariance_at(k[:, ~self._has], own).diagonal(axis1=1, axis2=2).T
        return variances

    @cached_property
    def _inverses(self) -> Array:
        """P as an array (1 or c, n, n)."""
        inverses = _roots(self.prior, self._has).copy()
        for matrix in inverses:
            inverse_from_cholesky(matrix)
        whole = np.zeros_like(self.prior.k)
        pairs = self._has[:, None] & self._has
        whole[:, pairs] = [scaled_symmetric(matrix, np.ones(len(matrix))).ravel() for matrix in inverses]
        return whole

    def gradient(self, b: Array, moved: Moved | None = None, x: Array | None = None) -> Array:
        inverses = self._inverses
        of_k = 0.5 * (b[:, :, None] * b[:, None] - inverses + (inverses * self._v[:, None]) @ inverses)
        of_k = 0.5 * (of_k + of_k.swapaxes(1, 2))
        return of_k if len(self.prior.k) > 1 else of_k.sum(0, keepdims=True)

    def covariance_at(self, left: Array, variance: Array) -> Array:
        c, m = variance.shape
        cross, left = left, np.matmul(left, self._inverses)  # Coefficients of the regression on the values at the data.
        kept = variance - np.einsum("kmn,kmn->km", *np.broadcast_arrays(left, cross))
        cov = np.zeros((m, c, c))
        spread = np.einsum("kmn,kn->km", np.broadcast_to(left**2, (c, *left.shape[1:])), self._v)
        cov[:, range(c), range(c)] = (np.maximum(kept, 0.0) + spread).T
        return cov

    def joint_covariance(self, left: Array, prior: Array) -> Array:
        c, q = len(self._v), left.shape[-1]
        half = self._inverses @ left
        own = prior - left.swapaxes(1, 2) @ half + half.swapaxes(1, 2) @ (self._v[:, :, None] * half)
        cov = np.zeros((c, q, c, q))
        cov[range(c), :, range(c)] = own
        return cov

    def marginal_variance(self, left: Array, prior: Array) -> Array:
        half = self._inverses @ left
        own = prior.diagonal(axis1=-2, axis2=-1) - np.einsum("kji,kji->ki", *np.broadcast_arrays(left, half))
        return own + np.einsum("kji,kj->ki", np.broadcast_to(half**2, (len(own), *left.shape[1:])), self._v)

    def cavities(self, mean: Array, cov: Array, weights: Array) -> tuple[Array, Array]:
        """Return means (n, c) and covariances (n, c, c) of points, each without the factor of the point.

        For the prior N(m, K), f_i given all f_j has the variance D_i = 1 / [K⁻¹]_ii and the mean m_i − D_i Σ_j [K⁻¹]_ij
        (f_j − m_j). In the posterior all f_j are independent, with variances v_j.
        """
        c, n = self._v.shape
        inverses = np.broadcast_to(self._inverses, (c, n, n))
        has = np.broadcast_to(self._has, (c, n))
        width = np.divide(1.0, inverses.diagonal(axis1=1, axis2=2), out=np.zeros((c, n)), where=has)
        others = inverses**2
        others[:, range(n), range(n)] = 0.0
        wide = width + width**2 * np.einsum("kij,kj->ki", others, self._v)
        wide = np.where(has, wide, self._variances)
        return (mean - width * weights).T, wide.T[:, :, None] * np.eye(c)

    def deviations(self, rng: np.random.Generator, draws: int, prior: PriorForm) -> Array:
        """See `PosteriorAlgebra`. Draws of the prior are conditioned on draws of the values at points with factors."""
        c, n = self._v.shape
        noise = rng.standard_normal((draws, c, n)) * np.sqrt(self._v)
        roots = np.broadcast_to(_roots(self.prior, np.ones(n, dtype=bool)), (c, n, n))
        if self._has.all():
            solved = [
                solve_triangular(root, own.T, lower=True).T
                for root, own in zip(roots, noise.swapaxes(0, 1), strict=True)
            ]
            return np.stack(solved, axis=1)
        z = rng.standard_normal((draws, c, n))
        apart = noise - np.einsum("kij,skj->ski", roots, z)
        return np.asarray(z + np.einsum("kji,skj->ski", roots, _inverse_times(self.prior, self._v, apart)))


def _has_factors(v: Array) -> NDArray[np.bool_]:
    """Return a mask (n,) of the points that have a factor."""
    return np.asarray((v != 0.0).any(axis=0))


def _roots(prior: DensePrior, points: NDArray[np.bool_]) -> Array:
    """Return Cholesky factors (1 or c, m, m) of the prior covariance of the points in a mask."""
    if not points.all():
        prior = DensePrior(prior.k[:, points][:, :, points], prior.mean[:, points])
    try:
        return prior.roots
    except NotPositiveDefiniteError as error:
        raise NotPositiveDefiniteError(NO_COVARIANCE) from error


def _inverse_times(prior: DensePrior, v: Array, f: Array) -> Array:
    """Return P f for f (..., c, n), where P is the prior precision of the points with a factor."""
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


FACTORIAL = PosteriorOf(DensePrior, FactorialSites, FactorialAlgebra)
