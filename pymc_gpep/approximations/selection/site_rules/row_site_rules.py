"""How a row gets its site: by moments, inner EP or projection, or for utilities; and which rule is meant."""

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.approximations.selection.average_log_density import has_averages
from pymc_gpep.approximations.selection.site_rules.row_site_rule import Matched, RowSiteRule, Told
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.kernels.moments.coupled_sites import site_parameters
from pymc_gpep.likelihoods.class_nodes import class_nodes
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import (
    BlockCurvature,
    CoupledQuadrature,
    DifferenceFactors,
    GaussianAverage,
    PointFactor,
    RoughNormaliser,
    SiteInformation,
    UtilityBound,
)
from pymc_gpep.solvers.sparse_ep import site_of

__all__ = [
    "RULES",
    "RULE_NAMES",
    "InnerEP",
    "OneFunctionMoments",
    "PointMoments",
    "Projection",
    "UtilitySites",
    "coupled_told",
    "independent_information",
    "rough_normalisers",
    "rows_can_be_chosen",
    "selection_rule",
]


class _Derivatives(NamedTuple):
    """Derivatives of log Ẑ, and log Ẑ (p,) itself."""

    log_z: Array
    rho: Array
    """∂ log Ẑ / ∂ mean (c, p)."""
    gamma: Array
    """−∂² log Ẑ / ∂ mean² (c, p)."""


class _Moments(ABC):
    """The common part of both rules."""

    name: ClassVar[str] = "independent"
    form = SiteForm.INDEPENDENT
    shares = False
    from_cavity = True

    @abstractmethod
    def _derivatives(self, likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> _Derivatives:
        """Return the derivatives of p rows."""

    def match(self, likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> Matched:
        """See `SiteRule`."""
        return _sites(self._derivatives(likelihood, labels, mean, cov), mean, cov)

    def told(self, likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> Told:
        """See `SiteRule`."""
        found = self._derivatives(likelihood, labels, mean, cov)
        variance = np.diagonal(cov, axis1=1, axis2=2).T
        return Told(found.log_z, independent_information(_sites(found, mean, cov), mean, variance))


def _sites(found: _Derivatives, mean: Array, cov: Array) -> Matched:
    gamma = np.maximum(found.gamma, 0.0)
    return Matched(*site_of(found.rho, gamma, mean, np.diagonal(cov, axis1=1, axis2=2).T))


class PointMoments(_Moments):
    """By the exact moments of each function under its own marginal (Seeger and Jordan 2004, section 6)."""

    method = "qiep"

    def fits(self, likelihood: Likelihood) -> bool:
        """Whether a point of it is one factor with moments, and has no site that widens."""
        has = likelihood.offers(PointFactor) and likelihood.offers(RoughNormaliser)
        return has and likelihood.log_concave and not likelihood.has_parameters

    def log_normalisers(self, likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> Array:
        """See `SiteRule`."""
        return rough_normalisers(likelihood, labels, mean, cov)

    def _derivatives(self, likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> _Derivatives:
        c, p = mean.shape
        variance = np.ascontiguousarray(np.diagonal(cov, axis1=1, axis2=2))
        log_z, rho, gamma = np.empty(p), np.empty((p, c)), np.empty((p, c))
        given = np.ascontiguousarray(mean.T), variance, labels, likelihood.parameters
        likelihood.computation(PointFactor).derivatives(*given, log_z, rho, gamma)
        return _Derivatives(log_z, rho.T, gamma.T)


class OneFunctionMoments(_Moments):
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
    """Return the information of sites under means and variances (c, p)."""
    stretch = 1.0 + sites.precision * variance
    slope = (sites.location - sites.precision * mean) / stretch
    return np.asarray(0.5 * (np.log(stretch) + 1.0 / stretch - 1.0 + slope * slope * variance).sum(axis=0))


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


_NODES = 2000
_NOTHING = 1e-14  # precision of a site that is none, in units of the variance


class Projection(_CoupledSites):
    """The projection of section 4.3, exact where a coupling has the form of these sites, and near it elsewhere."""

    name = "coupled"
    method = "qep"

    def fits(self, likelihood: Likelihood) -> bool:
        """Whether it has such a projection."""
        return likelihood.offers(CoupledQuadrature) and likelihood.offers(SiteInformation)

    def match(self, likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> Matched:
        """See `RowSiteRule`."""
        c, p = mean.shape
        nodes = class_nodes(c - 1, _NODES)
        scale = cov.trace(axis1=1, axis2=2) / c
        none = np.ascontiguousarray(np.broadcast_to(_NOTHING / np.maximum(scale, _NOTHING), (c, p)))
        sites, target, room = np.zeros((2, p, c)), np.empty((2, p, c)), np.empty((p, c))
        likelihood.computation(CoupledQuadrature).update(
            *nodes, np.ascontiguousarray(mean), np.ascontiguousarray(cov), labels, none, sites, target, room
        )
        return Matched(np.ascontiguousarray(target[0].T), np.ascontiguousarray(target[1].T))

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
        information = independent_information(sites, mean, np.diagonal(cov, axis1=1, axis2=2).T)
        return Told(self.log_normalisers(likelihood, labels, mean, cov), information)

    def log_normalisers(self, likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> Array:
        """See `RowSiteRule`."""
        return rough_normalisers(likelihood, labels, mean, cov)


RULES: tuple[RowSiteRule, ...] = (InnerEP(), Projection(), PointMoments(), OneFunctionMoments(), UtilitySites())
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
