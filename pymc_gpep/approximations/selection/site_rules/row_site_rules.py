"""How a row gets its site: by inner EP, by projection, or for utilities; and which rule is meant."""

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.approximations.selection.average_log_density import has_averages
from pymc_gpep.approximations.selection.site_rules.moments import (
    OneFunctionMoments,
    PointMoments,
    coupled_told,
    independent_information,
    rough_normalisers,
)
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
    RoughNormaliser,
    SiteInformation,
    UtilityBound,
)

__all__ = [
    "RULES",
    "RULE_NAMES",
    "InnerEP",
    "Projection",
    "UtilitySites",
    "rows_can_be_chosen",
    "selection_rule",
]


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
