"""Rules of quadrature for a normal density times any density p of one latent value, or times log p.

A normal density times p may have several modes. Its range is divided into cells on either side of each mode. A cell has
Gauss–Legendre nodes in τ, f = mode + c sinh τ, which are dense about the mode and extend far. Cells also end at kinks
of p. Modes of p are found by its slope at some dozens of places. So a narrow mode is found if its tails reach such a
place. If the normal density times p has one mode and no kink, trapezoid rules in τ need fewer nodes.

A log-concave density has one mode, so slopes at places are not needed.
"""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array

_DROP = 45.0  # Fall of the log integrand from its mode to the ends of a range.
_REACH = 9.5  # Smallest distance between the mean and an end of a range, in standard deviations.
_LOOKS = 33  # Number of places where slopes are evaluated first.
_MODES = 3  # Largest number of modes of a density.
_STEPS = 40  # Largest number of steps of a search for a mode.
_LONGEST = 100  # Largest number of steps of a search for an end or a width.
_AROUND = np.array([-4.0, -2.0, -1.0, 0.0, 1.0, 2.0, 4.0])  # Places about a mode of p, in widths.
_NESTED = 96  # Largest number of nodes for which a `SmoothCell` has a trapezoid rule.
_EVEN = 20.0  # Scale of sinh (standard deviations) for which nodes are nearly equidistant.
_BROAD = 4.0  # Width of a cell above which `_one_cell` searches for a bend of the log density.
_HALVINGS = 50  # Number of bisections in the search for a bend.


class CellDensity(Protocol):
    """A density as a function of latent values and columns (q, m) of further arguments."""

    def two_derivatives(self, f: Array, columns: Array) -> Array:
        """Return log p and its first two derivatives in f, (3, m)."""
        ...


@runtime_checkable
class GridDensity(Protocol):
    """A `CellDensity` that computes expressions of columns once for all latent values of a point."""

    def on_grid(self, f: Array, columns: Array) -> Array:
        """Return log p and its first two derivatives (3, k, m) at latent values (k, m) for columns (q, m)."""
        ...


def on_grid(density: CellDensity, f: Array, columns: Array) -> Array:
    """Return log p and two derivatives (3, k, n) at latent values (k, n) for columns (q, n)."""
    if isinstance(density, GridDensity):
        return density.on_grid(f, columns)
    return density.two_derivatives(f.ravel(), np.tile(columns, (1, len(f)))).reshape(3, *f.shape)


class DensityPoints(NamedTuple):
    """Points, each with a normal density of its latent value and the arguments `columns` of its density p."""

    density: CellDensity
    mean: Array
    variance: Array
    columns: Array

    def take(self, chosen: NDArray[np.intp]) -> Self:
        return type(self)(self.density, self.mean[chosen], self.variance[chosen], self.columns[:, chosen])

    def among(self, left: NDArray[np.intp], more: NDArray[np.bool_]) -> tuple[Self, NDArray[np.intp]]:
        """Return the points of a mask `more` for which a search goes on, and their entries of the indices `left`."""
        return (self, left) if more.all() else (self.take(np.flatnonzero(more)), left[more])

    def log_density(self, deviation: Array) -> Array:
        """Return log p and two derivatives at deviations (k, n) or (n,) from the mean; −∞ and 0 in place of NaN."""
        f = self.mean + deviation
        found = self.density.two_derivatives(f, self.columns) if f.ndim == 1 else on_grid(self.density, f, self.columns)
        if np.isfinite(found).all():
            return found
        value, slope, curvature = found
        value = np.where(np.isnan(value), -np.inf, value)
        return np.stack([value, *(np.where(np.isfinite(each), each, 0.0) for each in (slope, curvature))])

    def normal(self, deviation: Array) -> Array:
        """Return log N(f), up to a constant, and two derivatives."""
        scaled = deviation / self.variance
        return np.stack([-0.5 * deviation * scaled, -scaled, np.broadcast_to(-1.0 / self.variance, scaled.shape)])

    def tilted(self, deviation: Array) -> Array:
        """Return log N(f) p(f), up to a constant, and two derivatives."""
        return self.log_density(deviation) + self.normal(deviation)


type _Function = Callable[[DensityPoints, Array], Array]
"""A function of points and deviations (n,) that returns values and two derivatives (3, n)."""


class CellRule(NamedTuple):
    """Rule f = mean + centre + scale sinh τ with τ from `low` to `high`, for k cells of n points (k, n)."""

    points: DensityPoints
    centre: Array
    scale: Array
    low: Array
    high: Array

    def take(self, chosen: NDArray[np.intp]) -> Self:
        points, *arrays = self
        return type(self)(points.take(chosen), *(array[:, chosen] for array in arrays))

    def nodes(self, count: int) -> tuple[Array, Array]:
        """Return nodes relative to the mean, and weights (nodes of all cells, n) of ∫ · df."""
        x, w = _legendre(count)
        half = 0.5 * (self.high - self.low)
        tau = self.low + half * (1.0 + x[:, None, None])
        deviation = self.centre + self.scale * np.sinh(tau)
        weights = self.scale * np.cosh(tau) * half * w[:, None, None]
        n = self.low.shape[1]
        return deviation.reshape(-1, n), weights.reshape(-1, n)

    def nested(self, count: int) -> bool:
        """Return whether the rule with `count` nodes has the nodes of the rule with half of them, and further nodes."""
        return False


class OneCell(CellRule):
    """Trapezoid rule over a single cell, arrays (1, n), for smooth unimodal integrands."""

    def nodes(self, count: int) -> tuple[Array, Array]:
        """Return nodes relative to the mean, and weights (nodes, n). The integrand is 0 at the ends."""
        steps = 4 * count // 3  # 16, 32, 64, ...: most averages agree at 64
        length = self.high - self.low
        tau = self.low + length * np.arange(steps + 1)[:, None] / steps
        return self.centre + self.scale * np.sinh(tau), self.scale * np.cosh(tau) * length / steps


class SmoothCell(CellRule):
    """Rule for two cells about the only mode of a smooth integrand, arrays (2, n).

    The first rules are trapezoid rules in τ over both cells, each with the nodes of the previous rule. Their errors
    fall as fast as errors of Gauss–Legendre rules with three times as many nodes.
    """

    def nodes(self, count: int) -> tuple[Array, Array]:
        """Return nodes relative to the mean, and weights (nodes, n). The integrand is 0 at the ends."""
        if not self.nested(count):
            return super().nodes(count)
        low, length, steps = self.low[:1], self.high[1:] - self.low[:1], 2 * count
        tau = low + length * np.arange(steps + 1)[:, None] / steps
        return self.centre[:1] + self.scale[:1] * np.sinh(tau), self.scale[:1] * np.cosh(tau) * length / steps

    def nested(self, count: int) -> bool:
        return count <= _NESTED


@cache
def _legendre(count: int) -> tuple[Array, Array]:
    x, w = np.polynomial.legendre.leggauss(count)
    return x, w


def _mode(points: DensityPoints, function: _Function, low: Array, high: Array) -> Array:
    """Return modes (n,) between bounds with a positive slope at the lower and a negative slope at the upper bound."""
    modes, left = 0.5 * (low + high), np.arange(len(low))
    for _ in range(_STEPS):
        at = modes[left]
        _, slope, curvature = function(points, at)
        low, high = np.where(slope >= 0.0, at, low), np.where(slope <= 0.0, at, high)
        with np.errstate(all="ignore"):
            step = at - slope / curvature
            inside = (curvature < 0.0) & (step >= low) & (step <= high)
            new = np.where(inside, step, 0.5 * (low + high))
            far = np.abs(new - at) > np.where(inside, 1e-2 / np.sqrt(np.abs(curvature)), 1e-9 * np.abs(high - low))
        far &= np.abs(high - low) > 1e-14 * (np.abs(high) + np.abs(low))
        modes[left] = new
        if not far.any():
            break
        points, left = points.among(left, far)
        low, high = low[far], high[far]
    return modes


def _brackets(places: Array, values: Array, slopes: Array) -> list[tuple[NDArray[np.intp], Array, Array]]:
    """Return brackets of modes between neighbouring places (k, n), the bracket of the highest mode first.

    Entry j of the list has the bracket j of each point: indices of points, lower places, upper places.
    """
    rises = (slopes[:-1] > 0.0) & (slopes[1:] <= 0.0)
    # At p = 0 the slope is undefined, so the rise to the next positive value is used.
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
    """Return the ends, relative to the mean, beyond which N(f) p(f) is negligible."""
    sd = np.sqrt(points.variance)
    top = points.tilted(0.0 * sd)[0]
    ends = np.stack([-_REACH * sd, _REACH * sd])
    for end, sign in zip(ends, (-1.0, 1.0), strict=True):
        own, left = points, np.arange(len(sd))
        for _ in range(_LONGEST):
            value, slope, _ = own.tilted(end[left])
            top[left] = np.maximum(top[left], value)
            short = np.isfinite(value) & ((sign * slope > 0.0) | (value > top[left] - _DROP))
            if not short.any():
                break
            own, left = own.among(left, short)
            end[left] *= 1.6
    return ends[0], ends[1]


def _modes_of_density(points: DensityPoints, places: Array, density: Array) -> tuple[Array, Array]:
    """Return modes of p between places (k, n), and their widths, (modes, n); NaN for points with fewer modes.

    `density` is log p and two derivatives at the places.
    """
    found = _brackets(places, density[0], density[1])
    modes, widths = np.full((2, len(found), places.shape[1]), np.nan)
    for i, (chosen, low, high) in enumerate(found):
        own, function = points.take(chosen), DensityPoints.log_density
        modes[i, chosen] = _mode(own, function, low, high)
        widths[i, chosen], _ = _width(own, function, modes[i, chosen], high - low)
    return modes, widths


def _width(points: DensityPoints, function: _Function, mode: Array, longest: Array) -> tuple[Array, Array]:
    """Return distances (n,) from modes at which the function is about 1 below the modes, and values at the modes.

    The distance is on the steep side of a mode.
    """
    top, _, curvature = function(points, mode)
    with np.errstate(divide="ignore"):
        begin = np.clip(1.0 / np.sqrt(np.maximum(-curvature, 0.0)), 1e-9 * longest, longest)
    sides = []
    for sign in (-1.0, 1.0):
        found, own, left = begin.copy(), points, np.arange(len(mode))
        for _ in range(_LONGEST):
            at, most = found[left], longest[left]
            fallen = top[left] - function(own, mode[left] + sign * at)[0]
            factor = np.where(fallen > 2.0, 0.6, np.where((fallen < 0.4) & (at < most), 1.5, 1.0))
            found[left] = np.minimum(at * factor, most)
            moved = factor != 1.0
            if not moved.any():
                break
            own, left = own.among(left, moved)
        sides.append(found)
    return np.minimum(*sides), top


def _cells(
    points: DensityPoints,
    modes: list[tuple[NDArray[np.intp], Array, Array]],
    places: Array,
    values: Array,
    kinked: NDArray[np.bool_],
) -> list[tuple[NDArray[np.intp], CellRule]]:
    """Return groups of points with equal numbers of cells, and the rules of their cells around modes.

    `modes` are tuples of points, modes and widths. Between modes, cells meet at the place (k, n) with the smallest
    value. Points that are not `kinked` have a `SmoothCell` if they have one mode.
    """
    n = places.shape[1]
    count = np.zeros(n, np.intp)
    centre, scale = np.full((2, len(modes), n), np.nan)
    for chosen, at, width in modes:
        centre[count[chosen], chosen], scale[count[chosen], chosen] = at, width
        count[chosen] += 1
    rules = []
    kind = np.where((count == 1) & ~kinked, 0, count)
    for number in np.unique(kind):
        group, cells = np.flatnonzero(kind == number), max(number, 1)
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
        rule_of = CellRule if number else SmoothCell
        rules.append((group, rule_of(points.take(group), np.tile(c, (2, 1)), np.tile(s, (2, 1)), *ends)))
    return rules


def _kinks(points: DensityPoints, modes: Array, widths: Array) -> list[tuple[NDArray[np.intp], Array, Array]]:
    """Return the modes (modes, n) at which p has a kink, as tuples of indices of points, modes and widths."""
    found = []
    for mode, width in zip(modes, widths, strict=True):
        with np.errstate(invalid="ignore"):
            left, right = (points.log_density(mode + sign * 1e-5 * width)[1] * width for sign in (-1.0, 1.0))
            chosen = np.flatnonzero((left > 1e-3) & (right < -1e-3))
        if chosen.size:
            found.append((chosen, mode[chosen], width[chosen]))
    return found


def _looks(points: DensityPoints) -> tuple[Array, Array, Array, Array]:
    """Return sorted places (k, n) over the range, dense about modes of p, and the modes with their widths.

    The second array is log p and two derivatives at the places, (3, k, n).
    """
    low, high = _range(points)
    even = low + (high - low) * np.linspace(0.0, 1.0, _LOOKS)[:, None]
    density = points.log_density(even)
    modes, widths = _modes_of_density(points, even, density)
    if not len(modes):
        return even, density, modes, widths
    about = [mode + width * step for mode, width in zip(modes, widths, strict=True) for step in _AROUND]
    extra = np.stack([np.where(np.isnan(each), low, np.clip(each, low, high)) for each in about])
    places, density = np.concatenate([even, extra]), np.concatenate([density, points.log_density(extra)], axis=1)
    order = np.argsort(places, axis=0)
    return np.take_along_axis(places, order, 0), np.take_along_axis(density, order[None], 1), modes, widths


def _left(count: int, found: list[tuple[NDArray[np.intp], Array, Array]]) -> NDArray[np.intp]:
    """Return the indices of the points that are not among the points of `found`."""
    every = np.full(count, True)
    for chosen, *_ in found:
        every[chosen] = False
    return np.flatnonzero(every)


type Rules = list[tuple[NDArray[np.intp], CellRule]]
"""Groups of points, as indices, with their rules."""


def _one_cell(points: DensityPoints, centre: Array, scale: Array, low: Array, high: Array) -> Rules:
    """Return the rule of a single cell with ends in τ, about a centre (n,) or about a bend of log p.

    A bend is where the concave log p changes from rising to falling, or becomes flat relative to the width of the rule.
    It is assumed to be a few units wide. If nodes about the centre would miss it, the cell is centred at the bend.
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


def _one_tilted(points: DensityPoints) -> Rules:
    """Return the rule of a single cell of N(f) p(f), around its mode."""
    reach = np.sqrt(points.variance) * np.sign(points.tilted(0.0 * points.mean)[1])
    for _ in range(_LONGEST):
        uphill = reach * points.tilted(reach)[1] > 0.0
        if not uphill.any():
            break
        reach = np.where(uphill, 2.0 * reach, reach)
    mode = _mode(points, DensityPoints.tilted, np.minimum(reach, 0.0), np.maximum(reach, 0.0))
    scale, top = _width(points, DensityPoints.tilted, mode, _REACH * np.sqrt(points.variance))
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


def tilted_rules(points: DensityPoints, concave: bool = False) -> Rules:
    """Return rules for integrals of N(f) p(f), with cells around the modes of p."""
    return _one_tilted(points) if concave else _tilted_cells(points)


def _tilted_cells(points: DensityPoints) -> Rules:
    places, density, modes, widths = _looks(points)
    value, slope, _ = density + points.normal(places)
    found = _kinks(points, modes, widths)
    kinks, kinked = len(found), np.full(len(points.mean), False)
    for chosen, *_ in found:
        kinked[chosen] = True
    for chosen, low, high in _brackets(places, value, slope):
        own = points.take(chosen)
        mode = _mode(own, DensityPoints.tilted, low, high)
        width, height = _width(own, DensityPoints.tilted, mode, 0.25 * (places[-1] - places[0])[chosen])
        seen = height > value.max(axis=0)[chosen] - _DROP
        for known, at, wide in found[:kinks]:
            both = np.intersect1d(chosen, known)
            apart = np.abs(mode[np.searchsorted(chosen, both)] - at[np.searchsorted(known, both)])
            near = apart <= 1e-6 * wide[np.searchsorted(known, both)]
            seen[np.searchsorted(chosen, both[near])] = False
        found.append((chosen[seen], mode[seen], width[seen]))
    without = _left(len(points.mean), found)
    if without.size:  # No mode was found: for example, the density has a jump.
        best = places[value[:, without].argmax(axis=0), without]
        found.append((without, best, np.sqrt(points.variance[without])))
        kinked[without] = True
    return _cells(points, found, places, value, kinked)


def plain_rules(points: DensityPoints, concave: bool = False) -> Rules:
    """Return rules for integrals of N(f) log p(f), with nearly equidistant nodes that are dense around modes of p."""
    sd, ends = np.sqrt(points.variance), _plain_ends(points)
    if concave:
        return _one_cell(points, 0.0 * sd, _EVEN * sd, *(np.arcsinh(end / (_EVEN * sd)) for end in ends))
    return _plain_cells(points, sd, ends)


def _plain_ends(points: DensityPoints) -> list[Array]:
    """Return the ends, relative to the mean, beyond which N(f) log p(f) is negligible."""
    sd = np.sqrt(points.variance)
    ends = []
    least = np.log1p(np.abs(points.log_density(0.0 * sd)[0])) - _DROP
    for sign in (-1.0, 1.0):
        reach, own, left = np.full(len(sd), _REACH), points, np.arange(len(sd))
        for _ in range(_LONGEST):
            with np.errstate(invalid="ignore"):
                size = np.log1p(np.abs(own.log_density(sign * reach[left] * sd[left])[0]))
            short = np.isfinite(size) & (size - 0.5 * reach[left] ** 2 > least[left])
            if not short.any():
                break
            own, left = own.among(left, short)
            reach[left] += 0.5
        ends.append(sign * reach * sd)
    return ends


def _plain_cells(points: DensityPoints, sd: Array, ends: list[Array]) -> Rules:
    even = ends[0] + (ends[1] - ends[0]) * np.linspace(0.0, 1.0, _LOOKS)[:, None]
    modes, widths = _modes_of_density(points, even, points.log_density(even))
    found = []
    for mode, width in zip(modes, widths, strict=True):
        chosen = np.flatnonzero(~np.isnan(mode))
        found.append((chosen, mode[chosen], np.minimum(width, _EVEN * sd)[chosen]))
    without = _left(len(sd), found)
    if without.size:
        found.append((without, 0.0 * sd[without], _EVEN * sd[without]))
    # Cells meet midway between modes.
    return _cells(points, found, even[[0, -1]], np.zeros((2, len(sd))), np.full(len(sd), True))
