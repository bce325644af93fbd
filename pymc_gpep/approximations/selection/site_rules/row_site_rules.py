"""How a row gets its site: by moments, inner EP or projection, or for utilities; and which rule is meant."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.approximations.projected_sites import projected_sites
from pymc_gpep.approximations.selection.average_log_density import has_averages
from pymc_gpep.approximations.selection.site_rules.row_site_rule import Matched, RowSiteRule, Told
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.kernels.moments.coupled_sites import site_parameters
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import (
    BlockCurvature,
    CoupledQuadrature,
    DifferenceFactors,
    GaussianAverage,
    IndependentQuadrature,
    PointFactor,
    RoughNormaliser,
    RoughSites,
    SiteInformation,
    UtilityBound,
)
from pymc_gpep.solvers.sparse_ep import site_of

__all__ = [
    "RULES",
    "RULE_NAMES",
    "SEPARATE",
    "InnerEP",
    "OneFunctionMoments",
    "PointMoments",
    "Projection",
    "QuadratureMoments",
    "UtilitySites",
    "coupled_told",
    "independent_information",
    "rough_normalisers",
    "rows_can_be_chosen",
    "selection_rule",
]


SEPARATE = "separate"
"""The name of rules by which each function chooses rows of its own."""


class _Derivatives(NamedTuple):
    """Derivatives of log Ẑ, and log Ẑ (p,) itself."""

    log_z: Array
    rho: Array
    """∂ log Ẑ / ∂ mean (c, p)."""
    gamma: Array
    """−∂² log Ẑ / ∂ mean² (c, p)."""


@dataclass(frozen=True)
class _Moments(ABC):
    """The common part of rules of independent sites.

    Parameters
    ----------
    separate : bool
        Whether each function chooses rows of its own.
    """

    separate: bool = False

    form: ClassVar[SiteForm] = SiteForm.INDEPENDENT
    shares: ClassVar[bool] = False
    from_cavity: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """See `RowSiteRule`."""
        return SEPARATE if self.separate else "independent"

    @abstractmethod
    def match(self, likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> Matched:
        """See `RowSiteRule`."""

    @abstractmethod
    def _rough(
        self, likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array
    ) -> tuple[Array, Matched]:
        """Log normalisers, and sites with as many digits as scores need."""

    def told(self, likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> Told:
        """See `RowSiteRule`."""
        log_z, sites = self._rough(likelihood, labels, mean, cov)
        information = independent_information(sites, mean, np.diagonal(cov, axis1=1, axis2=2).T)
        return Told(log_z, information if self.separate else information.sum(axis=0))


class _MomentsByDerivatives(_Moments):
    """Rules that have derivatives of log normalisers."""

    @abstractmethod
    def _derivatives(self, likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> _Derivatives:
        """Return the derivatives of p rows."""

    def match(self, likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> Matched:
        """See `RowSiteRule`."""
        return self._rough(likelihood, labels, mean, cov)[1]

    def _rough(
        self, likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array
    ) -> tuple[Array, Matched]:
        found = self._derivatives(likelihood, labels, mean, cov)
        gamma = np.maximum(found.gamma, 0.0)
        return found.log_z, Matched(*site_of(found.rho, gamma, mean, np.diagonal(cov, axis1=1, axis2=2).T))


class PointMoments(_MomentsByDerivatives):
    """By the exact moments of each function under its own marginal (Seeger and Jordan 2004, section 6)."""

    method = "qiep"

    def fits(self, likelihood: Likelihood) -> bool:
        """Whether a point of it is one factor with moments, and has no site that widens."""
        has = likelihood.offers(PointFactor) and likelihood.offers(RoughNormaliser)
        return has and likelihood.log_concave and not likelihood.has_parameters

    def log_normalisers(self, likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> Array:
        """See `RowSiteRule`."""
        return rough_normalisers(likelihood, labels, mean, cov)

    def _derivatives(self, likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> _Derivatives:
        c, p = mean.shape
        variance = np.ascontiguousarray(np.diagonal(cov, axis1=1, axis2=2))
        log_z, rho, gamma = np.empty(p), np.empty((p, c)), np.empty((p, c))
        given = np.ascontiguousarray(mean.T), variance, labels, likelihood.parameters
        likelihood.computation(PointFactor).derivatives(*given, log_z, rho, gamma)
        return _Derivatives(log_z, rho.T, gamma.T)


class QuadratureMoments(_Moments):
    """The same for a likelihood with quadrature in several dimensions, of which scores take few nodes."""

    method = "qiep"

    def fits(self, likelihood: Likelihood) -> bool:
        """Whether it has such quadratures."""
        return likelihood.offers(IndependentQuadrature) and likelihood.offers(RoughSites)

    def match(self, likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> Matched:
        """See `RowSiteRule`."""
        c, p = mean.shape
        mean, variance = np.ascontiguousarray(mean), np.ascontiguousarray(np.diagonal(cov, axis1=1, axis2=2).T)
        nothing, (sites, target), room = np.zeros((2, c, p)), np.zeros((2, 2, p, c)), np.empty((p, c))
        likelihood.computation(IndependentQuadrature).update(mean, variance, *nothing, labels, sites, target, room)
        return Matched(np.ascontiguousarray(target[0].T), np.ascontiguousarray(target[1].T))

    def log_normalisers(self, likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> Array:
        """See `RowSiteRule`."""
        return self._rough(likelihood, labels, mean, cov)[0]

    def _rough(
        self, likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array
    ) -> tuple[Array, Matched]:
        c, p = mean.shape
        variance = np.ascontiguousarray(np.diagonal(cov, axis1=1, axis2=2))
        log_z, sites = np.empty(p), np.empty((p, 2, c))
        likelihood.computation(RoughSites).terms(np.ascontiguousarray(mean.T), variance, labels, log_z, sites)
        return log_z, Matched(sites[:, 0].T, sites[:, 1].T)


class OneFunctionMoments(_MomentsByDerivatives):
    """The same for a likelihood of one latent function."""

    method = "ep"

    def fits(self, likelihood: Likelihood) -> bool:
        """Whether it has one function, and no site that widens."""
        return likelihood.offers(GaussianAverage) and likelihood.log_concave and not likelihood.has_parameters

    def log_normalisers(self, likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> Array:
        """See `SiteRule`."""
        return self._derivatives(likelihood, labels, mean, cov).log_z

    def _derivatives(self, likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> _Derivatives:
        variance = np.ascontiguousarray(cov[:, 0, 0])
        found = np.empty((5, mean.shape[1]))
        given = np.ascontiguousarray(mean[0]), variance, labels, likelihood.parameters
        likelihood.computation(GaussianAverage).terms(*given, found)
        return _Derivatives(found[0], found[1][None], -found[2][None])


def coupled_told(likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> Told:
    """Return the information of labels under a likelihood that has `SiteInformation`."""
    found = Told(*np.empty((2, len(labels))))
    given = np.ascontiguousarray(mean), np.ascontiguousarray(cov), labels
    likelihood.computation(SiteInformation).terms(*given, *found)
    return found


def independent_information(sites: Matched, mean: Array, variance: Array) -> Array:
    """Return the information of each function's site, under means and variances (c, p)."""
    stretch = 1.0 + sites.precision * variance
    slope = (sites.location - sites.precision * mean) / stretch
    return np.asarray(0.5 * (np.log(stretch) + 1.0 / stretch - 1.0 + slope * slope * variance))


def rough_normalisers(likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> Array:
    """Return the log normalisers of a likelihood that has `RoughNormaliser`, under independent functions."""
    log_z = np.empty(len(labels))
    variance = np.ascontiguousarray(np.diagonal(cov, axis1=1, axis2=2))
    given = np.ascontiguousarray(mean.T), variance, labels, likelihood.parameters
    likelihood.computation(RoughNormaliser).log_normalisers(*given, log_z)
    return log_z


_SWEEPS, _TOLERANCE = 200, 1e-10


class _CoupledSites:
    """The part that rules of coupled sites share."""

    form = SiteForm.COUPLED
    separate = False
    shares = False
    from_cavity = True

    def told(self, likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> Told:
        """See `RowSiteRule`."""
        return coupled_told(likelihood, labels, mean, cov)


class InnerEP(_CoupledSites):
    """Inner EP (Riihimäki and others 2013, appendix A), in the form on which Seeger and Jordan (2004) project."""

    name = "coupled"
    method = "nested_ep"

    def fits(self, likelihood: Likelihood) -> bool:
        """Whether it has factors of differences."""
        return likelihood.offers(DifferenceFactors) and likelihood.offers(SiteInformation)

    def match(self, likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> Matched:
        """See `RowSiteRule`."""
        c, p = mean.shape
        nothing, sites, scale = np.zeros((2, p, c - 1)), np.empty((2, p, c - 1)), np.empty((p, c - 1))
        likelihood.computation(DifferenceFactors).coupled_update(
            np.ascontiguousarray(mean), np.ascontiguousarray(cov), labels, *nothing, _SWEEPS, _TOLERANCE, *sites, scale
        )
        found = Matched(np.empty((c, p)), np.empty((c, p)))
        site_parameters(labels, *sites, *found)
        return found

    def log_normalisers(self, likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> Array:
        """See `RowSiteRule`."""
        return self.told(likelihood, labels, mean, cov).log_z


class Projection(_CoupledSites):
    """The projection of section 4.3, exact where a coupling has the form of these sites, and near it elsewhere."""

    name = "coupled"
    method = "qep"

    def fits(self, likelihood: Likelihood) -> bool:
        """Whether it has such a projection."""
        return likelihood.offers(CoupledQuadrature) and likelihood.offers(SiteInformation)

    def match(self, likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> Matched:
        """See `RowSiteRule`."""
        return Matched(*projected_sites(likelihood, labels, mean, cov))

    def log_normalisers(self, likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> Array:
        """See `RowSiteRule`; by the formula for tails, to about a percent."""
        return likelihood.log_tail(np.ascontiguousarray(mean.T), np.ascontiguousarray(cov), labels)


class UtilitySites:
    """One online step of variational Bayes (equations 5.1 to 5.4): the mean utilities, seen with unit noise.

    These are taken at the mean of the latent values, whose variance does not enter.
    """

    name = "utility"
    method = "vb"
    form = SiteForm.INDEPENDENT
    separate = False
    shares = True
    from_cavity = False

    def fits(self, likelihood: Likelihood) -> bool:
        """Whether it has utilities."""
        return likelihood.offers(UtilityBound) and likelihood.offers(RoughNormaliser)

    def match(self, likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> Matched:
        """See `RowSiteRule`."""
        at, slope = np.ascontiguousarray(mean), np.empty(mean.shape)
        likelihood.computation(BlockCurvature).log_density(at, labels, slope)
        return Matched(np.ones(mean.shape), at + slope)

    def told(self, likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> Told:
        """See `RowSiteRule`."""
        sites = self.match(likelihood, labels, mean, cov)
        information = independent_information(sites, mean, np.diagonal(cov, axis1=1, axis2=2).T).sum(axis=0)
        return Told(self.log_normalisers(likelihood, labels, mean, cov), information)

    def log_normalisers(self, likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> Array:
        """See `RowSiteRule`."""
        return rough_normalisers(likelihood, labels, mean, cov)


RULES: tuple[RowSiteRule, ...] = (
    InnerEP(),
    Projection(),
    PointMoments(),
    QuadratureMoments(),
    OneFunctionMoments(),
    UtilitySites(),
    PointMoments(separate=True),
    QuadratureMoments(separate=True),
)
"""All there are; those of one name are for different likelihoods, and the first that fits is the default."""

RULE_NAMES = tuple(dict.fromkeys(rule.name for rule in RULES))


def rows_can_be_chosen(likelihood: Likelihood) -> bool:
    """Whether rows of a likelihood have sites by which they can be chosen, and all rows a bound."""
    return has_averages(likelihood) and any(rule.fits(likelihood) for rule in RULES)


def selection_rule(name: str | None, likelihood: Likelihood) -> RowSiteRule:
    """Return the rule of a name for a likelihood, the first that fits if there is no name.

    Raises
    ------
    ValueError
        If there is no such rule.
    """
    fitting = [rule for rule in RULES if rule.fits(likelihood)]
    for rule in fitting:
        if name in (None, rule.name):
            return rule
    known = " or ".join(f"sites={rule.name!r}" for rule in fitting)
    what = "sites" if name is None else f"{name!r} sites"
    instead = f"there is {known}" if known else f"take another method, such as {likelihood.method!r}"
    raise ValueError(f"Rows of a {likelihood.name} likelihood have no {what} by which they could be chosen; {instead}.")
