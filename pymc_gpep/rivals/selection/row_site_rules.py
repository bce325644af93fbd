"""Sites of active rows, scores of candidate rows, and the prior moments that a selection reads."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pymc_gpep.argument_types import did_you_mean
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.kernels.moments.inner_ep import site_parameters
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import (
    BlockCurvature,
    CoupledQuadrature,
    DifferenceFactors,
    GaussianAverage,
    PointFactor,
    UtilityBound,
)
from pymc_gpep.rivals.computations import IndependentQuadrature, RoughNormaliser, RoughSites, SiteInformation
from pymc_gpep.rivals.responses import projected_sites
from pymc_gpep.rivals.selection.bound import has_averages
from pymc_gpep.solvers.inducing import Block
from pymc_gpep.solvers.sparse_ep import site_of

type Places = NDArray[np.int64]
"""Numbers of rows."""


class PriorBlocks(Protocol):
    """A prior of c latent functions at n rows, which is asked for blocks; q is 1 where functions share it, else c."""

    n_points: int
    n_functions: int
    n_covariances: int
    """q."""

    def block(self, columns: Places, rows: Places) -> Block:
        """Return the covariances (q, columns, rows) of rows `columns`, maybe empty, with `rows`; moments of `rows`."""


class DenseRows:
    """A prior whose covariance is at hand."""

    def __init__(self, k: ArrayLike, mean: ArrayLike) -> None:
        self._prior = DensePrior.checked(np.asarray(k, np.float64), np.asarray(mean, np.float64))
        self.n_functions, self.n_points = self._prior.shape
        self.n_covariances = len(self._prior.k)

    @classmethod
    def of(cls, prior: PriorBlocks) -> Self:
        """All rows of another prior."""
        every = np.arange(prior.n_points)
        found = prior.block(every, every)
        return cls(found.cross, found.mean)

    def block(self, columns: Places, rows: Places) -> Block:
        k, mean = self._prior.k, self._prior.mean
        return Block(k[:, columns[:, None], rows], k[:, rows, rows], mean[:, rows])


class Selection(NamedTuple):
    """Active rows in the order in which they were included, and their sites."""

    rows: Places
    """(d,)."""
    scores: Array
    """Score of each row when it was chosen, (d,); NaN where it was not chosen by its score."""
    precision: Array
    """π (c, d)."""
    location: Array
    """ν (c, d)."""


SEPARATE = "separate"
"""The name of rules by which each function chooses rows of its own."""


class SeenRows(NamedTuple):
    """Rows, and the moments of their latent values that sites are made from, as contiguous arrays."""

    likelihood: Likelihood
    """Likelihood of these rows."""
    labels: NDArray[np.int64]
    """(p,)."""
    mean: Array
    """(c, p)."""
    cov: Array
    """(p, c, c)."""

    @property
    def by_row(self) -> tuple[Array, Array]:
        """Means and variances (p, c) of each function alone."""
        return np.ascontiguousarray(self.mean.T), np.ascontiguousarray(np.diagonal(self.cov, axis1=1, axis2=2))


class Matched(NamedTuple):
    """Sites of rows, each as if it came next."""

    precision: Array
    """π (c, p)."""
    location: Array
    """ν (c, p)."""


class Told(NamedTuple):
    """Information of the labels of rows if each came next, to a few digits."""

    log_z: Array
    """Their log probabilities (p,)."""
    information: Array
    """Divergence of the posterior with a row's site from that without, (p,); (c, p) where a rule is `separate`."""


@dataclass(frozen=True)
class RowSiteRule(ABC):
    """Sites from the moments of latent values without them (assumed density filtering).

    Parameters
    ----------
    name : str
        Name of the rule in `sites=`.
    """

    name: str

    method: ClassVar[str]
    """The approximation whose fixed point these sites are on the way to."""
    form: ClassVar[SiteForm] = SiteForm.INDEPENDENT
    """Form of the sites."""
    shares: ClassVar[bool] = False
    """Whether all functions of a row have the same precision."""
    from_cavity: ClassVar[bool] = True
    """Whether a site is made from the moments without it, or from those with it, at a fixed point."""

    @property
    def separate(self) -> bool:
        """Whether each function chooses rows of its own."""
        return self.name == SEPARATE

    @abstractmethod
    def fits(self, likelihood: Likelihood) -> bool:
        """Whether a likelihood has what it takes."""

    @abstractmethod
    def match(self, seen: SeenRows) -> Matched:
        """Sites of rows."""

    @abstractmethod
    def told(self, seen: SeenRows) -> Told:
        """For scores: ½(log|M| + tr(M⁻¹ − I) + gᵀAg) of each row, M = I + ΠA and g = M⁻¹(ν − Πμ).

        The divergence is that of the latent values of the row alone (Seeger and Jordan 2004, equation 14).
        """

    def log_normalisers(self, seen: SeenRows) -> Array:
        """The log probabilities alone, (p,)."""
        return self.told(seen).log_z


type Score = Callable[[RowSiteRule, SeenRows], Array]

RANDOM = "random"
"""No score: rows in a random order."""


def information(rule: RowSiteRule, seen: SeenRows) -> Array:
    """Return the information of each row (p,): the divergence of the posterior with its site from that without.

    Seeger and Jordan (2004, equation 14) mean the largest. Separate sites have one of each function, (c, p).
    """
    return rule.told(seen).information


def surprise(rule: RowSiteRule, seen: SeenRows) -> Array:
    """Minus the log predictive probability of the labels (p,) (Girolami and Rogers 2006, equation 5.5)."""
    return -rule.log_normalisers(seen)


def expected_information(rule: RowSiteRule, seen: SeenRows) -> Array:
    """Return the information of each row on average over the labels that it may have, as they are predicted.

    Its own label is not looked at, so that rows are not chosen for labels that are wrong.
    """
    parts, weight = [], np.zeros(len(seen.labels))
    for label in range(seen.likelihood.n_classes(len(seen.mean))):
        told = rule.told(seen._replace(labels=np.full_like(seen.labels, label)))
        p = np.exp(told.log_z)
        parts.append(p * told.information)
        weight += p
    return np.asarray(sum(parts) / weight)


SCORES: Mapping[str, Score] = {
    "information": information,
    "expected": expected_information,
    "probability": surprise,
}
"""By name."""

SCORE_NAMES = (*SCORES, RANDOM)

OF_FUNCTIONS = ("expected", "information")
"""Scores that tell functions of a row from each other."""


_SWEEPS, _TOLERANCE = 200, 1e-10  # of inner EP


class _IndependentSites(RowSiteRule):
    """The part that rules of independent sites share."""

    @abstractmethod
    def _rough(self, seen: SeenRows) -> tuple[Array, Matched]:
        """Log normalisers, and sites with as many digits as scores need."""

    def match(self, seen: SeenRows) -> Matched:
        return self._rough(seen)[1]

    def log_normalisers(self, seen: SeenRows) -> Array:
        return self._rough(seen)[0]

    def told(self, seen: SeenRows) -> Told:
        log_z, sites = self._rough(seen)
        variance = np.diagonal(seen.cov, axis1=1, axis2=2).T
        stretch = 1.0 + sites.precision * variance
        slope = (sites.location - sites.precision * seen.mean) / stretch
        information = 0.5 * (np.log(stretch) + 1.0 / stretch - 1.0 + slope * slope * variance)
        return Told(log_z, information if self.separate else information.sum(axis=0))


class PointMoments(_IndependentSites):
    """By the exact moments of each function under its own marginal (Seeger and Jordan 2004, section 6)."""

    method = "qiep"

    def fits(self, likelihood: Likelihood) -> bool:
        """Whether a point of it is one factor with moments, and has no site that widens."""
        has = likelihood.offers(PointFactor) and likelihood.offers(RoughNormaliser)
        return has and likelihood.log_concave and not likelihood.has_parameters

    def log_normalisers(self, seen: SeenRows) -> Array:
        return _rough_normalisers(seen)

    def _rough(self, seen: SeenRows) -> tuple[Array, Matched]:
        mean, variance = seen.by_row
        log_z, rho, gamma = np.empty(len(mean)), np.empty(mean.shape), np.empty(mean.shape)
        given = mean, variance, seen.labels, seen.likelihood.parameters
        seen.likelihood.computation(PointFactor).derivatives(*given, log_z, rho, gamma)
        return log_z, _by_derivatives(seen, rho.T, gamma.T)


class QuadratureMoments(_IndependentSites):
    """The same for a likelihood with quadrature in several dimensions, of which scores take few nodes."""

    method = "qiep"

    def fits(self, likelihood: Likelihood) -> bool:
        """Whether it has such quadratures."""
        return likelihood.offers(IndependentQuadrature) and likelihood.offers(RoughSites)

    def match(self, seen: SeenRows) -> Matched:
        c, p = seen.mean.shape
        variance = np.ascontiguousarray(np.diagonal(seen.cov, axis1=1, axis2=2).T)
        nothing, (sites, target), room = np.zeros((2, c, p)), np.zeros((2, 2, p, c)), np.empty((p, c))
        kernel = seen.likelihood.computation(IndependentQuadrature).update
        kernel(seen.mean, variance, *nothing, seen.labels, sites, target, room)
        return Matched(np.ascontiguousarray(target[0].T), np.ascontiguousarray(target[1].T))

    def _rough(self, seen: SeenRows) -> tuple[Array, Matched]:
        mean, variance = seen.by_row
        log_z, sites = np.empty(len(mean)), np.empty((len(mean), 2, mean.shape[1]))
        seen.likelihood.computation(RoughSites).terms(mean, variance, seen.labels, log_z, sites)
        return log_z, Matched(sites[:, 0].T, sites[:, 1].T)


class OneFunctionMoments(_IndependentSites):
    """The same for a likelihood of one latent function."""

    method = "ep"

    def fits(self, likelihood: Likelihood) -> bool:
        """Whether it has one function, and no site that widens."""
        return likelihood.offers(GaussianAverage) and likelihood.log_concave and not likelihood.has_parameters

    def _rough(self, seen: SeenRows) -> tuple[Array, Matched]:
        found = np.empty((5, len(seen.labels)))
        given = seen.mean[0], np.ascontiguousarray(seen.cov[:, 0, 0]), seen.labels, seen.likelihood.parameters
        seen.likelihood.computation(GaussianAverage).terms(*given, found)
        return found[0], _by_derivatives(seen, found[1][None], -found[2][None])


class UtilitySites(_IndependentSites):
    """One online step of variational Bayes (equations 5.1 to 5.4): the mean utilities, seen with unit noise.

    These are taken at the mean of the latent values, whose variance does not enter.
    """

    method = "vb"
    shares = True
    from_cavity = False

    def fits(self, likelihood: Likelihood) -> bool:
        """Whether it has utilities."""
        return likelihood.offers(UtilityBound) and likelihood.offers(RoughNormaliser)

    def _rough(self, seen: SeenRows) -> tuple[Array, Matched]:
        slope = np.empty(seen.mean.shape)
        seen.likelihood.computation(BlockCurvature).log_density(seen.mean, seen.labels, slope)
        return _rough_normalisers(seen), Matched(np.ones(slope.shape), seen.mean + slope)


def _by_derivatives(seen: SeenRows, rho: Array, gamma: Array) -> Matched:
    """Sites from ∂ log Ẑ / ∂ mean and −∂² log Ẑ / ∂ mean², (c, p) each."""
    return Matched(*site_of(rho, np.maximum(gamma, 0.0), seen.mean, np.diagonal(seen.cov, axis1=1, axis2=2).T))


def _rough_normalisers(seen: SeenRows) -> Array:
    """Log normalisers (p,) of a likelihood that has `RoughNormaliser`, under independent functions."""
    log_z = np.empty(len(seen.labels))
    given = *seen.by_row, seen.labels, seen.likelihood.parameters
    seen.likelihood.computation(RoughNormaliser).log_normalisers(*given, log_z)
    return log_z


class _CoupledSites(RowSiteRule):
    """The part that rules of coupled sites share."""

    form = SiteForm.COUPLED

    def told(self, seen: SeenRows) -> Told:
        found = Told(*np.empty((2, len(seen.labels))))
        seen.likelihood.computation(SiteInformation).terms(seen.mean, seen.cov, seen.labels, *found)
        return found


class InnerEP(_CoupledSites):
    """Inner EP (Riihimäki and others 2013, appendix A), in the form on which Seeger and Jordan (2004) project."""

    method = "nested_ep"

    def fits(self, likelihood: Likelihood) -> bool:
        """Whether it has factors of differences."""
        return likelihood.offers(DifferenceFactors) and likelihood.offers(SiteInformation)

    def match(self, seen: SeenRows) -> Matched:
        c, p = seen.mean.shape
        nothing, sites, scale = np.zeros((2, p, c - 1)), np.empty((2, p, c - 1)), np.empty((p, c - 1))
        kernel = seen.likelihood.computation(DifferenceFactors).coupled_update
        kernel(seen.mean, seen.cov, seen.labels, *nothing, _SWEEPS, _TOLERANCE, *sites, scale)
        found = Matched(np.empty((c, p)), np.empty((c, p)))
        site_parameters(seen.labels, *sites, *found)
        return found


class Projection(_CoupledSites):
    """The projection of section 4.3, exact where a coupling has the form of these sites, and near it elsewhere."""

    method = "qep"

    def fits(self, likelihood: Likelihood) -> bool:
        """Whether it has such a projection."""
        return likelihood.offers(CoupledQuadrature) and likelihood.offers(SiteInformation)

    def match(self, seen: SeenRows) -> Matched:
        return Matched(*projected_sites(*seen))

    def log_normalisers(self, seen: SeenRows) -> Array:
        """See `RowSiteRule`; by the formula for tails, to about a percent."""
        return seen.likelihood.log_tail(np.ascontiguousarray(seen.mean.T), seen.cov, seen.labels)


RULES: tuple[RowSiteRule, ...] = (
    InnerEP("coupled"),
    Projection("coupled"),
    PointMoments("independent"),
    QuadratureMoments("independent"),
    OneFunctionMoments("independent"),
    UtilitySites("utility"),
    PointMoments(SEPARATE),
    QuadratureMoments(SEPARATE),
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
    meant = did_you_mean([name], [rule.name for rule in fitting])
    raise ValueError(
        f"Rows of a {likelihood.name} likelihood have no {what} by which they could be chosen; {instead}.{meant}"
    )
