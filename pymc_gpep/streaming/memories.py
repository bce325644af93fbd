"""Memories of a fit by batches: rules that compute and store sites, for EP, stochastic EP and variational inference.

A memory computes the sites of a batch, their effect on q(v), and the batch's terms of the objective and its gradient.
Here q(v) is the posterior of whitened inducing values v. In the gradient, sites and q are constant: the prior of v has
no hyperparameters. Only the features w and residual variances s of the batch depend on hyperparameters. A latent value
of a row is its prior mean plus wᵀv plus a residual of variance s. The formulas apply to NumPy and JAX.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.approximations.limits import at_least, check_limits
from pymc_gpep.array_types import Array
from pymc_gpep.solvers.common_shift import CommonSites, OwnFeatures, SameFeatures
from pymc_gpep.solvers.step_algebra import StepFeatures, StepPosterior, StepSlopes
from pymc_gpep.solvers.step_arrays import PointTerms, StepArrays

_LARGEST = 0.5  # Largest step size if a batch contains all rows. Full steps of all sites at once overshoot.


@dataclass(frozen=True)
class Schedule(ABC):
    """Step sizes β of the steps of a fit. They decrease from epoch to epoch.

    Parameters
    ----------
    per_epoch : int
        Number of batches in an epoch.
    decay : float
        After e epochs, β is multiplied by 1 / (1 + decay · e).
    """

    per_epoch: int
    decay: float

    @abstractmethod
    def __call__(self, step: int) -> float:
        """Return β of a step, counted from 0."""

    def _shrinking(self, step: int) -> float:
        return 1.0 / (1.0 + self.decay * (step // self.per_epoch))


class AveragingSchedule(Schedule):
    """Step sizes β of moving averages over sites: a batch replaces the share β. Decay reduces the noise of batches.

    In the first epoch the averages are over the batches so far. A single batch of all rows has no noise, so β is
    constant.
    """

    def __call__(self, step: int) -> float:
        if self.per_epoch == 1:
            return _LARGEST
        later = self._shrinking(step) / self.per_epoch
        return min(_LARGEST, max(later, 1.0 / (step + 2) if step < self.per_epoch else 0.0))


class ReplacingSchedule(Schedule):
    """Step sizes of the moves of stored sites of rows towards their new values.

    In small batches the step size is nearly 1. In large batches, full steps of all sites at once would overshoot.
    """

    def __call__(self, step: int) -> float:
        return self._shrinking(step) * (1.0 - (1.0 - _LARGEST) / self.per_epoch)


class Remembered(NamedTuple):
    """Averages or sums over sites. A step passes them to the next step."""

    precision: Array
    """Sum S of t w wᵀ over sites with precision t and features w, (c, M, M)."""
    location: Array
    """Sum h of ν w over sites with location ν, (c, M)."""
    common: tuple[Array, ...] = ()
    """Averages for the common shift, if the likelihood depends only on differences of functions."""


class RowSites(NamedTuple):
    """Stored sites of the rows in a batch, and their features."""

    precision: Array
    """Site precisions t, (B, d)."""
    location: Array
    """Site locations ν, (B, d)."""
    features: NDArray[np.float32]
    """Features at the last visit of each row, (B, 1 or c, M)."""

    def of(self, rows: NDArray[np.bool_]) -> Self:
        """Return the sites of the rows in a mask."""
        return type(self)(self.precision[rows], self.location[rows], self.features[rows])


class StepBatch(NamedTuple):
    """A batch of B points with d sites each."""

    arrays: StepArrays
    features: list[StepFeatures]
    terms: Callable[[Array, Array], PointTerms]
    """Function of means and variances (B, d) that returns the terms of the points."""
    functions: NDArray[np.int64]
    """Index of the function that each site acts on, (B, d)."""
    scale: Array
    """Number of rows of the data that each point represents in the objective, (B,)."""
    weights: Array
    """Weights: 1, or 0 for padding rows, (B,)."""
    counts: Array
    """Number of sites on each function, (c,)."""
    stored: RowSites | None = None

    def at_sites(self, values: Array) -> Array:
        """Select the value of the function of each site, (B, d), from values of all functions (B, c)."""
        return self.arrays.at_sites(values, self.functions)

    def summed(self, values: Array) -> Array:
        """Return sums (B, c) of values of sites (B, d) over the sites on each function, scaled to all rows."""
        return self.arrays.by_function(values, self.functions, self.scale, len(self.counts))

    def prior(self, q: StepPosterior) -> tuple[Array, Array]:
        """Return prior means and residual variances of the latent value of each site, (B, d) each."""
        groups, rows = [each.group for each in self.features], len(self.weights)
        xp = self.arrays.xp
        shapes = [(rows, len(each.functions)) for each in groups]
        means = [
            xp.zeros(shape) if each.moments.mean is None else each.moments.mean
            for each, shape in zip(self.features, shapes, strict=True)
        ]
        rests = [xp.broadcast_to(each.rest[:, None], shape) for each, shape in zip(self.features, shapes, strict=True)]
        return self.at_sites(q.in_order(groups, means)), self.at_sites(q.in_order(groups, rests))

    def common(self, remembered: Remembered) -> CommonSites | None:
        """Return the averages for the common shift; None if the likelihood depends on this shift."""
        if not remembered.common:
            return None
        if len(remembered.common) == 1:
            return SameFeatures(*remembered.common)
        return OwnFeatures(self.arrays, *remembered.common)

    def by_group(self, features: NDArray[Any]) -> list[Array]:
        """Return the features (B, M) of each group of functions, from stored features (B, 1 or c, M)."""
        last = features.shape[1] - 1
        return [features[:, min(each.group.functions[0], last)].astype(np.float64) for each in self.features]


class Marginals(NamedTuple):
    """Moments (B, d) of latent values of sites. A latent value is prior mean + x + residual, with x = wᵀv."""

    mean: Array
    """Posterior mean of x."""
    variance: Array
    """Posterior variance of x."""
    prior_mean: Array
    """Prior mean of the latent value."""
    rest: Array
    """Variance of the residual."""


class Effect(NamedTuple):
    """Results of a batch, before the state is updated."""

    value: np.float64
    """Estimate of the objective over all rows."""
    floored: Array
    """Whether the precision of a site of the point was limited, (B,)."""
    sums: Array
    """Sums of precisions and locations of the sites on each function, (2, B, c). They show whether the step is
    finite."""
    slopes: Callable[[], list[StepSlopes]]
    """Function that returns derivatives of the objective in the features of each group."""
    remembered: Callable[[], Remembered]
    """Function that returns averages or sums after the batch. It overwrites the sum S."""
    stored: RowSites | None = None
    """New stored sites of the batch."""


@dataclass(frozen=True)
class Memory(ABC):
    """Rule by which the sites of batches are computed and stored.

    Raises
    ------
    ValueError, TypeError
        If an option has an invalid value.
    """

    name: ClassVar[str]
    """Name of the memory for the option `memory`."""
    functional: ClassVar[str]
    """Functional of factors that this memory uses, see `Rule.functional`."""
    objective: ClassVar[str]
    """Name of the objective in the progress display."""
    decay: ClassVar[float]
    """Default of `decay`, see `Schedule`."""
    schedule: ClassVar[type[Schedule]]
    """Schedule of the step sizes."""
    single: ClassVar[bool] = True
    """Whether matrix products may be in single precision."""
    stores: ClassVar[bool] = False
    """Whether the site of each row is stored."""

    def __post_init__(self) -> None:
        check_limits(self)

    @abstractmethod
    def take(self, remembered: Remembered, batch: StepBatch, beta: float) -> Effect:
        """Return the results of a batch, for the step size β."""


class BatchSites(NamedTuple):
    """New sites of a batch, and their terms of the objective."""

    precision: Array
    """New site precisions t, (B, d)."""
    location: Array
    """New site locations ν, (B, d)."""
    value: Array
    """Term of each point in the objective, (B,)."""
    in_mean: Array
    """Derivatives of `value` in the mean of x, at fixed sites, (B, d)."""
    in_variance: Array
    """Derivatives of `value` in the variance of x, (B, d)."""
    in_rest: Array
    """Derivatives of `value` in the residual variance s, (B, d)."""
    floored: Array
    """Mask of points with a site whose precision was limited, (B,)."""


@dataclass(frozen=True)
class AveragesMemory(Memory):
    """Memory that computes all sites of a batch from one Gaussian q with the natural parameters S and h."""

    decay: ClassVar[float] = 0.1
    schedule: ClassVar[type[Schedule]] = AveragingSchedule

    def share(self, counts: Array) -> Array:
        """Return the share (c,) of S and h in the Gaussian for new sites, given numbers of sites (c,)."""
        return np.ones_like(counts)

    @abstractmethod
    def sites(self, batch: StepBatch, at: Marginals) -> BatchSites:
        """Return the new sites of a batch."""

    def bounded(self, sites: BatchSites, at: Marginals, batch: StepBatch, beta: float) -> BatchSites:
        """Return sites with limited negative precisions, such that q stays proper after a step of size β."""
        return sites

    @abstractmethod
    def constant(self, q: StepPosterior, counts: Array) -> np.float64:
        """Return the part of the objective that is not a sum over points, from the Gaussian q."""

    def take(self, remembered: Remembered, batch: StepBatch, beta: float) -> Effect:
        features, arrays = batch.features, batch.arrays
        q = StepPosterior(
            arrays, remembered.precision, remembered.location, self.share(batch.counts), roots=len(features) > 1
        )
        common = batch.common(remembered)
        shifted = None if common is None else common.shift(q)
        covered = q.covered(features)
        at = Marginals(batch.at_sites(covered.mean), batch.at_sites(covered.variance), *batch.prior(q))
        sites = self.bounded(self.sites(batch, at), at, batch, beta)
        t, nu = batch.summed(sites.precision), batch.summed(sites.location)

        def slopes() -> list[StepSlopes]:
            return q.slopes(features, covered, *map(batch.summed, sites[3:6]))

        def after() -> Remembered:
            each = [(own.w, own.group.functions) for own in features]
            found = arrays.with_sites(remembered.precision, each, t, beta)
            new = q.in_order([own.group for own in features], [own.w.T @ nu[:, own.group.taken] for own in features]).T
            of_common: tuple[Array, ...] = ()
            if common is not None and shifted is not None:
                of_common = common.averaged(shifted, features, t, covered.mean, beta)
            return Remembered(found, q.location + beta * (new - q.location), of_common)

        value: np.float64 = (batch.scale * sites.value).sum() + self.constant(q, batch.counts)
        return Effect(value, sites.floored, arrays.xp.stack([t, nu]), slopes, after)


CAVITY_SHARE = 0.05  # Sites are limited such that the precision of a cavity is at least this share of the marginal's.


@dataclass(frozen=True)
class Stateless(AveragesMemory):
    """EP without stored sites. Iterations of site = update(q / site), from 0, compute the sites of a batch.

    Parameters
    ----------
    local_iterations : int
        Number of iterations. After few iterations, the cavity q / site still contains a small part of the site.
    """

    local_iterations: int = field(default=3, metadata=at_least(1))

    name: ClassVar[str] = "stateless"
    functional: ClassVar[str] = "log normaliser"
    objective: ClassVar[str] = "log normaliser of EP"

    def sites(self, batch: StepBatch, at: Marginals) -> BatchSites:
        arrays, largest = batch.arrays, 1.0 - CAVITY_SHARE

        def update(sites: tuple[Array, Array]) -> tuple[Array, Array]:
            mean, variance, *latent = arrays.cavities(at.mean, at.variance, *sites, at.prior_mean, at.rest)
            found = batch.terms(*latent)
            matching = arrays.matching_sites(found.in_mean, found.in_variance, mean, variance)
            return arrays.bounded_sites(at.variance, largest, *matching)

        nothing = arrays.xp.zeros_like(at.mean)
        t, nu = arrays.repeat(update, (nothing, nothing), self.local_iterations)
        cavity_mean, cavity_variance, *latent = arrays.cavities(at.mean, at.variance, t, nu, at.prior_mean, at.rest)
        found = batch.terms(*latent)
        taken = t * at.variance
        keep = 1.0 - taken
        return BatchSites(
            t,
            nu,
            found.value - arrays.site_log_normalisers(t, nu, cavity_mean, cavity_variance),
            found.in_mean,
            (0.5 * found.in_mean * (t * at.mean - nu) + found.in_variance) / keep,
            found.in_variance,
            (taken >= largest * (1.0 - 1e-12)).any(axis=1),
        )

    def constant(self, q: StepPosterior, counts: Array) -> np.float64:
        found: np.float64 = q.log_normalisers.sum()
        return found


@dataclass(frozen=True)
class Stochastic(AveragesMemory):
    """Stochastic EP: Villacampa-Calvo and Hernández-Lobato (2017), sections 2.3.1 and 2.3.2; Li et al. (2015).

    In the objective, the cavity of a factor contains nearly all of its site. So the objective is larger than the log
    normaliser of EP, by an amount that does not decrease with the number of rows.
    """

    name: ClassVar[str] = "stochastic"
    functional: ClassVar[str] = "log normaliser"
    objective: ClassVar[str] = "objective of stochastic EP"
    decay: ClassVar[float] = 0.0

    def share(self, counts: Array) -> Array:
        found: Array = 1.0 - 1.0 / counts
        return found

    def sites(self, batch: StepBatch, at: Marginals) -> BatchSites:
        found = batch.terms(at.prior_mean + at.mean, at.rest + at.variance)
        t, nu = batch.arrays.matching_sites(found.in_mean, found.in_variance, at.mean, at.variance)
        return BatchSites(t, nu, found.value, found.in_mean, found.in_variance, found.in_variance, 0.0 * batch.weights)

    def constant(self, q: StepPosterior, counts: Array) -> np.float64:
        whole = q.whole_log_normalisers
        found: np.float64 = (whole + counts * (q.log_normalisers - whole)).sum()
        return found


@dataclass(frozen=True)
class StoredMemory(Memory):
    """EP with stored sites: Villacampa-Calvo and Hernández-Lobato (2017), section 2.3.

    A site acts on x′ = w′ᵀv, with the features w′ of its row at the last visit. The cavity is q divided by this site.
    Factors act on x = wᵀv, with current features w. At fixed hyperparameters and inducing inputs, x is x′, and steps
    have the fixed point of EP, without noise of batches.
    """

    name: ClassVar[str] = "sites"
    functional: ClassVar[str] = "log normaliser"
    objective: ClassVar[str] = "log normaliser of EP"
    decay: ClassVar[float] = 0.0
    schedule: ClassVar[type[Schedule]] = ReplacingSchedule
    single: ClassVar[bool] = False  # In single precision, a removed site would not cancel exactly.
    stores: ClassVar[bool] = True

    def take(self, remembered: Remembered, batch: StepBatch, beta: float) -> Effect:
        features, arrays, stored = batch.features, batch.arrays, batch.stored
        assert stored is not None
        t, nu = stored.precision, stored.location
        groups = [each.group for each in features]
        precision, location = remembered.precision, remembered.location
        q = StepPosterior(arrays, precision, location, np.ones_like(batch.counts))
        former = [each._replace(w=w) for each, w in zip(features, batch.by_group(stored.features), strict=True)]
        now, before = q.covered(features), q.covered(former)
        between = [
            arrays.inner_products(each.w, covariances, len(each.group.functions))
            for each, covariances in zip(features, before.covariances, strict=True)
        ]
        mean, variance, former_mean, former_variance, both = map(
            batch.at_sites, (now.mean, now.variance, before.mean, before.variance, q.in_order(groups, between))
        )
        # Cavity moments of x follow from cavity moments of x′, by their covariance.
        keep = 1.0 - t * former_variance
        less = (t * former_mean - nu) / keep
        cavity_mean, cavity_variance = mean + both * less, variance + both * both * t / keep
        prior_mean, rest = batch.prior(q)
        found = batch.terms(prior_mean + cavity_mean, rest + cavity_variance)
        new_t, new_nu = (
            old + beta * (new - old)
            for old, new in zip(
                (t, nu),
                arrays.matching_sites(found.in_mean, found.in_variance, cavity_mean, cavity_variance),
                strict=True,
            )
        )
        of_sites = arrays.site_log_normalisers(t, nu, former_mean + former_variance * less, former_variance / keep)

        # Stored features are in single precision. The sums use the same rounded features.
        kept = [each.w.astype(np.float32) for each in features]
        own = {k: w for group, w in zip(groups, kept, strict=True) for k in group.functions}
        sets = range(stored.features.shape[1])
        latter = RowSites(new_t, new_nu, arrays.xp.stack([own[k] for k in sets], axis=1))

        def on_functions(values: Array) -> Array:
            return arrays.by_function(values, batch.functions, batch.weights, len(batch.counts))

        came = [(w.astype(np.float64), group.functions) for w, group in zip(kept, groups, strict=True)]
        gone = [(each.w, each.group.functions) for each in former]
        come_t, come_nu, gone_t, gone_nu = map(on_functions, (new_t, new_nu, t, nu))

        def slopes() -> list[StepSlopes]:
            of_mean, of_variance = batch.summed(found.in_mean), batch.summed(found.in_variance)
            half = batch.summed(0.5 * found.in_mean * less + found.in_variance * both * t / keep)
            made = q.slopes(features, now, of_mean, of_variance, of_variance)
            return [
                each._replace(w=arrays.feature_slopes(each.w, covariances, of, 0.0 * of, 0, each.w))
                for each, covariances, of in zip(
                    made, before.covariances, (half[:, group.taken] for group in groups), strict=True
                )
            ]

        def after() -> Remembered:
            new = arrays.with_sites(precision, came, come_t, 1.0, added=True)
            new = arrays.with_sites(new, gone, -gone_t, 1.0, added=True)
            moved = [
                w.T @ come_nu[:, group.taken] - old.T @ gone_nu[:, group.taken]
                for (w, _), (old, _), group in zip(came, gone, groups, strict=True)
            ]
            return Remembered(new, location + q.in_order(groups, moved).T)

        value: np.float64 = (batch.scale * (found.value - of_sites)).sum() + q.log_normalisers.sum()
        return Effect(value, 0.0 * batch.weights, arrays.xp.stack([come_t, come_nu]), slopes, after, latter)


_MOST = 0.5  # Negative sites may remove at most this share of the precision (1 − β) (I + S) in a step.
_TINY = 1e-300


@dataclass(frozen=True)
class Variational(AveragesMemory):
    """Variational inference: Hensman et al. (2013) in natural parameters (Khan and Lin 2017), without cavities.

    The objective is the lower bound: the sum of expected log factors, minus KL(q, N(0, I)). If factors are not
    log-concave, site precisions t may be negative. A step replaces the precision I + S of q by (1 − β) (I + S) + β (I +
    Σ t w wᵀ). Negative precisions remove at most the share β Σ |t| wᵀ(I + S)⁻¹w of I + S. If this share exceeds half of
    1 − β, the step reduces them. Small steps do not reduce them, so the fixed point is a maximum of the bound.
    """

    name: ClassVar[str] = "variational"
    functional: ClassVar[str] = "expected log"
    objective: ClassVar[str] = "lower bound"
    single: ClassVar[bool] = False  # Rounding errors of float32 accumulate if latent values are of size 100.

    def sites(self, batch: StepBatch, at: Marginals) -> BatchSites:
        found = batch.terms(at.prior_mean + at.mean, at.rest + at.variance)
        t = -2.0 * found.in_variance
        nu = found.in_mean + t * at.mean
        return BatchSites(t, nu, found.value, found.in_mean, found.in_variance, found.in_variance, 0.0 * batch.weights)

    def bounded(self, sites: BatchSites, at: Marginals, batch: StepBatch, beta: float) -> BatchSites:
        xp = batch.arrays.xp
        below = xp.minimum(sites.precision, 0.0)
        taken = -beta * batch.summed(below * at.variance).sum(axis=0)
        kept = xp.minimum(1.0, _MOST * (1.0 - beta) / xp.maximum(taken, _TINY))
        less = below * (1.0 - kept[batch.functions])
        return sites._replace(
            precision=sites.precision - less,
            location=sites.location - less * at.mean,
            floored=(less < 0.0).any(axis=1),
        )

    def constant(self, q: StepPosterior, counts: Array) -> np.float64:
        found: np.float64 = -q.divergences.sum()
        return found


STREAMING_METHODS: dict[str, tuple[type[Memory], ...]] = {
    "sparse_ep": (Stateless, StoredMemory),
    "sparse_sep": (Stochastic,),
    "sparse_vi": (Variational,),
}
"""Memories for each method of `pm.fit`, the default first."""
