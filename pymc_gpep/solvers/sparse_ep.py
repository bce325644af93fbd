"""EP with scalar sites on projections of whitened inducing values, for any factors of the likelihood.

A factor depends on the latent values f_k = m + x_k + e_k alone; see `pymc_gpep.solvers.sparse_sweeps`. With the sites
held, only the factors depend on hyperparameters, through w and s in the moments of their cavities. At a fixed point the
derivative is that of the evidence, and elsewhere that of the evidence with frozen sites.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
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
    its end. Sites that only narrow (`LikelihoodFactors.narrows`) match the mean alone there, with a precision of 0.
    That always converges, close by. The evidence is then not stationary in the sites, and its derivatives are
    approximate.

    Parameters
    ----------
    features : RowFeatures
    factors : LikelihoodFactors
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
