"""Sweeps over sites on projections of whitened inducing values: EP for any factors, nested EP, variational inference.

A factor depends on the latent values f_k = m + x_k + e_k; see `pymc_gpep.solvers.sparse_sweeps`. At fixed sites, only
the factors depend on hyperparameters, through w and s in the moments of their cavities. Their derivative is the
derivative of the evidence with fixed sites. At a fixed point this equals the derivative of the evidence.

Nested EP (`CoupledSparseSweeps`): the sites also act on projections, and couple the functions. A point's site acts
on x = (x_1 … x_c), x_k = w_kᵀv_k, and has the form of a site of nested EP. Its noise is all noise around x: the noise
of the likelihood, and the residual of the features. The site follows from d scalar inner sites of the likelihood's
factors. The posterior of v couples all functions. Only differences of the functions of a point have sites; their common
part keeps its prior.

Derivatives: with fixed sites as functions of x, only the posterior of v depends on features. At a fixed point the
derivative of its normaliser equals the derivative of the evidence. With ρ = ν − Π E[x], it is μρᵀ − ΣWΠ with respect to
the features, and ρ with respect to the prior mean. A point's log normaliser depends on the sum of s_k and its cavity's
variance of x_k. The derivative in s_k is thus ½(ρ_k² − (Π − Π Cov[x] Π)_kk).

Variational inference (`SparseVISweeps`): the Gaussian of whitened inducing values that maximises a bound. The bound is
Σ_i E(m_i, v_i) − KL(q(v) ‖ N(0, I)). E is an average log likelihood, or a lower bound. It is a function of the means
and variances of the latent values of point i. At its maximum q has sites with the precisions t = −2 ∂E/∂v and the
locations ∂E/∂m + t m (Opper and Archambeau 2009). A step towards these sites follows the natural gradient, so a short
step always raises the bound. Precisions are negative where E is convex.

Derivatives: with fixed q in whitened coordinates, the divergence does not depend on hyperparameters. E does, through
w and s in the moments.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.moments.inner_ep import relative_location
from pymc_gpep.solvers.common_shift import CommonShift
from pymc_gpep.solvers.inducing import Features, RowFeatures
from pymc_gpep.solvers.site_ep import site_of, site_terms
from pymc_gpep.solvers.sparse_sweeps import Bars, LeftOut, Marginals, MatchedSites, SiteSweeps, Slopes, SparseSweeps
from pymc_gpep.solvers.team import ALONE, Team
from pymc_gpep.solvers.whitened_posterior import (
    CoupledWhitened,
    Whitened,
    WhitenedPosterior,
    coupled_precision,
    coupled_whitened,
    shared_precision,
)


class Tilted(NamedTuple):
    """Results of a rule for B points with normal latent values."""

    log_z: Array
    """Sum over factors of the log normalisers, (B,)."""
    rho: Array
    """Derivative ρ = ∂ log Z / ∂ mean for each site, (B, d)."""
    gamma: Array
    """Minus the second derivative, γ = ρ² − 2 ∂ log Z / ∂ variance, for each site, (B, d)."""


class LikelihoodFactors(NamedTuple):
    """The likelihood as factors."""

    functions: NDArray[np.int64]
    """Index of the function of each site, (n, d)."""
    tilted: Callable[[slice, Array, Array], Tilted]
    """Function that computes results for a slice of rows, from means and variances (B, d) of latent values."""
    shifts: bool
    """Whether factors depend only on differences of functions."""
    narrows: bool = True
    """Whether precisions are at least 0. A site that would need a negative precision then matches only the mean."""
    log_concave: bool = True
    """Whether factors are log-concave, so that sites need no negative precisions."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the sites, (n, d)."""
        return self.functions.shape

    def widening(self) -> "LikelihoodFactors | None":
        """Return these factors with negative site precisions allowed; None if factors are log-concave."""
        return None if self.log_concave else self._replace(narrows=False)

    def sweeps(self, features: RowFeatures, team: Team) -> "SparseEPSweeps":
        """Return the sweeps over the sites of these factors."""
        return SparseEPSweeps(features, self, team)


class _Cavities(NamedTuple):
    """Cavities of the projections at B points, one for each site, (B, d)."""

    variance: Array
    """Posterior variance v of the projection of each site."""
    keep: Array
    """Ratio of posterior to cavity variance, 1 − t v."""
    without: Array
    """(t m − ν) / (1 − t v): cavity mean minus posterior mean, in units of the variance."""
    cavity_mean: Array
    cavity_variance: Array
    tilted: Tilted


class SparseEPSweeps(SparseSweeps):
    """Sweeps of EP for one prior.

    If factors are not log-concave, a tilted distribution may be wider than its cavity. Then only a site with a negative
    precision matches its moments. With such sites the iteration may fail, or not converge, unless it starts near the
    fixed point. With `LikelihoodFactors.narrows` such a site has precision 0 and matches only the mean. This iteration
    converges, to a point near the fixed point of EP. There the evidence is not stationary in the sites, and its
    derivatives are approximate.

    Parameters
    ----------
    features : RowFeatures
    factors : LikelihoodFactors
    team : Team
        Threads for the sweeps. Results do not depend on their number.
    """

    def __init__(self, features: RowFeatures, factors: LikelihoodFactors, team: Team = ALONE) -> None:
        super().__init__(features, factors.functions, factors.shifts, team)
        self._factors = factors

    def _matched(self, rows: slice, features: Features, projected: Marginals, t: Array, nu: Array) -> MatchedSites:
        at = self._cavities(rows, features, projected, t, nu)
        if not (at.keep > 0.0).all():
            return MatchedSites(t, nu, at.variance, np.nan)
        rho, gamma = at.tilted.rho, at.tilted.gamma
        if self._factors.narrows:
            gamma = np.maximum(gamma, 0.0)
        terms = float(at.tilted.log_z.sum()) - site_terms(at.cavity_mean, at.cavity_variance, nu, t)
        return MatchedSites(*site_of(rho, gamma, at.cavity_mean, at.cavity_variance), at.variance, terms)

    def _slopes(self, rows: slice, features: Features, projected: Marginals, t: Array, nu: Array) -> Slopes:
        at = self._cavities(rows, features, projected, t, nu)
        rho, gamma = at.tilted.rho, at.tilted.gamma
        delta = 0.5 * (rho * rho - gamma)  # ∂ log Z / ∂ variance.
        of_covariance = rho * at.without + 2.0 * delta / at.keep
        return Slopes(*(self._by_function(rows, values) for values in (rho, of_covariance, delta)))

    def _cavities(self, rows: slice, features: Features, projected: Marginals, t: Array, nu: Array) -> _Cavities:
        mean, variance = (self._by_site(rows, each) for each in projected)
        prior_mean, rest = self._by_site(rows, features.mean), self._by_site(rows, self._rest(features))
        keep = 1.0 - t * variance
        without = (t * mean - nu) / keep
        cavity_mean, cavity_variance = mean + variance * without, variance / keep
        tilted = self._factors.tilted(rows, prior_mean + cavity_mean, rest + cavity_variance)
        return _Cavities(variance, keep, without, cavity_mean, cavity_variance, tilted)


class PointAverages(NamedTuple):
    """Likelihood in variational inference, by averages E of its logarithm."""

    functions: NDArray[np.int64]
    """Index of the function of each site, (n, c): each row is 0, …, c − 1."""
    terms: Callable[[slice, Array, Array], tuple[Array, Array, Array]]
    """Function that returns E (B,) and its derivatives (B, c) for a slice of rows, from means and variances (B, c)."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the sites, (n, c)."""
        return self.functions.shape

    def widening(self) -> None:
        """Return None: this solver does not use negative site precisions."""

    def sweeps(self, features: RowFeatures, team: Team) -> "SparseVISweeps":
        """Return the sweeps over the sites of these averages."""
        return SparseVISweeps(features, self, team)


class SparseVISweeps(SparseSweeps):
    """Sweeps of variational inference for one prior.

    Parameters
    ----------
    features : RowFeatures
    averages : PointAverages
    team : Team
        Threads for the sweeps. Results do not depend on their number.
    """

    def __init__(self, features: RowFeatures, averages: PointAverages, team: Team = ALONE) -> None:
        super().__init__(features, averages.functions, False, team)
        self._averages = averages

    def _matched(self, rows: slice, features: Features, projected: Marginals, t: Array, nu: Array) -> MatchedSites:
        mean, variance, value, of_mean, of_variance = self._terms(rows, features, projected)
        precision = -2.0 * of_variance
        return MatchedSites(precision, of_mean + precision * mean, variance, float(value.sum()))

    def _slopes(self, rows: slice, features: Features, projected: Marginals, t: Array, nu: Array) -> Slopes:
        *_, of_mean, of_variance = self._terms(rows, features, projected)
        return Slopes(of_mean.T, 2.0 * of_variance.T, of_variance.T)

    def _terms(self, rows: slice, features: Features, projected: Marginals) -> tuple[Array, ...]:
        """Return means and variances (B, c) of the projections, and E with its derivatives."""
        mean, variance = projected
        seen = (features.mean + mean).T, (self._rest(features) + variance).T
        return mean.T, variance.T, *self._averages.terms(rows, *map(np.ascontiguousarray, seen))

    def of_posterior(self, posterior: WhitenedPosterior) -> float:
        """Return −KL(q ‖ N(0, I))."""
        root, mean = posterior.root, posterior.mean
        log_det = 2.0 * float(np.log(root.diagonal(axis1=1, axis2=2)).sum())
        return -0.5 * (float((root * root).sum() + (mean * mean).sum()) - mean.size - log_det)


class CoupledFactors(NamedTuple):
    """Likelihood as factors of differences of utilities."""

    labels: NDArray[np.int64]
    """Labels of the points, (n,)."""
    n_functions: int
    update: Callable[..., tuple[float, float]]
    """Function that computes new inner sites, see `pymc_gpep.kernels.moments.inner_ep.noisy_inner_ep_update`."""
    site_parameters: Callable[..., float]
    """Function that computes sites from inner sites, see `pymc_gpep.kernels.moments.inner_ep.noisy_site_parameters`."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the inner sites, (n, c − 1)."""
        return len(self.labels), self.n_functions - 1

    def widening(self) -> None:
        """Return None, since factors of inner EP are log-concave."""

    def sweeps(self, features: RowFeatures, team: Team) -> "CoupledSparseSweeps":
        """Return the sweeps over the inner sites."""
        return CoupledSparseSweeps(features, self, team)


class _Rows(NamedTuple):
    """A block of rows, and their sites."""

    rows: slice
    features: Features
    w: list[Array]
    """Features of each function, (M, B)."""
    rest: Array
    """Residual variances s of each function, (c, B)."""
    pi: Array
    """Numbers π of the site precisions Π = diag(π) − ππᵀ / 1ᵀπ, (c, B)."""
    nu: Array
    """Location relative to the prior mean, (c, B)."""
    constant: float
    """Log of the sites at x = 0, where the inner variable u is integrated out."""


class CoupledSparseSweeps(SiteSweeps[_Rows, CoupledWhitened]):
    """Sweeps of nested EP for one prior.

    Parameters
    ----------
    features : RowFeatures
    factors : CoupledFactors
    team : Team
        Threads for the sweeps. Results do not depend on their number.
    """

    def __init__(self, features: RowFeatures, factors: CoupledFactors, team: Team = ALONE) -> None:
        super().__init__(features, team)
        self._factors = factors

    def _sums(self, block: _Rows) -> tuple[Array, Array]:
        """Return the sums S (cM, cM), valid in its lower triangle, and h (c, M) over the sites of a block."""
        w, pi = block.w, block.pi
        precision = shared_precision(w[0], pi) if self._shared else coupled_precision(w, pi)
        return precision, np.stack([own @ nu for own, nu in zip(w, block.nu, strict=True)])

    def _block(self, rows: slice, features: Features, sites: Array) -> _Rows:
        rest = features.rest[self._owner]
        pi, nu = np.empty((2, *rest.shape))
        constant = self._factors.site_parameters(self._factors.labels[rows], rest, *sites[:, rows], pi, nu)
        constant += relative_location(features.mean, pi, nu)
        return _Rows(rows, features, [features.w[own] for own in self._owner], rest, pi, nu, constant)

    def implied(self, precision: Array, location: Array) -> CoupledWhitened:
        return coupled_whitened(precision, location)

    def match(
        self, sites: Array, posterior: CoupledWhitened, shift: CommonShift | None, target: Array, scale: Array
    ) -> tuple[float, float]:
        """See `SiteSweeps`. A change to NaN counts as infinite, so the iteration restarts from zero sites."""

        def part(at: _Rows) -> tuple[float, float]:
            rows, (mean, cov) = at.rows, self._moments(posterior, at)
            mean += at.features.mean
            given: Any = self._factors.labels[rows], at.rest, *sites[:, rows], 1, 0.0
            terms, residual = self._factors.update(mean, cov, *given, *target[:, rows], scale[rows])
            # A site with an improper cavity is NaN; the comparisons of the kernel ignore NaN.
            return terms + at.constant, residual if np.isfinite(terms + residual) else np.inf

        terms, residuals = np.array(list(self.over_blocks(sites, part))).T
        return float(terms.sum()), float(residuals.max())

    def bars(self, sites: Array, posterior: CoupledWhitened) -> Iterator[Bars]:
        def part(at: _Rows) -> Bars:
            features = at.features
            rho, rest_bar = _point_slopes(*self._moments(posterior, at), at.pi, at.nu)
            if self._shared:
                w_bar = (posterior.mean.T @ rho - posterior.shared_smoothed(at.w[0], at.pi))[None]
                rest_bar = rest_bar.sum(axis=0, keepdims=True)
            else:
                w_bar = posterior.mean[:, :, None] * rho[:, None] - posterior.smoothed(at.w, at.pi)
            return Bars(at.rows, *self._features.whitening.pull_back(features, w_bar, rest_bar, rho))

        return self.over_blocks(sites, part)

    def _moments(self, posterior: CoupledWhitened, at: _Rows) -> tuple[Array, Array]:
        return posterior.shared_moments(at.w[0]) if self._shared else posterior.moments(at.w)

    def left_out(self, sites: Array, posterior: Whitened) -> Iterator[LeftOut]:
        """Yield leave-one-out moments of all points in parts, in order: each point without its site.

        If x has the covariance V, its cavity has the covariance (I − VΠ)⁻¹ V. The slope of the log site is ν − Π E[x].
        """
        every = np.arange(len(self._owner))

        def part(at: _Rows) -> LeftOut:
            mean, cov = posterior.moments(at.w)
            pi = _precisions(at.pi)
            wide = np.linalg.solve(np.eye(len(every)) - cov @ pi, cov)
            force = at.nu.T - np.einsum("bkl,lb->bk", pi, mean)
            wide = 0.5 * (wide + wide.swapaxes(1, 2))
            less = (at.features.mean + mean).T - np.einsum("bkl,bl->bk", wide, force)
            wide[:, every, every] += at.rest.T
            return LeftOut(at.rows, less, wide)

        return self.over_blocks(sites, part)


def _precisions(pi: Array) -> Array:
    """Return Π (B, c, c) of each point, from π (c, B); 0 if π is 0."""
    total = pi.sum(axis=0)
    shared = np.einsum("kb,lb->bkl", pi, pi / np.where(total > 0.0, total, 1.0))
    return pi.T[:, :, None] * np.eye(len(pi)) - shared


def _point_slopes(mean: Array, cov: Array, pi: Array, nu: Array) -> tuple[Array, Array]:
    """Return ρ and derivatives in s, (c, B), from moments (c, B) and (B, c, c) of x relative to the prior mean."""
    total = pi.sum(axis=0)
    rho = nu - pi * (mean - (pi * mean).sum(axis=0) / total)
    average = np.einsum("kb,bkl->lb", pi, cov) / total
    within = np.einsum("bkk->kb", cov) - 2.0 * average + (pi * average).sum(axis=0) / total
    return rho, 0.5 * (rho * rho - pi + pi * pi * (1.0 / total + within))
