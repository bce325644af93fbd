"""Averages of a density p(f) of one latent value f over a normal density N(f), also if p has several modes.

The range of f is divided into cells. Cells meet at the modes of N(f) p(f), between these modes, and at kinks of p. In a
cell f = mode + c sinh τ, and τ has Gauss–Legendre nodes. These nodes are dense near the mode and extend far. Modes of p
are found from its slopes at some dozens of values of f. A narrow mode is found only if its tails reach such a value.

If p is log-concave, there is only one mode, so this search is not needed. A single cell with the trapezoid rule in τ
then takes half of the time.

The number of nodes is doubled until averages agree. One call evaluates the density at all points, so NumPy is fast
enough without compilation. The result of a point is NaN if its averages do not agree, or if p is NaN at the mean of N.
`computations_of` returns all local computations of a likelihood of one latent function, given its log density.
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

_DROP = 45.0  # The range ends where the log integrand is this much below its maximum.
_REACH = 9.5  # The range covers at least this many standard deviations on either side of the mean.
_LOOKS = 33  # Number of equidistant values of f at which slopes are computed first, to find modes.
_MODES = 3  # At most this number of modes of a density is used: the highest modes.
_STEPS = 40  # A search for a mode stops after this number of steps.
_LONGEST = 100  # A search for an end of the range, or for a width, stops after this number of steps.
_AROUND = np.array([-4.0, -2.0, -1.0, 0.0, 1.0, 2.0, 4.0])  # Extra values of f near a mode of p, in its widths.
_EVEN = 20.0  # Scale c of sinh, in standard deviations, that makes nodes nearly equidistant.
_BROAD = 4.0  # `_one_cell` searches for a bend of log p in cells longer than 19 times this number.
_LEAST = 1e-60  # The slope at a node with a smaller weight counts as 0, since it may overflow.
_HALVINGS = 50  # Number of bisection steps in the search for a bend of log p.


class CellDensity(Protocol):
    """Density p of a latent value. Its further arguments, such as the observation, are columns (q, m) of m values."""

    def two_derivatives(self, f: Array, columns: Array) -> Array:
        """Return log p(f) and its first two derivatives, (3, m), for latent values f (m,) and columns (q, m)."""
        ...


class DensityPoints(NamedTuple):
    """Points with a normal density N(f | mean, variance) and a density p(f) each. `columns` are arguments of p."""

    density: CellDensity
    mean: Array
    variance: Array
    columns: Array

    def take(self, chosen: NDArray[np.intp]) -> Self:
        return type(self)(self.density, self.mean[chosen], self.variance[chosen], self.columns[:, chosen])

    def log_density(self, deviation: Array) -> Array:
        """Return log p(f) and two derivatives at f = mean + deviation (k, n) or (n,). −∞ or 0 replaces NaN."""
        f = self.mean + deviation
        repeats = f.size // max(len(self.mean), 1)
        found = self.density.two_derivatives(f.ravel(), np.tile(self.columns, (1, repeats)))
        value, slope, curvature = found.reshape(3, *f.shape)
        value = np.where(np.isnan(value), -np.inf, value)
        return np.stack([value, *(np.where(np.isfinite(each), each, 0.0) for each in (slope, curvature))])

    def tilted(self, deviation: Array) -> Array:
        """Return log N(f) p(f), up to a constant, and its first two derivatives at f = mean + deviation."""
        value, slope, curvature = self.log_density(deviation)
        scaled = deviation / self.variance
        return np.stack([value - 0.5 * deviation * scaled, slope - scaled, curvature - 1.0 / self.variance])


class CellRule(NamedTuple):
    """Quadrature rule for k cells of n points: f = mean + centre + scale sinh τ, for τ from `low` to `high` (k, n)."""

    points: DensityPoints
    centre: Array
    scale: Array
    low: Array
    high: Array

    def take(self, chosen: NDArray[np.intp]) -> Self:
        points, *arrays = self
        return type(self)(points.take(chosen), *(array[:, chosen] for array in arrays))

    def nodes(self, count: int) -> tuple[Array, Array]:
        """Return nodes minus the mean, and weights for integrals over f, both (nodes of all cells, n)."""
        x, w = _legendre(count)
        half = 0.5 * (self.high - self.low)
        tau = self.low + half * (1.0 + x[:, None, None])
        deviation = self.centre + self.scale * np.sinh(tau)
        weights = self.scale * np.cosh(tau) * half * w[:, None, None]
        n = self.low.shape[1]
        return deviation.reshape(-1, n), weights.reshape(-1, n)


class OneCell(CellRule):
    """Trapezoid rule over a single cell of each point, for smooth integrands with one mode. Arrays are (1, n)."""

    def nodes(self, count: int) -> tuple[Array, Array]:
        """Return nodes minus the mean, and weights, both (nodes, n). The integrand must be 0 at both ends."""
        steps = 4 * count // 3  # 16, 32, 64, ... steps. Most averages agree at 64 steps.
        length = self.high - self.low
        tau = self.low + length * np.arange(steps + 1)[:, None] / steps
        return self.centre + self.scale * np.sinh(tau), self.scale * np.cosh(tau) * length / steps


@cache
def _legendre(count: int) -> tuple[Array, Array]:
    x, w = np.polynomial.legendre.leggauss(count)
    return x, w


def _mode(function: Callable[[Array], Array], low: Array, high: Array) -> Array:
    """Return the mode (n,) of each function. Its slope must be positive at `low` and negative at `high`."""
    at, left = 0.5 * (low + high), np.full(low.shape, True)
    for _ in range(_STEPS):
        _, slope, curvature = function(at)
        low, high = np.where(slope >= 0.0, at, low), np.where(slope <= 0.0, at, high)
        with np.errstate(all="ignore"):
            step = at - slope / curvature
            inside = (curvature < 0.0) & (step >= low) & (step <= high)
            new = np.where(inside, step, 0.5 * (low + high))
            far = np.abs(new - at) > np.where(inside, 1e-2 / np.sqrt(np.abs(curvature)), 1e-9 * np.abs(high - low))
        far &= np.abs(high - low) > 1e-14 * (np.abs(high) + np.abs(low))
        at, left = np.where(left, new, at), left & far
        if not left.any():
            break
    return at


def _brackets(places: Array, values: Array, slopes: Array) -> list[tuple[NDArray[np.intp], Array, Array]]:
    """Return intervals that contain a mode, between neighbouring places (k, n). The highest mode comes first.

    Entry j of the list is the interval j of all points with more than j modes: indices of points, lower and upper ends.
    """
    rises = (slopes[:-1] > 0.0) & (slopes[1:] <= 0.0)
    # At p = 0 the slope is undefined. A step from p = 0 to a positive p then counts as a rise.
    rises |= np.isneginf(values[:-1]) & (slopes[1:] < 0.0) & np.isfinite(values[1:])
    rises |= (slopes[:-1] > 0.0) & np.isneginf(values[1:])
    height = np.where(rises, np.maximum(values[:-1], values[1:]), -np.inf)
    order = np.argsort(-height, axis=0, kind="stable")[:_MODES]
    found = []
    for each in order:
        points = np.flatnonzero(rises[each, np.arange(len(each))])
        if points.size:
            place = each[points]
            found.append((points, places[place, points], places[place + 1, points]))
    return found


def _range(points: DensityPoints) -> tuple[Array, Array]:
    """Return both ends (n,) of the range, relative to the mean. Beyond these ends N(f) p(f) is negligible."""
    sd = np.sqrt(points.variance)
    top = points.tilted(0.0 * sd)[0]
    ends = []
    for sign in (-1.0, 1.0):
        end = sign * _REACH * sd
        for _ in range(_LONGEST):
            value, slope, _ = points.tilted(end)
            top = np.maximum(top, value)
            short = np.isfinite(value) & ((sign * slope > 0.0) | (value > top - _DROP))
            if not short.any():
                break
            end = np.where(short, 1.6 * end, end)
        ends.append(end)
    return ends[0], ends[1]


def _modes_of_density(points: DensityPoints, places: Array) -> tuple[Array, Array]:
    """Return modes of p between places (k, n), and widths of the modes, both (modes, n); NaN for missing modes."""
    value, slope, _ = points.log_density(places)
    found = _brackets(places, value, slope)
    modes, widths = np.full((2, len(found), places.shape[1]), np.nan)
    for i, (chosen, low, high) in enumerate(found):
        own = points.take(chosen)
        modes[i, chosen] = _mode(own.log_density, low, high)
        widths[i, chosen] = _width(own.log_density, modes[i, chosen], high - low)
    return modes, widths


def _width(function: Callable[[Array], Array], mode: Array, longest: Array) -> Array:
    """Return the distance (n,) from the mode, on the steeper side, at which a function is about 1 below its maximum."""
    top, _, curvature = function(mode)
    with np.errstate(divide="ignore"):
        begin = np.clip(1.0 / np.sqrt(np.maximum(-curvature, 0.0)), 1e-9 * longest, longest)
    sides = []
    for sign in (-1.0, 1.0):
        found = begin
        for _ in range(_LONGEST):
            fallen = top - function(mode + sign * found)[0]
            factor = np.where(fallen > 2.0, 0.6, np.where((fallen < 0.4) & (found < longest), 1.5, 1.0))
            if (factor == 1.0).all():
                break
            found = np.minimum(found * factor, longest)
        sides.append(found)
    return np.minimum(*sides)


def _cells(
    points: DensityPoints, modes: list[tuple[NDArray[np.intp], Array, Array]], places: Array, values: Array
) -> list[tuple[NDArray[np.intp], CellRule]]:
    """Return groups of points with equal numbers of modes, and the quadrature rule of each group.

    `modes` are tuples of point indices, modes and widths. Two cells meet at each mode. Between two modes, cells meet at
    the place (k, n) with the smallest of the `values` (k, n).
    """
    n = places.shape[1]
    count = np.zeros(n, np.intp)
    centre, scale = np.full((2, len(modes), n), np.nan)
    for chosen, at, width in modes:
        centre[count[chosen], chosen], scale[count[chosen], chosen] = at, width
        count[chosen] += 1
    rules = []
    for cells in np.unique(count):
        group = np.flatnonzero(count == cells)
        c, s = centre[:cells, group], scale[:cells, group]
        order = np.argsort(c, axis=0)
        c, s = np.take_along_axis(c, order, 0), np.take_along_axis(s, order, 0)
        own, heights = places[:, group], values[:, group]
        edges = np.empty((cells + 1, len(group)))
        edges[0], edges[-1] = own[0], own[-1]
        for i in range(1, cells):
            between = (own > c[i - 1]) & (own < c[i])
            lowest = np.where(between, heights, np.inf).argmin(axis=0)
            edges[i] = np.where(between.any(axis=0), own[lowest, np.arange(len(group))], 0.5 * (c[i - 1] + c[i]))
        low, high = (np.arcsinh((edge - c) / s) for edge in (edges[:-1], edges[1:]))
        ends = np.concatenate([low, 0.0 * low]), np.concatenate([0.0 * high, high])
        rules.append((group, CellRule(points.take(group), np.tile(c, (2, 1)), np.tile(s, (2, 1)), *ends)))
    return rules


def _kinks(points: DensityPoints, modes: Array, widths: Array) -> list[tuple[NDArray[np.intp], Array, Array]]:
    """Return modes at which p has a kink, as tuples of point indices, modes and widths. Arguments are (modes, n)."""
    found = []
    for mode, width in zip(modes, widths, strict=True):
        with np.errstate(invalid="ignore"):
            left, right = (points.log_density(mode + sign * 1e-5 * width)[1] * width for sign in (-1.0, 1.0))
            chosen = np.flatnonzero((left > 1e-3) & (right < -1e-3))
        if chosen.size:
            found.append((chosen, mode[chosen], width[chosen]))
    return found


def _looks(points: DensityPoints) -> tuple[Array, Array, Array]:
    """Return sorted deviations from the mean (k, n), dense near modes of p, and the modes and their widths."""
    low, high = _range(points)
    even = low + (high - low) * np.linspace(0.0, 1.0, _LOOKS)[:, None]
    modes, widths = _modes_of_density(points, even)
    about = [mode + width * step for mode, width in zip(modes, widths, strict=True) for step in _AROUND]
    extra = [np.where(np.isnan(each), low, np.clip(each, low, high)) for each in about]
    return np.sort(np.stack([*even, *extra]), axis=0), modes, widths


def _left(count: int, found: list[tuple[NDArray[np.intp], Array, Array]]) -> NDArray[np.intp]:
    """Return the indices of the points that are not among the points of `found`."""
    every = np.full(count, True)
    for chosen, *_ in found:
        every[chosen] = False
    return np.flatnonzero(every)


type _Rules = list[tuple[NDArray[np.intp], CellRule]]
"""Groups of points, as indices, with their rules."""


def _one_cell(points: DensityPoints, centre: Array, scale: Array, low: Array, high: Array) -> _Rules:
    """Return the rule of a single cell for each point, with centre (n,), and ends `low` and `high` in τ (n,).

    At a bend the slope of the concave log p changes from steep to flat, or from flat to steep. A bend is assumed to be
    a few units wide, so a wide cell could miss it. A wide cell with a bend is therefore centred at the bend.
    """
    ends = centre + scale * np.sinh(low), centre + scale * np.sinh(high)
    width = (ends[1] - ends[0]) / (2.0 * _REACH)
    wide = np.flatnonzero(width > _BROAD)
    if wide.size:
        own, total, number = points.take(wide), np.zeros(len(wide)), np.zeros(len(wide))
        for level in (1.0 / width[wide], -1.0 / width[wide]):
            left, right = (end[wide] for end in ends)
            crossed = (own.log_density(left)[1] > level) & (own.log_density(right)[1] < level)
            for _ in range(_HALVINGS):
                middle = 0.5 * (left + right)
                above = own.log_density(middle)[1] > level
                left, right = np.where(above, middle, left), np.where(above, right, middle)
            total += np.where(crossed, left, 0.0)
            number += crossed
        missed = wide[number > 0.0]
        centre[missed], scale[missed] = (total / np.maximum(number, 1.0))[number > 0.0], 2.0
        low, high = (np.arcsinh((end - centre) / scale) for end in ends)
    return [(np.arange(len(centre)), OneCell(points, *(each[None] for each in (centre, scale, low, high))))]


def _one_tilted(points: DensityPoints) -> _Rules:
    """Return the rule of a single cell for integrals of N(f) p(f), centred at the mode of this integrand."""
    reach = np.sqrt(points.variance) * np.sign(points.tilted(0.0 * points.mean)[1])
    for _ in range(_LONGEST):
        uphill = reach * points.tilted(reach)[1] > 0.0
        if not uphill.any():
            break
        reach = np.where(uphill, 2.0 * reach, reach)
    mode = _mode(points.tilted, np.minimum(reach, 0.0), np.maximum(reach, 0.0))
    scale = _width(points.tilted, mode, _REACH * np.sqrt(points.variance))
    top = points.tilted(mode)[0]
    ends = []
    for sign in (-1.0, 1.0):
        tau = np.full(len(mode), 2.0)
        for _ in range(_LONGEST):
            short = points.tilted(mode + sign * scale * np.sinh(tau))[0] > top - _DROP
            if not short.any():
                break
            tau[short] += 0.5
        ends.append(sign * tau)
    return _one_cell(points, mode, scale, *ends)


def tilted_rules(points: DensityPoints, concave: bool = False) -> _Rules:
    """Return quadrature rules for integrals of N(f) p(f), with cells around the modes of this integrand."""
    return _one_tilted(points) if concave else _tilted_cells(points)


def _tilted_cells(points: DensityPoints) -> _Rules:
    places, modes, widths = _looks(points)
    value, slope, _ = points.tilted(places)
    found = _kinks(points, modes, widths)
    kinks = len(found)
    for chosen, low, high in _brackets(places, value, slope):
        own = points.take(chosen)
        mode = _mode(own.tilted, low, high)
        height = own.tilted(mode)[0]
        seen = height > value.max(axis=0)[chosen] - _DROP
        width = _width(own.tilted, mode, 0.25 * (places[-1] - places[0])[chosen])
        for kinked, at, wide in found[:kinks]:
            both = np.intersect1d(chosen, kinked)
            apart = np.abs(mode[np.searchsorted(chosen, both)] - at[np.searchsorted(kinked, both)])
            near = apart <= 1e-6 * wide[np.searchsorted(kinked, both)]
            seen[np.searchsorted(chosen, both[near])] = False
        found.append((chosen[seen], mode[seen], width[seen]))
    without = _left(len(points.mean), found)
    if without.size:  # No mode was found, for example because the density has a jump.
        best = places[value[:, without].argmax(axis=0), without]
        found.append((without, best, np.sqrt(points.variance[without])))
    return _cells(points, found, places, value)


def plain_rules(points: DensityPoints, concave: bool = False) -> _Rules:
    """Return quadrature rules for integrals of N(f) log p(f). They have nearly equidistant nodes, dense near modes."""
    sd, ends = np.sqrt(points.variance), _plain_ends(points)
    if concave:
        return _one_cell(points, 0.0 * sd, _EVEN * sd, *(np.arcsinh(end / (_EVEN * sd)) for end in ends))
    return _plain_cells(points, sd, ends)


def _plain_ends(points: DensityPoints) -> list[Array]:
    """Return both ends (n,) of the range, relative to the mean. Beyond these ends N(f) log p(f) is negligible."""
    sd = np.sqrt(points.variance)
    ends = []
    least = np.log1p(np.abs(points.log_density(0.0 * sd)[0])) - _DROP
    for sign in (-1.0, 1.0):
        reach = np.full(len(sd), _REACH)
        for _ in range(_LONGEST):
            with np.errstate(invalid="ignore"):
                size = np.log1p(np.abs(points.log_density(sign * reach * sd)[0]))
            short = np.isfinite(size) & (size - 0.5 * reach**2 > least)
            if not short.any():
                break
            reach[short] += 0.5
        ends.append(sign * reach * sd)
    return ends


def _plain_cells(points: DensityPoints, sd: Array, ends: list[Array]) -> _Rules:
    even = ends[0] + (ends[1] - ends[0]) * np.linspace(0.0, 1.0, _LOOKS)[:, None]
    modes, widths = _modes_of_density(points, even)
    found = []
    for mode, width in zip(modes, widths, strict=True):
        chosen = np.flatnonzero(~np.isnan(mode))
        found.append((chosen, mode[chosen], np.minimum(width, _EVEN * sd)[chosen]))
    without = _left(len(sd), found)
    if without.size:
        found.append((without, 0.0 * sd[without], _EVEN * sd[without]))
    # Two neighbouring cells meet midway between their modes.
    return _cells(points, found, even[[0, -1]], np.zeros((2, len(sd))))


_FEWEST, _MOST = 12, 1536  # Numbers of nodes of a cell: the first, and the limit of doubling.
_AGREEMENT = 1e-7  # Terms have converged if doubling the nodes changes them by at most this relative amount.
_POINT = 1e-10  # Smallest variance of N that a rule uses, in units of 1 / (1 + |(log p)″| + (log p)′²).
_NARROW = 1e-3  # If variance × |(log p)″| is smaller, `_log_average` uses (log p)″ for high derivatives.
_SMOOTH = 1e-9  # Near a kink of p, two formulas of a second derivative differ by more than this / variance.
_POINTS = 512  # Number of points of a batch. Their nodes fit into the cache of a processor.


def _floor(variance: Array, rows: int) -> Array:
    """Return sizes (rows, n) of terms that count as 0. If N is narrow, rounding errors are this large."""
    order = np.arange(rows)[:, None]
    floor = 1e-5 * np.maximum(variance, 1.0) ** (-0.5 * order)
    return np.asarray(np.where(order > 2, np.maximum(floor, 1e-7 * variance ** (-0.5 * order)), floor))


def _refined(rules: _Rules, terms: Callable[[CellRule, int], Array], rows: int) -> Array:
    """Return terms (rows, n). The nodes of a point are doubled until its terms agree, else the terms are NaN."""
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


def _tilted_weights(rule: CellRule, count: int) -> tuple[Array, Array, Array, Array]:
    """Return nodes minus the mean, weights that sum to 1, log ∫ N p df, and log p with two derivatives at the nodes."""
    points = rule.points
    deviation, measure = rule.nodes(count)
    if half is None or not rule.nested(count):
        return NodeTable(deviation, measure, *rule.points.log_density(deviation))
    density = np.empty((3, *deviation.shape))
    density[:, ::2] = half.value, half.slope, half.curvature
    density[:, 1::2] = rule.points.log_density(deviation[1::2])
    return NodeTable(deviation, measure, *density)


def _log_average(rule: CellRule, count: int) -> Array:
    """Return h = log ∫ p(f) N(f | μ, D) df and its first four derivatives in the mean μ, (5, n).

    Let ℓ = log p and s = (f − μ)/D. Under the density p N, the derivatives are E ℓ′, Cov(ℓ′, s) and the joint cumulants
    κ(ℓ′, s, s) and κ(ℓ′, s, s, s), also at kinks of p. A small D would amplify rounding errors of the cumulants. They
    are then computed as Cov(ℓ″, s) + κ(ℓ′, ℓ′, s) and its derivative.
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
    # At a kink, (log p)″ misses the change of slope. The two formulas of h″ then differ.
    small &= np.abs(average(curvature) + spread - second) * variance < _SMOOTH
    return np.stack([value, first, second, *np.where(small, narrow, wide)])


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
    """Return `terms` (rows, n) of all points, computed in blocks. A point with invalid moments or log p is NaN."""
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


def _widened(points: DensityPoints) -> tuple[DensityPoints, Array, NDArray[np.bool_]]:
    """Return points with variances large enough for rules, log p at the means, and a mask of changed points."""
    at_mean = points.log_density(0.0 * points.mean)
    least = _POINT / (1.0 + np.abs(at_mean[2]) + at_mean[1] ** 2)
    return points._replace(variance=np.maximum(points.variance, least)), at_mean, points.variance < least


def log_average_terms(
    density: CellDensity, mean: Array, variance: Array, columns: Array, concave: bool = False
) -> Array:
    """Return h = log ∫ p(f) N(f | mean, variance) df and its first four derivatives in the mean, (5, n)."""

    def terms(points: DensityPoints) -> Array:
        wide, at_mean, narrow = widened(points)
        out = log_averages(tilted_rules(wide, concave))
        out[:3] = np.where(narrow, at_mean, out[:3])
        return out

    return by_blocks(density, mean, variance, columns, 5, terms)


def _plain_weights(rule: CellRule, count: int) -> tuple[Array, Array]:
    """Return nodes minus the mean, and weights for averages over N, both (nodes, n). The weights sum to 1."""
    deviation, measure = rule.nodes(count)
    weights = np.exp(-0.5 * deviation**2 / rule.points.variance) * measure
    return deviation, weights / weights.sum(axis=0)


def _average_log(rule: CellRule, count: int) -> Array:
    """Return g = ∫ log p(f) N(f | m, v) df, ∂g/∂m and ∂g/∂v = Cov((log p)′, f) / 2v. Kinks of p are allowed."""
    deviation, weights = _plain_weights(rule, count)
    value, slope, _ = rule.points.log_density(deviation)
    value = np.where(weights > 0.0, value, 0.0)
    first = (weights * slope).sum(axis=0)
    of_variance = 0.5 * (weights * (slope - first) * deviation).sum(axis=0) / rule.points.variance
    return np.stack([(weights * value).sum(axis=0), first, of_variance])


def average_log_terms(
    density: CellDensity, mean: Array, variance: Array, columns: Array, concave: bool = False
) -> Array:
    """Return g = ∫ log p(f) N(f | m, v) df and its derivatives in the mean m and the variance v, (3, n)."""

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
"""Function of latent values (k, n) and point indices (n,). It returns slopes of log p in the parameters, (p, k, n)."""


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
    """Return slopes (count, n) in the parameters: of h = log ∫ p N df if `tilted`, else of g = ∫ log p N df."""
    rules_of = tilted_rules if tilted else plain_rules
    numbers = np.vstack([columns, np.arange(len(mean), dtype=np.float64)])

    class Numbered:
        """The given density with one more column, the index of the point."""

        def two_derivatives(self, f: Array, given: Array) -> Array:
            return density.two_derivatives(f, given[:-1])

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
"""Function like `average_slopes` that returns slopes (count, n) of g = ∫ log p N df."""


def columns_of(y: Observed, parameters: Array) -> Array:
    """Return one array (1 + p, n) of observations (n,) and parameters (p, n)."""
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
        """`CellDensity` with observations and parameters as columns."""

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
    """`CellDensity` of a compiled log density, with observations and parameters as columns."""

    def __init__(self, density: ScalarDensity, y: Observed) -> None:
        self._kernel, self._dtype = density.derivatives, y.dtype

    def two_derivatives(self, f: Array, columns: Array) -> Array:
        out = np.empty((4, len(f)))
        self._kernel(f, columns[0].astype(self._dtype), columns[1:], out)
        return out[:3]


def average_log_density(density: ScalarDensity) -> AverageLogDensity:
    """Return a computation of g = ∫ log p N df for a compiled log-concave density p."""

    def terms(mean: Array, variance: Array, y: Observed, parameters: Array, out: Array) -> None:
        out[:] = average_log_terms(KernelDensity(density, y), mean, variance, columns_of(y, parameters), True)

    return AverageLogDensity(terms)


def parameter_slopes(density: ScalarDensity, derivatives: Kernel) -> ParameterSlopes:
    """Return computations of the slopes in parameters of log averages and average logs of a log-concave density."""

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
