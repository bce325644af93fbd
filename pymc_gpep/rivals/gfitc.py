"""GFITC: EP over latent values with the FITC prior, as a comparison for EP with inducing inputs.

A point has d scalar sites exp(ν g_k − ½ π g_k²) on g_k, the latent value of function k minus its prior mean
(Naish-Guzman and Holden 2008; Kim and Ghahramani 2006). Inducing values determine the part x_k of g_k, the projection.
The residual g_k − x_k ~ N(0, s) is independent of them. Several sites may act on the same latent value. Integration
over the residual leaves a single site on the projection, of precision π / (1 + πs) and location ν / (1 + πs). All other
steps are as in `pymc_gpep.solvers.sparse_sweeps`.

Returned derivatives are of the log normaliser for fixed sites. At a fixed point they are derivatives of the log
evidence.
"""

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.approximations.limits import one_of
from pymc_gpep.approximations.site_rules import Pairs, SiteRule
from pymc_gpep.approximations.sparse_ep import SparseEP
from pymc_gpep.array_types import Array
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import PairFactors
from pymc_gpep.solvers.common_shift import SiteSums
from pymc_gpep.solvers.inducing import Features, RowFeatures
from pymc_gpep.solvers.site_ep import site_of, site_terms
from pymc_gpep.solvers.sparse_ep import LikelihoodFactors
from pymc_gpep.solvers.sparse_sweeps import Marginals, MatchedSites, Slopes, SparseSweeps
from pymc_gpep.solvers.team import ALONE, Team


class LatentSites(NamedTuple):
    """Factors of the likelihood of all points, with sites on latent values."""

    factors: LikelihoodFactors

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the sites, (n, d)."""
        return self.factors.shape

    def widening(self) -> None:
        """Return None: the factors are log-concave, so sites of negative precision are not needed."""

    def sweeps(self, features: RowFeatures, team: Team) -> "SparseLatentSweeps":
        """Return the parts of an EP iteration over these sites."""
        return SparseLatentSweeps(features, self.factors, team)


class _Values(NamedTuple):
    """Posterior moments of g at B points (see the module), and sums of the sites on each g_k, (c, B) each."""

    mean: Array
    variance: Array
    precision: Array
    """Precision of all sites on each latent value, Σ π."""
    location: Array
    """Location of all sites on each latent value, Σ ν."""


class SparseLatentSweeps(SparseSweeps):
    """Sweeps of EP with sites on latent values, at fixed hyperparameters.

    Parameters
    ----------
    features : RowFeatures
    factors : LikelihoodFactors
    team : Team
        Threads that share the work. Results do not depend on the number of threads.
    """

    def __init__(self, features: RowFeatures, factors: LikelihoodFactors, team: Team = ALONE) -> None:
        super().__init__(features, factors.functions, factors.shifts, team)
        self._factors = factors

    def _projected(self, sums: SiteSums) -> SiteSums:
        stretch = 1.0 + sums.precision * self._rest(sums.features)
        return sums._replace(precision=sums.precision / stretch, location=sums.location / stretch)

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
        # Integration over the residual turns the sites on a latent value into a constant and a site on its projection.
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
        """Return the posterior of latent values, from the posterior of their projections on the inducing values."""
        mean, variance = projected
        precision, location = self._by_function(rows, t), self._by_function(rows, nu)
        rest = self._rest(features)
        stretch = 1.0 + precision * rest
        # The projection has the posterior N(m, v). Given it, the residual has the precision 1/s + π.
        share = 1.0 / stretch
        return _Values(share * (mean + rest * location), rest * share + share * share * variance, precision, location)


class LatentPairs(SiteRule):
    """Factors Φ((f_y − f_k) / √2), or steps Θ(f_y − f_k), with a site for each latent value of a factor.

    This is the generalised FITC approximation (Naish-Guzman and Holden 2008) with the factors of Kim and Ghahramani
    (2006), as in Villacampa-Calvo and Hernández-Lobato (2017, section 3). Residuals given the inducing values are not
    integrated out of single factors. So the product of steps is the likelihood.
    """

    name: ClassVar[str] = "latent_pairs"
    needs: ClassVar[tuple[type, ...]] = (PairFactors,)
    follows_parameters: ClassVar[bool] = True  # Derivatives in likelihood parameters are omitted.
    exact: ClassVar[bool] = False

    def factors(self, likelihood: Likelihood, labels: NDArray[np.int64], c: int) -> LatentSites:
        return LatentSites(Pairs().factors(likelihood, labels, c))


@dataclass(frozen=True)
class GFITC(SparseEP):
    """EP with inducing inputs, a factor for each pair of classes, and sites on latent values.

    This is the generalised FITC approximation of Naish-Guzman and Holden (2008), for several classes as in
    Villacampa-Calvo and Hernández-Lobato (2017, section 3). Its sites act on latent values.
    `SparseEP(sites="pairwise")` instead integrates each factor over the residuals of latent values given the inducing
    values. Label noise is not supported.

    `pm.fit` accepts further options, as for `"sparse_ep"`, except batches.
    """

    sites: str | None = field(default=LatentPairs.name, metadata=one_of(LatentPairs.name))

    name: ClassVar[str] = "gfitc"

    @classmethod
    def approximates(cls, likelihood: Likelihood) -> bool:
        return LatentPairs.fits(likelihood)

    def named(self, likelihood: Likelihood, c: int, size: int) -> Self:
        self.rule(likelihood, c, size)
        return self

    def rule(self, likelihood: Likelihood, c: int, size: int) -> SiteRule:
        """Return the rule with sites on latent values.

        Raises
        ------
        ValueError
            If the likelihood is not a product over pairs of classes.
        """
        if not LatentPairs.fits(likelihood):
            raise ValueError(
                f"GFITC needs a likelihood that compares pairs of classes, and {likelihood.name} does not. Take "
                f"method={likelihood.method!r}."
            )
        return LatentPairs()
