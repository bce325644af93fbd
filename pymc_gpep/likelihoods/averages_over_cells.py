"""Averages of a density of one latent value with any number of modes, over a normal distribution.

The nodes are those of `pymc_gpep.likelihoods.cell_rules`. Their number doubles until averages agree. A call of the
density computes all points, so NumPy arrays suffice without compilation. A point is NaN if its averages do not agree,
or if the density is NaN at the mean. For a likelihood of one latent function, `computations_of` returns all local
computations that follow from the log density.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array, Observed
from pymc_gpep.likelihoods.cell_rules import (
    CellDensity,
    CellRule,
    DensityPoints,
    Rules,
    on_grid,
    plain_rules,
    tilted_rules,
)
from pymc_gpep.likelihoods.local_computations import (
    AverageLogDensity,
    ColumnDensity,
    GaussianAverage,
    Kernel,
    ParameterSlopes,
    ScalarDensity,
)

FEWEST, MOST = 12, 1536
"""Smallest and largest number of nodes of a cell."""
BLOCK = 512
"""Number of points of a batch, whose nodes fit into a processor's cache."""
_MOST_LOOSE = 192  # Largest number of nodes of a cell for averages with few digits.
_AGREEMENT = 1e-7  # Largest difference between a rule and the rule with half the nodes. The error is about its square.
_AGREEMENT_OF_NESTED = 1e-8  # The same for trapezoid rules, whose differences fall more irregularly.
_POINT = 1e-10  # Smallest variance of a normal density for a rule, in units of the inverse curvature of log p.
_NARROW = 1e-3  # Variance, in units of the inverse curvature, below which derivatives of log p are used.
_SMOOTH = 1e-9  # Rounding error of a second derivative, relative to the inverse variance.
_LEAST = 1e-60  # Weight of a node below which its slope counts as 0, since it may overflow.


def _floor(variance: Array, rows: int) -> Array:
    """Return sizes of terms and derivatives that count as 0: for a narrow N they are rounding errors."""
    order = np.arange(rows)[:, None]
    floor = 1e-5 * np.maximum(variance, 1.0) ** (-0.5 * order)
    return np.asarray(np.where(order > 2, np.maximum(floor, 1e-7 * variance ** (-0.5 * order)), floor))


def agree(now: Array, before: Array, variance: Array, *, nested: bool = False, loose: float = 1.0) -> NDArray[np.bool_]:
    """Return a mask of the points whose terms (rows, n) by two rules agree, under normal densities of `variance`.

    If the rules are `nested` trapezoid rules, h and its first two derivatives must agree more closely. Allowed
    differences are multiplied by `loose`.
    """
    largest = loose * np.where(nested & (np.arange(len(now)) < 3), _AGREEMENT_OF_NESTED, _AGREEMENT)[:, None]
    with np.errstate(invalid="ignore"):
        close = np.abs(now - before) <= largest * (np.abs(now) + _floor(variance, len(now)))
    return np.asarray(close.all(axis=0))


def _refined(rules: Rules, terms: Callable[[CellRule, int], Array], rows: int) -> Array:
    """Return terms (rows, n). Nodes are doubled until the terms of a point agree; NaN if they never agree."""
    n = sum(len(group) for group, _ in rules)
    out = np.full((rows, n), np.nan)
    for group, begun in rules:
        left, rule = group, begun
        count = FEWEST
        before = terms(rule, count)
        while count < MOST and len(left):
            count *= 2
            now = terms(rule, count)
            same = agree(now, before, rule.points.variance)
            out[:, left[same]] = now[:, same]
            others = np.flatnonzero(~same)
            left, before, rule = left[others], now[:, others], rule.take(others)
    return out


class NodeTable(NamedTuple):
    """Density of points at the nodes of a rule, arrays (k, n)."""

    deviation: Array
    """Nodes relative to the mean of the normal density."""
    measure: Array
    """Weights of ∫ · df."""
    value: Array
    """log p."""
    slope: Array
    """Derivatives of log p."""
    curvature: Array
    """Second derivatives of log p."""

    def take(self, chosen: NDArray[np.intp] | slice) -> Self:
        return type(self)(*(each[:, chosen] for each in self))

    def half(self) -> Self:
        """Return the table of the rule with half the steps, for a trapezoid rule."""
        return type(self)(*(each[::2] for each in self))._replace(measure=2.0 * self.measure[::2])

    def normalised(self, variance: Array) -> tuple[Array, Array]:
        """Return normalised weights (k, n) of N p, and log ∫ N p (n,)."""
        exponent = self.value - 0.5 * self.deviation**2 / variance
        top = exponent.max(axis=0)
        weights = np.exp(exponent - top) * self.measure
        total = weights.sum(axis=0)
        return weights / total, top + np.log(total) - 0.5 * np.log(2.0 * math.pi * variance)


def _tabulated(rule: CellRule, count: int, half: NodeTable | None = None) -> NodeTable:
    """Return the density at the nodes of a rule with `count` nodes in each cell, given the table of half of them."""
    deviation, measure = rule.nodes(count)
    if half is None or not rule.nested(count):
        return NodeTable(deviation, measure, *rule.points.log_density(deviation))
    density = np.empty((3, *deviation.shape))
    density[:, ::2] = half.value, half.slope, half.curvature
    density[:, 1::2] = rule.points.log_density(deviation[1::2])
    return NodeTable(deviation, measure, *density)


def log_average_of(table: NodeTable, variance: Array) -> Array:
    """Return h and four derivatives in the mean (5, n), for a normal density with `variance` (n,).

    With s = (f − μ)/D and joint cumulants κ they are E ℓ′, Cov(ℓ′, s), κ(ℓ′, s, s) and κ(ℓ′, s, s, s), also for
    densities with kinks. Powers of a small D would amplify rounding errors of the last two. For a narrow N they are
    computed as Cov(ℓ″, s) + κ(ℓ′, ℓ′, s) and its derivative.
    """
    weights, value = table.normalised(variance)
    slope, curvature = table.slope, table.curvature

    def average(x: Array) -> Array:
        return np.asarray(np.einsum("ij,ij->j", weights, x))

    first = average(slope)
    g, s = slope - first, table.deviation / variance
    s -= average(s)
    gs, ss = g * s, s * s
    second, of_s = average(gs), average(ss)
    bend, spread = average(curvature), average(g * g)
    third, fourth = average(g * ss), average(gs * ss) - 3.0 * second * of_s
    small = variance * (average(np.abs(curvature)) + spread) < _NARROW
    # Near a kink, derivatives of log p do not show the change of slope.
    small &= np.abs(bend + spread - second) * variance < _SMOOTH
    if small.any():
        c = curvature - bend
        third = np.where(small, average(c * s) + average(g * gs), third)
        narrow = average(c * ss) + average(gs * gs) - spread * of_s - 2.0 * second**2
        fourth = np.where(small, narrow, fourth)
    return np.stack([value, first, second, third, fourth])


def log_averages(
    rules: Rules, keep: Callable[[CellRule, NodeTable | None, NodeTable], None] | None = None, loose: float = 1.0
) -> Array:
    """Return h and four derivatives (5, n). Nodes are doubled until they agree; NaN if they never agree.

    `keep` is called with the rules of points that agree, and with the tables of half the nodes and of all nodes. The
    first table is None if it has nodes of the second table, see `NodeTable.half`. `loose` is that of `agree`.
    """
    out = np.full((5, sum(len(group) for group, _ in rules)), np.nan)
    for group, begun in rules:
        left, rule, count = group, begun, FEWEST
        table = _tabulated(rule, count)
        before = log_average_of(table, rule.points.variance)
        while count < (MOST if loose == 1.0 else _MOST_LOOSE) and len(left):
            count *= 2
            half, table = table, _tabulated(rule, count, table)
            now = log_average_of(table, rule.points.variance)
            same = agree(now, before, rule.points.variance, nested=rule.nested(count), loose=loose)
            out[:, left[same]] = now[:, same]
            done, others = np.flatnonzero(same), np.flatnonzero(~same)
            if keep is not None and done.size:
                keep(rule.take(done), None if rule.nested(count) else half.take(done), table.take(done))
            left, before, rule, table = left[others], now[:, others], rule.take(others), table.take(others)
    return out


def by_blocks(
    density: CellDensity,
    mean: Array,
    variance: Array,
    columns: Array,
    rows: int,
    terms: Callable[[DensityPoints], Array],
) -> Array:
    """Compute terms (rows, n) for blocks of valid points."""
    out = np.full((rows, len(mean)), np.nan)
    usable = np.isfinite(mean) & (variance >= 0.0) & (variance < np.inf)
    at_mean = np.full(len(mean), np.nan)
    chosen = np.flatnonzero(usable)
    if chosen.size:
        at_mean[chosen] = density.two_derivatives(mean[chosen], columns[:, chosen])[0]
    chosen = np.flatnonzero(usable & ~np.isnan(at_mean))
    with np.errstate(all="ignore"):
        for start in range(0, chosen.size, BLOCK):
            block = chosen[start : start + BLOCK]
            out[:, block] = terms(DensityPoints(density, mean[block], variance[block], columns[:, block]))
    return out


def widened(points: DensityPoints) -> tuple[DensityPoints, Array, NDArray[np.bool_]]:
    """Return points with variances of at least the rules' minimum, log p at the mean, and a mask of changed points."""
    at_mean = points.log_density(0.0 * points.mean)
    least = _POINT / (1.0 + np.abs(at_mean[2]) + at_mean[1] ** 2)
    return points._replace(variance=np.maximum(points.variance, least)), at_mean, points.variance < least


def log_average_terms(
    density: CellDensity, mean: Array, variance: Array, columns: Array, concave: bool = False
) -> Array:
    """Return h of `GaussianAverage` and four derivatives (5, n), see `pymc_gpep.likelihoods.local_computations`."""

    def terms(points: DensityPoints) -> Array:
        wide, at_mean, narrow = widened(points)
        out = log_averages(tilted_rules(wide, concave))
        out[:3] = np.where(narrow, at_mean, out[:3])
        return out

    return by_blocks(density, mean, variance, columns, 5, terms)


def _plain_weights(rule: CellRule, count: int) -> tuple[Array, Array]:
    """Return nodes relative to the mean, and normalised weights of the average over N."""
    deviation, measure = rule.nodes(count)
    weights = np.exp(-0.5 * deviation**2 / rule.points.variance) * measure
    return deviation, weights / weights.sum(axis=0)


def _average_log(rule: CellRule, count: int) -> Array:
    """Return g, and its derivatives in mean and variance. The derivative Cov(ℓ′, f)/2v in v is valid with kinks."""
    deviation, weights = _plain_weights(rule, count)
    value, slope, _ = rule.points.log_density(deviation)
    value = np.where(weights > 0.0, value, 0.0)
    first = (weights * slope).sum(axis=0)
    of_variance = 0.5 * (weights * (slope - first) * deviation).sum(axis=0) / rule.points.variance
    return np.stack([(weights * value).sum(axis=0), first, of_variance])


def average_log_terms(
    density: CellDensity, mean: Array, variance: Array, columns: Array, concave: bool = False
) -> Array:
    """Return g of `AverageLogDensity`, ∂g/∂m and ∂g/∂v (3, n), see `pymc_gpep.likelihoods.local_computations`."""

    def terms(points: DensityPoints) -> Array:
        wide, at_mean, narrow = widened(points)
        out = _refined(plain_rules(wide, concave), _average_log, 3)
        return np.where(narrow, at_mean * [[1.0], [1.0], [0.5]], out)

    return by_blocks(density, mean, variance, columns, 3, terms)


class Numbered:
    """Density whose last column is the index of the point."""

    def __init__(self, density: CellDensity) -> None:
        self._density = density

    def two_derivatives(self, f: Array, columns: Array) -> Array:
        return self._density.two_derivatives(f, columns[:-1])

    def on_grid(self, f: Array, columns: Array) -> Array:
        return on_grid(self._density, f, columns[:-1])


type _Slopes = Callable[[Array, NDArray[np.intp]], Array]
"""Function of latent values (k, n) and indices of points that returns slopes (p, k, n)."""


def average_slopes(
    density: CellDensity,
    mean: Array,
    variance: Array,
    columns: Array,
    slopes: _Slopes,
    count: int,
    concave: bool = False,
    *,
    tilted: bool = True,
) -> Array:
    """Return slopes (count, n) in parameters: of h as averages over N p if `tilted`, else of g as averages over N."""
    rules_of = tilted_rules if tilted else plain_rules
    numbers = np.vstack([columns, np.arange(len(mean), dtype=np.float64)])

    def averages(rule: CellRule, nodes: int) -> Array:
        if tilted:
            table = _tabulated(rule, nodes)
            deviation, (weights, _) = table.deviation, table.normalised(rule.points.variance)
        else:
            deviation, weights = _plain_weights(rule, nodes)
        found = slopes(rule.points.mean + deviation, rule.points.columns[-1].astype(np.intp))
        return np.asarray(np.where(weights > _LEAST, weights * found, 0.0).sum(axis=1))

    def terms(points: DensityPoints) -> Array:
        wide, _, _ = widened(points)
        return _refined(rules_of(wide, concave), averages, count)

    return by_blocks(Numbered(density), mean, variance, numbers, count, terms)


normal_slopes = partial(average_slopes, tilted=False)
"""Function that returns slopes (count, n) of g."""


def columns_of(y: Observed, parameters: Array) -> Array:
    """Return observations and parameters as columns of numbers."""
    return np.array([y, *parameters], np.float64)


def computations_of(log_density: Callable[[Array, Observed, Array], Array]) -> tuple[object, ...]:
    """Return the local computations of a likelihood of one latent function that follow from its log density.

    Parameters
    ----------
    log_density : function of (f, y, parameters)
        log p(y | f) and its first three derivatives in f, (4, n), for latent values (n,), observations (n,) and
        parameters (p, n).
    """

    class Columns:
        """Density as a function of latent values and columns."""

        def two_derivatives(self, f: Array, given: Array) -> Array:
            return log_density(f, given[0], given[1:])[:3]

    density = Columns()

    def derivatives(f: Array, y: Observed, parameters: Array, out: Array) -> None:
        out[:] = log_density(f, y, parameters)

    def average(mean: Array, variance: Array, y: Observed, parameters: Array, out: Array) -> None:
        out[:] = log_average_terms(density, mean, variance, columns_of(y, parameters))

    def average_log(mean: Array, variance: Array, y: Observed, parameters: Array, out: Array) -> None:
        out[:] = average_log_terms(density, mean, variance, columns_of(y, parameters))

    return (
        ScalarDensity(derivatives),
        ColumnDensity(columns_of, density.two_derivatives),
        GaussianAverage(average),
        AverageLogDensity(average_log),
    )


class KernelDensity:
    """Density that a kernel computes, with observations and parameters as columns."""

    def __init__(self, density: ScalarDensity, y: Observed) -> None:
        self._kernel, self._dtype = density.derivatives, y.dtype

    def two_derivatives(self, f: Array, columns: Array) -> Array:
        out = np.empty((4, len(f)))
        self._kernel(f, columns[0].astype(self._dtype), columns[1:], out)
        return out[:3]


def average_log_density(density: ScalarDensity) -> AverageLogDensity:
    """Return the computation of g for a log-concave density that a kernel computes."""

    def terms(mean: Array, variance: Array, y: Observed, parameters: Array, out: Array) -> None:
        out[:] = average_log_terms(KernelDensity(density, y), mean, variance, columns_of(y, parameters), True)

    return AverageLogDensity(terms)


def parameter_slopes(density: ScalarDensity, derivatives: Kernel) -> ParameterSlopes:
    """Return slopes of h and g in the parameters, computed as averages of slopes of log p."""

    def averaged(
        kind: Callable[..., Array], mean: Array, variance: Array, y: Observed, parameters: Array, out: Array
    ) -> None:
        def slopes(f: Array, points: NDArray[np.intp]) -> Array:
            found = np.empty((len(parameters), 3, f.size))
            derivatives(f.ravel(), np.tile(y[points], len(f)), np.tile(parameters[:, points], (1, len(f))), found)
            return found[:, 0].reshape(-1, *f.shape)

        own = KernelDensity(density, y)
        out[:] = kind(own, mean, variance, columns_of(y, parameters), slopes, len(parameters), True)

    return ParameterSlopes(derivatives, partial(averaged, average_slopes), partial(averaged, normal_slopes))
