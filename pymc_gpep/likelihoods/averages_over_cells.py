"""Normal averages of densities of one latent value that need not be log-concave, from log p and two derivatives.

They are sums over nodes of cells about each mode (`pymc_gpep.likelihoods.density_cells`). Nodes are doubled until
averages agree. All points share a call of the density, so that plain arrays do: nothing is compiled. A point whose
averages do not agree has NaN, and so has one for which the density is NaN at the mean.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.likelihoods.density_cells import CellDensity, CellRule, DensityPoints, plain_rules, tilted_rules

_FEWEST, _MOST = 12, 1536  # nodes of a cell
_AGREEMENT = 1e-7  # of a rule with one of half its nodes: the error left is about the square of it
_POINT = 1e-10  # variance below which a normal density is a point, for a density of unit curvature
_NARROW = 1e-3  # variance in units of a curvature, below which derivatives of log p serve
_SMOOTH = 1e-9  # error of a second derivative, of the inverse variance, that rounding may have
_POINTS = 2048  # that are worked on at a time


def _floor(variance: Array, rows: int) -> Array:
    """Return sizes of terms and derivatives that count as zero, since those are rounded where N is narrow."""
    order = np.arange(rows)[:, None]
    floor = 1e-5 * np.maximum(variance, 1.0) ** (-0.5 * order)
    return np.asarray(np.where(order > 2, np.maximum(floor, 1e-7 * variance ** (-0.5 * order)), floor))


def _refined(
    rules: list[tuple[NDArray[np.intp], CellRule]], terms: Callable[[CellRule, int], Array], rows: int
) -> Array:
    """Terms (rows, n) by more and more nodes, until all of a point's agree; NaN where they never do."""
    n = sum(len(group) for group, _ in rules)
    out = np.full((rows, n), np.nan)
    for group, begun in rules:
        left, rule = group, begun
        count = _FEWEST
        before = terms(rule, count)
        while count < _MOST and len(left):
            count *= 2
            now = terms(rule, count)
            floor = _floor(rule.points.variance, rows)
            with np.errstate(invalid="ignore"):
                agree = (np.abs(now - before) <= _AGREEMENT * (np.abs(now) + floor)).all(axis=0)
            out[:, left[agree]] = now[:, agree]
            others = np.flatnonzero(~agree)
            left, before, rule = left[others], now[:, others], rule.take(others)
    return out


def _tilted_weights(rule: CellRule, count: int) -> tuple[Array, Array, Array, Array]:
    """Nodes, less the mean, weights that sum to 1, log ∫ N p, and log p with derivatives at the nodes."""
    points = rule.points
    deviation, measure = rule.nodes(count)
    density = points.log_density(deviation)
    exponent = density[0] - 0.5 * deviation**2 / points.variance
    top = exponent.max(axis=0)
    weights = np.exp(exponent - top) * measure
    total = weights.sum(axis=0)
    value = top + np.log(total) - 0.5 * np.log(2.0 * math.pi * points.variance)
    return deviation, weights / total, value, density


def _log_average(rule: CellRule, count: int) -> Array:
    """h and four derivatives in the mean.

    With s = (f − μ)/D they are E ℓ′, Cov(ℓ′, s), κ(ℓ′, s, s) and κ(ℓ′, s, s, s), which holds at kinks too. Where N is
    narrow, of which powers are divided by D, the last two are Cov(ℓ″, s) + κ(ℓ′, ℓ′, s) and its derivative.
    """
    variance = rule.points.variance
    deviation, weights, value, (_, slope, curvature) = _tilted_weights(rule, count)

    def average(x: Array) -> Array:
        return np.asarray((weights * x).sum(axis=0))

    first = average(slope)
    g, s = slope - first, deviation / variance
    s = s - average(s)
    gs, ss = g * s, s * s
    second, of_s = average(gs), average(ss)
    wide = [average(g * ss), average(gs * ss) - 3.0 * second * of_s]
    c, spread = curvature - average(curvature), average(g * g)
    narrow = [
        average(c * s) + average(g * gs),
        average(c * ss) + average(gs * gs) - spread * of_s - 2.0 * second**2,
    ]
    small = variance * (average(np.abs(curvature)) + spread) < _NARROW
    # Beside a kink derivatives of log p do not say how its slope changes.
    small &= np.abs(average(curvature) + spread - second) * variance < _SMOOTH
    return np.stack([value, first, second, *np.where(small, narrow, wide)])


def _by_blocks(
    density: CellDensity,
    mean: Array,
    variance: Array,
    columns: Array,
    rows: int,
    terms: Callable[[DensityPoints], Array],
) -> Array:
    """Terms (rows, n) of the points that have any, some at a time."""
    out = np.full((rows, len(mean)), np.nan)
    usable = np.isfinite(mean) & (variance >= 0.0) & (variance < np.inf)
    at_mean = np.full(len(mean), np.nan)
    chosen = np.flatnonzero(usable)
    if chosen.size:
        at_mean[chosen] = density.two_derivatives(mean[chosen], columns[:, chosen])[0]
    chosen = np.flatnonzero(usable & ~np.isnan(at_mean))
    with np.errstate(all="ignore"):
        for start in range(0, chosen.size, _POINTS):
            block = chosen[start : start + _POINTS]
            out[:, block] = terms(DensityPoints(density, mean[block], variance[block], columns[:, block]))
    return out


def _widened(points: DensityPoints) -> tuple[DensityPoints, Array, NDArray[np.bool_]]:
    """Points with variances that are no less than rules work with, log p at the mean, and where it was less."""
    at_mean = points.log_density(0.0 * points.mean)
    least = _POINT / (1.0 + np.abs(at_mean[2]) + at_mean[1] ** 2)
    return points._replace(variance=np.maximum(points.variance, least)), at_mean, points.variance < least


def log_average_terms(density: CellDensity, mean: Array, variance: Array, columns: Array) -> Array:
    """h of `GaussianAverage` and four derivatives (5, n), see `pymc_gpep.likelihoods.local_computations`."""

    def terms(points: DensityPoints) -> Array:
        wide, at_mean, narrow = _widened(points)
        out = _refined(tilted_rules(wide), _log_average, 5)
        out[:3] = np.where(narrow, at_mean, out[:3])
        return out

    return _by_blocks(density, mean, variance, columns, 5, terms)


def _plain_weights(rule: CellRule, count: int) -> tuple[Array, Array]:
    """Nodes, less the mean, and weights of the average over N, which sum to 1."""
    deviation, measure = rule.nodes(count)
    weights = np.exp(-0.5 * deviation**2 / rule.points.variance) * measure
    return deviation, weights / weights.sum(axis=0)


def _average_log(rule: CellRule, count: int) -> Array:
    """g and its derivatives in mean and variance, the last as Cov(ℓ′, f)/2v, which holds at kinks too."""
    deviation, weights = _plain_weights(rule, count)
    value, slope, _ = rule.points.log_density(deviation)
    value = np.where(weights > 0.0, value, 0.0)
    first = (weights * slope).sum(axis=0)
    of_variance = 0.5 * (weights * (slope - first) * deviation).sum(axis=0) / rule.points.variance
    return np.stack([(weights * value).sum(axis=0), first, of_variance])


def average_log_terms(density: CellDensity, mean: Array, variance: Array, columns: Array) -> Array:
    """g of `AverageLogDensity`, ∂g/∂m and ∂g/∂v (3, n), see `pymc_gpep.likelihoods.local_computations`."""

    def terms(points: DensityPoints) -> Array:
        wide, at_mean, narrow = _widened(points)
        out = _refined(plain_rules(wide), _average_log, 3)
        return np.where(narrow, at_mean * [[1.0], [1.0], [0.5]], out)

    return _by_blocks(density, mean, variance, columns, 3, terms)


type _Slopes = Callable[[Array, NDArray[np.intp]], Array]
"""Slopes (p, k, n) at latent values (k, n) of points with these numbers."""


def average_slopes(
    density: CellDensity, mean: Array, variance: Array, columns: Array, slopes: _Slopes, count: int
) -> Array:
    """Slopes (count, n) of h: averages over N p."""
    return _slopes_by(
        density, mean, variance, columns, slopes, count, tilted_rules, lambda r, k: _tilted_weights(r, k)[:2]
    )


def normal_slopes(
    density: CellDensity, mean: Array, variance: Array, columns: Array, slopes: _Slopes, count: int
) -> Array:
    """Slopes (count, n) of g: averages over N."""
    return _slopes_by(density, mean, variance, columns, slopes, count, plain_rules, _plain_weights)


def _slopes_by(
    density: CellDensity,
    mean: Array,
    variance: Array,
    columns: Array,
    slopes: _Slopes,
    count: int,
    rules: Callable[[DensityPoints], list[tuple[NDArray[np.intp], CellRule]]],
    weights_of: Callable[[CellRule, int], tuple[Array, Array]],
) -> Array:
    numbers = np.vstack([columns, np.arange(len(mean), dtype=np.float64)])

    class Numbered:
        """The density, with the numbers of points as a last column."""

        def two_derivatives(self, f: Array, given: Array) -> Array:
            return density.two_derivatives(f, given[:-1])

    def averages(rule: CellRule, nodes: int) -> Array:
        deviation, weights = weights_of(rule, nodes)
        found = slopes(rule.points.mean + deviation, rule.points.columns[-1].astype(np.intp))
        return np.asarray(np.where(weights > 0.0, weights * found, 0.0).sum(axis=1))

    def terms(points: DensityPoints) -> Array:
        wide, _, _ = _widened(points)
        return _refined(rules(wide), averages, count)

    return _by_blocks(Numbered(), mean, variance, numbers, count, terms)
