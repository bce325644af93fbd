"""EP with scalar sites on projections of whitened inducing values, and with sites on latent values.

`SparseEPSweeps` takes any factors of the likelihood that depend on the latent values f_k = m + x_k + e_k alone; see
`pymc_gpep.solvers.sparse_sweeps`. With the sites held, only the factors depend on hyperparameters, through w and s in
the moments of their cavities. At a fixed point the derivative is that of the evidence, and elsewhere that of the
evidence with frozen sites.

`SparseLatentSweeps` has d scalar sites exp(ν g_k − ½ π g_k²) of g_k = x_k + e_k, the latent value less its prior mean
(Naish-Guzman and Holden 2008; Kim and Ghahramani 2006). Its projection is x_k = wᵀv_k, and e_k ~ N(0, s) is the
residual of the features. Several sites may act on one latent value. With its e integrated out, they are together one
site of its projection, of precision t = π / (1 + πs) and location ν / (1 + πs). The sweeps are then the same. The
derivatives are those of the normaliser with the sites held. Sites on latent values do not depend on hyperparameters, so
that at a fixed point these are the derivatives of the evidence.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.solvers.common_shift import SiteSums
from pymc_gpep.solvers.inducing import Features, RowFeatures
from pymc_gpep.solvers.sparse_sweeps import Marginals, MatchedSites, Slopes, SparseSweeps
from pymc_gpep.solvers.team import ALONE, Team


class Tilted(NamedTuple):
    """Results of a rule for B points whose factors see normal latent values."""

    log_z: Array
    """Sum over factors of the log normalisers, (B,)."""
    rho: Array
    """∂ log Z / ∂ mean, for each site, (B, d)."""
    gamma: Array
    """ρ² − 2 ∂ log Z / ∂ variance, for each site, (B, d)."""


class LikelihoodFactors(NamedTuple):
    """The likelihood as factors."""

    functions: NDArray[np.int64]
    """Function that each site acts on, (n, d)."""
    tilted: Callable[[slice, Array, Array], Tilted]
    """Results for some rows, from means and variances (B, d) of the latent values that the factor of each site sees."""
    shifts: bool
    """Whether they see differences of functions only."""
    narrows: bool = True
    """Whether sites have no negative precisions, and match a mean alone where moments would need one."""
    log_concave: bool = True
    """Whether moments need no negative precisions."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(n, d)."""
        return self.functions.shape

    def widening(self) -> "LikelihoodFactors | None":
        """The same whose sites may have negative precisions; None where none would that matches moments."""
        return None if self.log_concave else self._replace(narrows=False)

    def sweeps(self, features: RowFeatures, team: Team) -> "SparseEPSweeps":
        """Return the parts of an iteration over their sites."""
        return SparseEPSweeps(features, self, team)


class _Cavities(NamedTuple):
    """Cavities of the projections at B points, one for each site, (B, d)."""

    variance: Array
    """Variance under the posterior."""
    keep: Array
    """1 − t v."""
    without: Array
    """(t m − ν) / (1 − t v): how the cavity's mean differs from the posterior's, in units of the variance."""
    cavity_mean: Array
    cavity_variance: Array
    tilted: Tilted


class SparseEPSweeps(SparseSweeps):
    """The parts of an iteration of EP, for one prior.

    Where factors are not log-concave, a tilted distribution may be wider than its cavity, and only a site with a
    negative precision matches its moments. With such sites the iteration may fail, or wander, unless it begins close to
    its end. Sites that only narrow (`Factors.narrows`) match the mean alone there, with a precision of 0: that always
    converges, close by. The evidence is then not stationary in the sites, and its derivatives are approximate.

    Parameters
    ----------
    features : RowFeatures
    factors : Factors
    team : Team
        The threads that work on it. Results do not depend on how many there are.
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
        delta = 0.5 * (rho * rho - gamma)  # in the variance
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


def site_of(rho: Array, gamma: Array, mean: Array, variance: Array) -> tuple[Array, Array]:
    """The site exp(νx − ½ t x²), as t and ν, that gives a cavity N(mean, variance) the moments of the tilted density.

    `rho` and `gamma` are the first derivative and the negative second derivative of the log normaliser in the mean.
    """
    narrower = 1.0 - gamma * variance
    return gamma / narrower, (rho + gamma * mean) / narrower


def site_terms(mean: Array, variance: Array, location: Array, precision: Array) -> float:
    """Σ log ∫ N(x | mean, variance) exp(νx − ½ t x²) dx."""
    stretch = 1.0 + precision * variance
    quadratic = location * location * variance + 2.0 * location * mean - precision * mean * mean
    return 0.5 * float((quadratic / stretch - np.log(stretch)).sum())


class LatentSites(NamedTuple):
    """The likelihood as factors, with sites on latent values."""

    factors: LikelihoodFactors

    @property
    def shape(self) -> tuple[int, ...]:
        """(n, d)."""
        return self.factors.shape

    def widening(self) -> None:
        """Return None, since the factors are log-concave."""

    def sweeps(self, features: RowFeatures, team: Team) -> "SparseLatentSweeps":
        """Return the parts of an iteration over their sites."""
        return SparseLatentSweeps(features, self.factors, team)


class _Values(NamedTuple):
    """Posterior of the latent values less their prior means, at B points, and their sites, (c, B)."""

    mean: Array
    variance: Array
    precision: Array
    """Precision of all sites on each latent value, Σ π."""
    location: Array
    """Σ ν."""


class SparseLatentSweeps(SparseSweeps):
    """The parts of an iteration, for one prior.

    Parameters
    ----------
    features : RowFeatures
    factors : Factors
    team : Team
        The threads that work on it. Results do not depend on how many there are.
    """

    def __init__(self, features: RowFeatures, factors: LikelihoodFactors, team: Team = ALONE) -> None:
        super().__init__(features, factors.functions, factors.shifts, team)
        self._factors = factors

    def _projected(self, sums: SiteSums) -> SiteSums:
        stretch = 1.0 + sums.precision * self._rest(sums.features)
        return SiteSums(sums.features, sums.precision / stretch, sums.location / stretch)

    def _matched(self, rows: slice, features: Features, projected: Marginals, t: Array, nu: Array) -> MatchedSites:
        values = self._values(rows, features, projected, t, nu)
        mean, variance = self._by_site(rows, values.mean), self._by_site(rows, values.variance)
        keep = 1.0 - t * variance
        if not (keep > 0.0).all():
            return MatchedSites(t, nu, variance, np.nan)
        cavity_mean, cavity_variance = mean + variance * (t * mean - nu) / keep, variance / keep
        log_z, rho, gamma = self._factors.tilted(
            rows, self._by_site(rows, features.mean) + cavity_mean, cavity_variance
        )
        # With e integrated out, the sites on a latent value are one on its projection, and a number.
        rest = self._rest(features)
        stretch = 1.0 + values.precision * rest
        numbers = 0.5 * float((values.location**2 * rest / stretch - np.log(stretch)).sum())
        terms = float(log_z.sum()) - site_terms(cavity_mean, cavity_variance, nu, t) + numbers
        return MatchedSites(*site_of(rho, gamma, cavity_mean, cavity_variance), variance, terms)

    def _slopes(self, rows: slice, features: Features, projected: Marginals, t: Array, nu: Array) -> Slopes:
        mean, variance = projected
        stretch = 1.0 + self._by_function(rows, t) * self._rest(features)
        precision, location = self._by_function(rows, t) / stretch, self._by_function(rows, nu) / stretch
        force = location - precision * mean
        return Slopes(force, -precision, 0.5 * (force * force - precision + precision * precision * variance))

    def _values(self, rows: slice, features: Features, projected: Marginals, t: Array, nu: Array) -> _Values:
        """Posterior of the latent values: of the projection without the point's sites, with e, and with the sites."""
        mean, variance = projected
        precision, location = self._by_function(rows, t), self._by_function(rows, nu)
        rest = self._rest(features)
        stretch = 1.0 + precision * rest
        # x given everything is N(m, v); e given x and its sites has the precision 1/s + π.
        share = 1.0 / stretch
        return _Values(share * (mean + rest * location), rest * share + share * share * variance, precision, location)
