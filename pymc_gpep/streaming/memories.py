"""Memories of a fit between batches: their contract, EP, stochastic EP and variational inference.

A memory computes the sites of a batch, their effect on q, and the part of the batch in the objective and its gradient.
Sites and Gaussians are constants there, being natural parameters of v, whose prior has no hyperparameters. Only the
features w and the residual variances s of the batch, in the moments that its factors see, depend on hyperparameters.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.approximations.limits import at_least, check_limits
from pymc_gpep.graphs.repeated import repeat
from pymc_gpep.solvers.batch_sites import ArrayMemory, StatelessSites, StochasticSites, VariationalSites
from pymc_gpep.streaming.features import BatchFeatures, Gaussian, common_terms, gaussian, shifted
from pymc_gpep.streaming.rules import PointTerms, Rule
from pymc_gpep.streaming.state import State

_LARGEST = 0.5  # a whole step of all sites at once overshoots


@dataclass(frozen=True)
class Schedule(ABC):
    """Step sizes β, smaller as epochs go by.

    Parameters
    ----------
    per_epoch : int
        Batches in an epoch.
    decay : float
        β after e epochs is 1 / (1 + decay · e) of what it is in the first one.
    """

    per_epoch: int
    decay: float

    @abstractmethod
    def __call__(self, step: int) -> float:
        """β of a step, counted from 0."""

    def _shrinking(self, step: int) -> float:
        return 1.0 / (1.0 + self.decay * (step // self.per_epoch))


class AveragingSchedule(Schedule):
    """A step replaces the part β of q's sites that a batch is of all rows; with no decay the noise of batches stays.

    The first steps take the average of what they have seen. All rows at once have no noise, and β stays at its limit.
    """

    def __call__(self, step: int) -> float:
        if self.per_epoch == 1:
            return _LARGEST
        later = self._shrinking(step) / self.per_epoch
        return min(_LARGEST, max(later, 1.0 / (step + 2) if step < self.per_epoch else 0.0))


class ReplacingSchedule(Schedule):
    """A step takes the part β of the way from the stored sites of its rows to new ones.

    Small batches take nearly the whole way. In large ones, sites that change together would overshoot.
    """

    def __call__(self, step: int) -> float:
        return self._shrinking(step) * (1.0 - (1.0 - _LARGEST) / self.per_epoch)


class BatchGraph(NamedTuple):
    """A batch of B points with d sites each."""

    features: BatchFeatures
    labels: TensorVariable
    """Labels, (B,)."""
    weights: TensorVariable
    """1, or 0 for rows that make up the number, (B,)."""
    by_site: TensorVariable
    """Whether a site acts on a function, (B, d, c)."""
    batches: int
    """Number of batches in an epoch."""
    rows: int
    """How many there are in all."""
    differences: bool
    """Whether the likelihood sees differences of functions only."""

    @property
    def scale(self) -> TensorVariable:
        """How many rows each point stands for, (B,)."""
        return self.weights * float(self.batches)

    def at_sites(self, values: TensorVariable) -> TensorVariable:
        """Return the values of each site's own function, (B, d), from those of all functions, (c, B)."""
        return (values.T[:, None, :] * self.by_site).sum(axis=2)

    def by_function(self, values: TensorVariable) -> TensorVariable:
        """Sums (c, B) over the sites (B, d) of each function."""
        return (values[:, :, None] * self.by_site).sum(axis=1).T


class Marginals(NamedTuple):
    """Moments that the sites of a batch see, (B, d)."""

    mean: TensorVariable
    """Mean of x."""
    variance: TensorVariable
    """Variance of x."""
    prior_mean: TensorVariable
    """Prior mean that is added to x in the latent value."""
    rest: TensorVariable
    """Variance that is added."""


class Effect(NamedTuple):
    """Consequences of a batch, before anything is changed."""

    value: TensorVariable
    """Estimate of the objective over all rows."""
    surrogate: TensorVariable
    """A number with the derivatives of the objective in the features of the batch."""
    constants: list[TensorVariable]
    """Variables that are constants in these derivatives."""
    changes: list[tuple[SharedVariable, TensorVariable]]
    """Remembered variables, and their new values."""
    floored: TensorVariable
    """Whether a site of a point was held back, (B,)."""
    former: tuple[TensorVariable, ...] = ()
    """Stored values of the rows of the batch: inputs of the step, as `StoredSites.of` returns them."""
    latter: tuple[TensorVariable, ...] = ()
    """Values to be stored in their place, as `StoredSites.put` takes them."""


@dataclass(frozen=True)
class Memory(ABC):
    """A way to make sites of a batch, and to remember them.

    Raises
    ------
    ValueError, TypeError
        If an option has a value that makes no sense.
    """

    name: ClassVar[str]
    """Name of the memory in `memory=`."""
    functional: ClassVar[str]
    """Functional that the memory needs of a rule, see `Rule.functional`."""
    objective: ClassVar[str]
    """Title of the printed number."""
    decay: ClassVar[float]
    """Part by which steps shrink in the first epoch, and as fast from there, if nothing else is said."""
    schedule: ClassVar[type[Schedule]]
    """Its step sizes."""

    def __post_init__(self) -> None:
        check_limits(self)

    def in_arrays(self) -> ArrayMemory | None:
        """The same for arrays; None where it is not written."""
        return None

    @abstractmethod
    def take(self, rule: Rule, state: State, batch: BatchGraph, counts: TensorVariable, beta: TensorVariable) -> Effect:
        """Take a batch in, with the number of sites on each function (c,) and a step size."""


def site_of(
    rho: TensorVariable, gamma: TensorVariable, mean: TensorVariable, variance: TensorVariable
) -> tuple[TensorVariable, TensorVariable]:
    """Return the site t, ν that makes a cavity N(mean, variance) have the moments of the tilted distribution.

    A tilted distribution may be wider than its cavity, as with labels that may be noise. The site then matches its mean
    alone.
    """
    gamma = pt.maximum(gamma, 0.0)
    narrower = 1.0 - gamma * variance
    return gamma / narrower, (rho + gamma * mean) / narrower


def log_site_normalisers(
    t: TensorVariable, nu: TensorVariable, mean: TensorVariable, variance: TensorVariable
) -> TensorVariable:
    """log ∫ N(x | mean, variance) exp(ν x − ½ t x²) dx, summed over the sites (B, d) of each point."""
    stretch = 1.0 + t * variance
    quadratic = nu * nu * variance + 2.0 * nu * mean - t * mean**2
    return 0.5 * (quadratic / stretch - pt.log(stretch)).sum(axis=1)


class BatchSites(NamedTuple):
    """Sites that a batch gets, and its part of the objective."""

    precision: TensorVariable
    """t, (B, d)."""
    location: TensorVariable
    """ν, (B, d)."""
    value: TensorVariable
    """Part of the objective that each point adds, (B,)."""
    in_mean: TensorVariable
    """Derivatives of `value`, as w and s of the site move, in the mean of x under the Gaussian, (B, d)."""
    in_variance: TensorVariable
    """Derivatives likewise in the variance of x, (B, d)."""
    in_rest: TensorVariable
    """Derivatives likewise in s, (B, d)."""
    floored: TensorVariable
    """Whether a site of a point was held back, (B,)."""


@dataclass(frozen=True)
class AveragesMemory(Memory):
    """A memory whose sites follow from a Gaussian that is the same for the whole batch."""

    decay: ClassVar[float] = 0.1
    schedule: ClassVar[type[Schedule]] = AveragingSchedule

    def share(self, counts: TensorVariable) -> TensorVariable:
        """Return the part of S and h in the Gaussian that a batch is taken with, (c,), from numbers of sites (c,)."""
        return pt.ones_like(counts)

    def seen(self, precision: TensorVariable, location: TensorVariable, counts: TensorVariable) -> Gaussian:
        """The Gaussian that a batch is taken with, from S (c, M, M), h (c, M) and the number of sites (c,)."""
        return gaussian(precision, location)

    @abstractmethod
    def sites(self, rule: Rule, marginals: Marginals, labels: TensorVariable) -> BatchSites:
        """Sites of a batch."""

    def bounded(self, sites: BatchSites, marginals: Marginals, batch: BatchGraph, beta: TensorVariable) -> BatchSites:
        """The same sites where a step of size β leaves I + S positive definite; their precisions may be below zero."""
        return sites

    @abstractmethod
    def constant(
        self, seen: Gaussian, precision: TensorVariable, location: TensorVariable, counts: TensorVariable
    ) -> TensorVariable:
        """Return the objective without any points, a number."""

    def take(self, rule: Rule, state: State, batch: BatchGraph, counts: TensorVariable, beta: TensorVariable) -> Effect:
        features, location = batch.features, state.location
        w = features.w
        seen = self.seen(state.precision, location, counts)
        common = None
        if batch.differences:
            common = state.hold_common(own=w.type.shape[0] > 1)
            remembered, share = common.terms(state.precision), self.share(counts)
            location, common_location = shifted(location, remembered, seen, share)
            seen = self.seen(state.precision, location, counts)
        half, mean = seen.half(w), seen.means(w)
        variance = (half * half).sum(axis=1)
        rest = pt.broadcast_to(features.rest, variance.shape)
        marginals = Marginals(*map(batch.at_sites, (mean, variance, features.mean, rest)))
        sites = self.sites(rule, marginals, batch.labels)
        if not rule.log_concave:
            sites = self.bounded(sites, marginals, batch, beta)

        # What stands for the rows that are not in the batch.
        t, nu, of_mean, of_variance, of_rest = (
            batch.by_function(each * batch.scale[:, None]) for each in (*sites[:2], *sites[3:6])
        )
        of_precision = pt.matmul(w * t[:, None, :], w.transpose(0, 2, 1))
        of_location = pt.matmul(w, nu[:, :, None])[:, :, 0]
        averages = [(state.precision, state.precision, of_precision), (state.location, location, of_location)]
        if common is not None:
            before = [common_location, *common.variables[1:]]
            averages += zip(common.variables, before, common.estimates(common_terms(w, t, mean)), strict=True)
        return Effect(
            (batch.scale * sites.value).sum() + self.constant(seen, state.precision, location, counts),
            (of_mean * (mean + features.mean)).sum() + (of_variance * variance).sum() + (of_rest * rest).sum(),
            [of_mean, of_variance, of_rest, seen.mean, seen.factor],
            [(variable, before + beta * (new - before)) for variable, before, new in averages],
            sites.floored,
        )


CAVITY_SHARE = 0.05  # of the precision of a marginal that a cavity keeps


@dataclass(frozen=True)
class Stateless(AveragesMemory):
    """A site is the solution of site = update(q / site), on scalars; iterated from zero.

    Parameters
    ----------
    local_iterations : int
        How often. Few of them leave a little of the site in the cavity.
    """

    local_iterations: int = field(default=3, metadata=at_least(1))

    name: ClassVar[str] = "stateless"
    functional: ClassVar[str] = "log normaliser"
    objective: ClassVar[str] = "log normaliser of EP"

    def sites(self, rule: Rule, marginals: Marginals, labels: TensorVariable) -> BatchSites:
        def update(t: TensorVariable, nu: TensorVariable, *values: TensorVariable) -> list[TensorVariable]:
            here, own_labels = Marginals(*values[:-1]), values[-1]
            of_point, cavity_mean, cavity_variance = _terms(rule, here, own_labels, t, nu)
            gamma = of_point.in_mean**2 - 2.0 * of_point.in_variance
            new, location = site_of(of_point.in_mean, gamma, cavity_mean, cavity_variance)
            # The mean that the site has stays where its precision is held back.
            bounded = pt.minimum(new, (1.0 - CAVITY_SHARE) / here.variance)
            return [bounded, pt.switch(new > bounded, location * bounded / new, location)]

        mean, variance = marginals.mean, marginals.variance
        nothing = pt.zeros_like(mean)
        t, nu = repeat(update, [nothing, nothing], [*marginals, labels], self.local_iterations)
        keep = 1.0 - t * variance
        of_point, cavity_mean, cavity_variance = _terms(rule, marginals, labels, t, nu)
        without = (t * mean - nu) / keep
        return BatchSites(
            t,
            nu,
            of_point.value - log_site_normalisers(t, nu, cavity_mean, cavity_variance),
            of_point.in_mean,
            0.5 * of_point.in_mean * without + of_point.in_variance / keep,
            of_point.in_variance,
            pt.ge(t * variance, (1.0 - CAVITY_SHARE) * (1.0 - 1e-12)).any(axis=1),
        )

    def in_arrays(self) -> StatelessSites:
        return StatelessSites(self.local_iterations, CAVITY_SHARE)

    def constant(
        self, seen: Gaussian, precision: TensorVariable, location: TensorVariable, counts: TensorVariable
    ) -> TensorVariable:
        return seen.log_normalisers.sum()


def _terms(
    rule: Rule, marginals: Marginals, labels: TensorVariable, t: TensorVariable, nu: TensorVariable
) -> tuple[PointTerms, TensorVariable, TensorVariable]:
    """Return the terms of the cavities without sites t, ν, and the means and variances of these cavities."""
    keep = 1.0 - t * marginals.variance
    cavity_mean, cavity_variance = (marginals.mean - nu * marginals.variance) / keep, marginals.variance / keep
    of_point = rule.terms(marginals.prior_mean + cavity_mean, marginals.rest + cavity_variance, labels)
    return of_point, cavity_mean, cavity_variance


@dataclass(frozen=True)
class Stochastic(AveragesMemory):
    """Villacampa-Calvo and Hernández-Lobato (2017), sections 2.3.1 and 2.3.2; Li et al. (2015).

    The objective takes each point's factor under a cavity that still holds almost all of its own site. It is therefore
    larger than EP's log normaliser, by an amount that does not shrink with the number of rows.
    """

    name: ClassVar[str] = "stochastic"
    functional: ClassVar[str] = "log normaliser"
    objective: ClassVar[str] = "objective of stochastic EP"
    decay: ClassVar[float] = 0.0

    def share(self, counts: TensorVariable) -> TensorVariable:
        return 1.0 - 1.0 / counts

    def seen(self, precision: TensorVariable, location: TensorVariable, counts: TensorVariable) -> Gaussian:
        share = self.share(counts)
        return gaussian(share[:, None, None] * precision, share[:, None] * location)

    def sites(self, rule: Rule, marginals: Marginals, labels: TensorVariable) -> BatchSites:
        of_point = rule.terms(marginals.prior_mean + marginals.mean, marginals.rest + marginals.variance, labels)
        gamma = of_point.in_mean**2 - 2.0 * of_point.in_variance
        t, nu = site_of(of_point.in_mean, gamma, marginals.mean, marginals.variance)
        return BatchSites(
            t,
            nu,
            of_point.value,
            of_point.in_mean,
            of_point.in_variance,
            of_point.in_variance,
            pt.zeros_like(labels),
        )

    def in_arrays(self) -> StochasticSites:
        return StochasticSites()

    def constant(
        self, seen: Gaussian, precision: TensorVariable, location: TensorVariable, counts: TensorVariable
    ) -> TensorVariable:
        whole = gaussian(precision, location).log_normalisers
        return (whole + counts * (seen.log_normalisers - whole)).sum()


@dataclass(frozen=True)
class StoredMemory(Memory):
    """Villacampa-Calvo and Hernández-Lobato (2017), section 2.3: EP with minibatches.

    A site acts on x′ = w′ᵀv, with the features w′ that its row had when it came last. The memory takes it out of q
    there. The moments of the row's factors are those of x = wᵀv, with the features of today. Where hyperparameters and
    inducing inputs do not move both are the same, and the fixed point is that of EP without any noise of batches.
    """

    name: ClassVar[str] = "sites"
    functional: ClassVar[str] = "log normaliser"
    objective: ClassVar[str] = "log normaliser of EP"
    decay: ClassVar[float] = 0.0
    schedule: ClassVar[type[Schedule]] = ReplacingSchedule

    def take(self, rule: Rule, state: State, batch: BatchGraph, counts: TensorVariable, beta: TensorVariable) -> Effect:
        w = batch.features.w
        (size, per_row, _), (sets, inducing, _) = batch.by_site.type.shape, w.type.shape
        state.hold_sites(batch.rows, per_row, sets, batch.differences)
        t = pt.tensor("former_precision", dtype="float64", shape=(size, per_row))
        nu = pt.tensor("former_location", dtype="float64", shape=(size, per_row))
        w_kept = pt.tensor("former_features", dtype="float32", shape=(size, sets, inducing))
        w_former = w_kept.transpose(1, 2, 0).astype("float64")

        q = gaussian(state.precision, state.location)
        half, half_former = q.half(w), q.half(w_former)
        mean, mean_former = batch.at_sites(q.means(w)), batch.at_sites(q.means(w_former))
        variance, both, variance_former = (
            batch.at_sites((a * b).sum(axis=1))
            for a, b in ((half, half), (half, half_former), (half_former, half_former))
        )
        # Without the site: moments of x′, and by its covariance with x those of x.
        keep = 1.0 - t * variance_former
        less = (t * mean_former - nu) / keep
        cavity_mean, cavity_variance = mean + both * less, variance + both * both * t / keep
        rest = batch.at_sites(pt.broadcast_to(batch.features.rest, (counts.type.shape[0], size)))
        latent_mean, latent_variance = batch.at_sites(batch.features.mean) + cavity_mean, rest + cavity_variance
        of_point = rule.terms(latent_mean, latent_variance, batch.labels)
        in_mean, in_variance = of_point.in_mean, of_point.in_variance

        gamma = in_mean**2 - 2.0 * in_variance
        found_t, found_nu = site_of(in_mean, gamma, cavity_mean, cavity_variance)
        new_t, new_nu = t + beta * (found_t - t), nu + beta * (found_nu - nu)
        w_keep = w.astype("float32")
        w_new = w_keep.astype("float64")
        came, went = (
            (batch.by_function(batch.weights[:, None] * each) for each in pair) for pair in ((new_t, new_nu), (t, nu))
        )
        of_new, of_former = _sums(w_new, *came), _sums(w_former, *went)
        of_sites = log_site_normalisers(t, nu, mean_former + variance_former * less, variance_former / keep)
        scale = batch.scale
        return Effect(
            (scale * (of_point.value - of_sites)).sum() + q.log_normalisers.sum(),
            (scale[:, None] * (in_mean * latent_mean + in_variance * latent_variance)).sum(),
            [in_mean, in_variance, q.mean, q.factor],
            [
                (remembered, remembered + new - former)
                for remembered, new, former in zip((state.precision, state.location), of_new, of_former, strict=True)
            ],
            pt.zeros_like(batch.labels),
            (t, nu, w_kept),
            (new_t, new_nu, w_keep.transpose(2, 0, 1), batch.by_site.argmax(axis=2)),
        )


def _sums(w: TensorVariable, t: TensorVariable, nu: TensorVariable) -> tuple[TensorVariable, TensorVariable]:
    """Σ t w wᵀ (c, M, M) and Σ ν w (c, M), for features w (q, M, B) and sites (c, B)."""
    return pt.matmul(w * t[:, None, :], w.transpose(0, 2, 1)), pt.matmul(w, nu[:, :, None])[:, :, 0]


_MOST = 0.5  # of what a step keeps of a precision, that sites may take away
_TINY = 1e-300


@dataclass(frozen=True)
class Variational(AveragesMemory):
    """Hensman et al. (2013) in natural parameters (Khan and Lin 2017): no cavity is formed.

    The objective is the lower bound Σ E_q[log t] − KL(q, N(0, I)). Where factors are not log-concave sites may have
    precisions below zero. A step makes (1 − β) (I + S) + β (I + Σ t w wᵀ) of the precision I + S. The precisions
    below zero take at most β Σ |t| wᵀ(I + S)⁻¹w of the first term. They are reduced where that is above a half of
    1 − β. Where steps get small they no longer are, and the fixed point is a maximum of the bound.
    """

    name: ClassVar[str] = "variational"
    functional: ClassVar[str] = "expected log"
    objective: ClassVar[str] = "lower bound"

    def sites(self, rule: Rule, marginals: Marginals, labels: TensorVariable) -> BatchSites:
        of_point = rule.terms(marginals.prior_mean + marginals.mean, marginals.rest + marginals.variance, labels)
        t = -2.0 * of_point.in_variance
        return BatchSites(
            t,
            of_point.in_mean + t * marginals.mean,
            of_point.value,
            of_point.in_mean,
            of_point.in_variance,
            of_point.in_variance,
            pt.zeros_like(labels),
        )

    def bounded(self, sites: BatchSites, marginals: Marginals, batch: BatchGraph, beta: TensorVariable) -> BatchSites:
        below = pt.minimum(sites.precision, 0.0)
        taken = -beta * batch.by_function(below * marginals.variance * batch.scale[:, None]).sum(axis=1)
        kept = pt.minimum(1.0, _MOST * (1.0 - beta) / pt.maximum(taken, _TINY))
        less = below * (1.0 - batch.at_sites(pt.broadcast_to(kept[:, None], (kept.shape[0], below.shape[0]))))
        return sites._replace(
            precision=sites.precision - less,
            location=sites.location - less * marginals.mean,
            floored=pt.lt(less, 0.0).any(axis=1),
        )

    def in_arrays(self) -> VariationalSites:
        return VariationalSites(_MOST)

    def constant(
        self, seen: Gaussian, precision: TensorVariable, location: TensorVariable, counts: TensorVariable
    ) -> TensorVariable:
        functions, size = location.type.shape
        root = pt.linalg.solve_triangular(
            seen.factor, pt.broadcast_to(pt.eye(size)[None], (functions, size, size)), lower=True, b_ndim=2
        )
        log_det = pt.log(pt.diagonal(seen.factor, axis1=1, axis2=2)).sum(axis=1)
        return -0.5 * ((root * root).sum() + (seen.mean**2).sum() - functions * size + 2.0 * log_det.sum())


STREAMING_METHODS: dict[str, tuple[type[Memory], ...]] = {
    "sparse_ep": (Stateless, StoredMemory),
    "sparse_sep": (Stochastic,),
    "sparse_vi": (Variational,),
}
"""For `pm.fit(method=...)`, the ways to remember what was seen that each has, its default first."""
