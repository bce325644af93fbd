"""Averages of a unimodal density of one latent value over a normal distribution, from its log density alone.

Rules are the trapezoid rule in τ with f = centre + c sinh τ, dense about the centre and far-reaching with few nodes.
For smooth integrands its digits double with its nodes (Trefethen and Weideman 2014). All points share a call of the
density, so that plain arrays do: nothing is compiled.

Against a normal density, p has to be unimodal, as log-concave ones are. An average that does not converge is NaN, and
so is one of a density that is NaN at the mean.
"""

import math
from collections.abc import Callable
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array, Observed
from pymc_gpep.likelihoods.local_computations import (
    AverageLogDensity,
    GaussianAverage,
    Kernel,
    ParameterSlopes,
    ScalarDensity,
)

_FEWEST, _MOST = 16, 4096  # nodes, less one
_AGREEMENT = 1e-7  # of a rule with one of half its nodes: the error left is about the square of it
_DROP = 45.0  # of the logarithm of the integrand from its mode to the ends of the rule
_REACH = 9.5  # standard deviations that an average of log p reaches
_EVEN = 20.0  # scale in widths that makes nodes next to even
_WIDE = 10.0  # variance from which on cumulants of f serve in any case
_LONGEST = 200  # steps of a search: halvings and doublings over the range of floating-point numbers
_BROAD = 4.0  # width of a rule beside which features are narrow
_POINT = 1e-10  # variance below which a normal density is a point, for a density of unit curvature

type _Sample = Callable[[_Rule, Array], Array]
"""Values (..., k, n) of a density at nodes (k, n)."""
type _Terms = Callable[[_Rule, Array, Array, Array], Array]
"""Terms, from a rule, its nodes and weights (k, n), and what was sampled at the nodes."""


class _Points(NamedTuple):
    """Some of the points, each with its normal density."""

    density: ScalarDensity
    mean: Array
    variance: Array
    y: Observed
    parameters: Array

    def take(self, chosen: NDArray[np.int64]) -> Self:
        mean, variance, y = self.mean[chosen], self.variance[chosen], self.y[chosen]
        return self._replace(mean=mean, variance=variance, y=y, parameters=self.parameters[:, chosen])

    def evaluate(self, kernel: Kernel, rows: tuple[int, ...], f: Array) -> Array:
        """Return the numbers that `kernel` writes for latent values (k, n) or (n,), with the rows in front."""
        repeats = f.size // max(len(self.mean), 1)
        out = np.empty((*rows, f.size))
        with np.errstate(all="ignore"):
            kernel(f.ravel(), np.tile(self.y, repeats), np.tile(self.parameters, (1, repeats)), out)
        return out.reshape(*rows, *f.shape)

    def log_density(self, deviation: Array) -> Array:
        """log p and three derivatives at `deviation` from the mean."""
        return self.evaluate(self.density.derivatives, (4,), self.mean + deviation)

    def tilted(self, deviation: Array) -> Array:
        """log N(f) p(f), up to a constant, and two derivatives."""
        value, slope, curvature, _ = self.log_density(deviation)
        scaled = deviation / self.variance
        return np.stack([value - 0.5 * deviation * scaled, slope - scaled, curvature - 1.0 / self.variance])


class _Rule(NamedTuple):
    """f = mean + centre + scale sinh τ with τ from `low` to `high`, for each point."""

    points: _Points
    centre: Array
    scale: Array
    low: Array
    high: Array

    def take(self, chosen: NDArray[np.int64]) -> Self:
        points, *arrays = self
        return type(self)(points.take(chosen), *(array[chosen] for array in arrays))

    def nodes(self, count: int) -> tuple[Array, Array]:
        """Nodes, less the mean, and weights (count + 1, n) of ∫ · df. Ends, where nothing counts, weigh like others."""
        length = self.high - self.low
        tau = self.low + length * np.arange(count + 1)[:, None] / count
        return self.centre + self.scale * np.sinh(tau), self.scale * np.cosh(tau) * length / count


def _mode(points: _Points) -> Array:
    """The mode of N(f) p(f), less the mean, by Newton's method kept within bounds of it."""
    reach = np.sqrt(points.variance) * np.sign(points.tilted(np.zeros_like(points.mean))[1])
    for _ in range(_LONGEST):
        uphill = reach * points.tilted(reach)[1] > 0.0
        if not uphill.any():
            break
        reach[uphill] *= 2.0
    low, high = np.minimum(reach, 0.0), np.maximum(reach, 0.0)
    mode = np.zeros_like(reach)
    for _ in range(_LONGEST):
        _, slope, curvature = points.tilted(mode)
        low, high = np.where(slope > 0.0, mode, low), np.where(slope > 0.0, high, mode)
        new = mode - slope / curvature
        new = np.where((new > low) & (new < high) & (curvature < 0.0), new, 0.5 * (low + high))
        near = np.abs(new - mode) <= 1e-3 / np.sqrt(np.maximum(-curvature, 1.0 / points.variance))
        mode = new
        if near.all():
            break
    return mode


def _tilted_rule(points: _Points) -> _Rule:
    """For integrals of N(f) p(f): about its mode, as dense as its steeper side asks for."""
    mode = _mode(points)
    top, _, curvature = points.tilted(mode)
    width = 1.0 / np.sqrt(np.maximum(-curvature, 1.0 / points.variance))

    def drop(distance: Array) -> Array:
        return np.nan_to_num(top - points.tilted(mode + distance)[0], nan=np.inf)

    def distance(sign: float) -> Array:
        """To where the logarithm is about 1 below the mode's."""
        found = width
        for _ in range(_LONGEST):
            fallen = drop(sign * found)
            factor = np.where(fallen > 2.0, 0.6, np.where(fallen < 0.5, 1.5, 1.0))
            if (factor == 1.0).all():
                break
            found = found * factor
        return found

    scale = np.minimum(distance(-1.0), distance(1.0))

    def end(sign: float) -> Array:
        """τ from which on nothing counts."""
        tau = np.full(len(mode), 2.0)
        for _ in range(_LONGEST):
            short = drop(sign * scale * np.sinh(tau)) < _DROP
            if not short.any():
                break
            tau[short] += 0.5
        return sign * tau

    low, high = end(-1.0), end(1.0)
    return _about_feature(_Rule(points, mode, scale, low, high))


def _plain_rule(points: _Points) -> _Rule:
    """For integrals of N(f) log p(f): next to even, unless there is a feature in the way."""
    sd = np.sqrt(points.variance)

    def end(sign: float) -> Array:
        """τ where N times log p no longer counts; that may grow like an exponential function."""
        reach = np.full(len(sd), _REACH)
        least = np.log1p(np.abs(points.log_density(0.0 * sd)[0])) - _DROP
        for _ in range(_LONGEST):
            short = np.log1p(np.abs(points.log_density(sign * reach * sd)[0])) - 0.5 * reach**2 > least
            if not short.any():
                break
            reach[short] += 0.5
        return sign * np.arcsinh(reach / _EVEN)

    return _about_feature(_Rule(points, np.zeros_like(sd), _EVEN * sd, end(-1.0), end(1.0)))


def _about_feature(rule: _Rule) -> _Rule:
    """Nodes dense about what log p has of features, where a rule is so wide that it would miss them.

    There log p turns from a rise to a fall, or begins to be flat beside the width of the rule. Features are taken to be
    a few units wide.
    """
    ends = [rule.centre + rule.scale * np.sinh(tau) for tau in (rule.low, rule.high)]
    widths = (ends[1] - ends[0]) / (2.0 * _REACH)
    wide = np.flatnonzero(widths > _BROAD)
    if not wide.size:
        return rule
    points, width = rule.points.take(wide), widths[wide]
    total, number = np.zeros(len(wide)), np.zeros(len(wide))
    for sign in (1.0, -1.0):
        low, high = (end[wide] for end in ends)
        level = sign / width
        crossed = (points.log_density(low)[1] > level) & (points.log_density(high)[1] < level)
        for _ in range(50):
            middle = 0.5 * (low + high)
            above = points.log_density(middle)[1] > level
            low, high = np.where(above, middle, low), np.where(above, high, middle)
        total += np.where(crossed, low, 0.0)
        number += crossed
    missed = wide[number > 0]
    centre, scale = rule.centre.copy(), np.array(rule.scale)
    centre[missed] = (total / np.maximum(number, 1))[number > 0]
    scale[missed] = 2.0
    turned = [np.array(tau) for tau in rule[3:]]
    for end, tau in zip(ends, turned, strict=True):
        tau[missed] = np.arcsinh((end - centre)[missed] / 2.0)
    return _Rule(rule.points, centre, scale, *turned)


def _floor(rule: _Rule, rows: int) -> Array:
    """Return the size below which a term and its derivatives count as zero."""
    return 1e-5 * np.maximum(rule.points.variance, 1.0) ** (-0.5 * np.arange(rows)[:, None])


def _refined(rule: _Rule, sample: _Sample, terms: _Terms) -> Array:
    """Terms by rules of more and more nodes, until all of a point's agree; NaN where they never do.

    Each rule has the nodes of the one before.
    """
    left = np.arange(len(rule.centre))
    count = _FEWEST
    nodes, weights = rule.nodes(count)
    values = sample(rule, nodes)
    before = terms(rule, nodes, weights, values)
    out = np.full(before.shape, np.nan)
    while count < _MOST and len(left):
        count *= 2
        nodes, weights = rule.nodes(count)
        both = np.empty((*values.shape[:-2], *nodes.shape))
        both[..., ::2, :] = values
        both[..., 1::2, :] = sample(rule, np.ascontiguousarray(nodes[1::2]))
        now = terms(rule, nodes, weights, both)
        agree = (np.abs(now - before) <= _AGREEMENT * (np.abs(now) + _floor(rule, len(now)))).all(axis=0)
        out[:, left[agree]] = now[:, agree]
        others = np.flatnonzero(~agree)
        left, before, rule, values = left[others], now[:, others], rule.take(others), both[..., others]
    return out


def _log_density(rule: _Rule, nodes: Array) -> Array:
    """log p and three derivatives (4, k, n) at nodes."""
    return rule.points.log_density(nodes)


def _tilted_weights(rule: _Rule, deviation: Array, measure: Array, log_p: Array) -> tuple[Array, Array]:
    """Weights of nodes that sum to 1, and log ∫ N p."""
    variance = rule.points.variance
    exponent = log_p - 0.5 * deviation * (deviation / variance)
    top = np.nanmax(exponent, axis=0)
    weights = np.nan_to_num(np.exp(exponent - top) * measure)  # far out p may be 0 in ways that give NaN
    total = weights.sum(axis=0)
    return weights / total, top + np.log(total) - 0.5 * np.log(2.0 * math.pi * variance)


def _log_average_terms(rule: _Rule, deviation: Array, measure: Array, density: Array) -> Array:
    """Return h and four derivatives in the mean.

    They are cumulants of f, which cancel where N is narrow and p leaves it so. There the first are computed with
    ℓ = log p: E ℓ′, E ℓ″ + Var ℓ′ and E ℓ‴ + 3 Cov(ℓ″, ℓ′) + κ₃(ℓ′). The last one is the derivative of the third.
    """
    variance = rule.points.variance
    log_p, *slopes = density
    weights, value = _tilted_weights(rule, deviation, measure, log_p)

    def average(x: Array) -> Array:
        return np.asarray((weights * x).sum(axis=0))

    def centred(x: Array) -> tuple[Array, Array]:
        x = np.where(weights > 0.0, x, 0.0)
        return average(x), x - average(x)

    first, d = centred(deviation / variance)
    square = d * d
    two_of_f = average(square)
    of_f = [first, two_of_f - 1.0 / variance, average(square * d), average(square * square) - 3.0 * two_of_f**2]
    (e1, d1), (e2, d2), (e3, d3) = (centred(slope) for slope in slopes)
    square = d1 * d1
    two = average(square)
    third = e3 + average((3.0 * d2 + square) * d1)
    fourth = average(d3 * (d + 3.0 * d1) + 3.0 * d2 * d2 + square * (6.0 * d2 + square)) - 3.0 * two**2
    of_slopes = [e1, e2 + two, third, fourth]
    narrowed = (two_of_f * variance < 0.5) | (variance > _WIDE)
    return np.stack([value, *np.where(narrowed, of_f, of_slopes)])


def _log_average(points: _Points) -> Array:
    """`GaussianAverage`'s terms. Under as good as a point, only the fourth derivative is left to a rule."""
    at_mean = points.log_density(np.zeros_like(points.mean))
    least = _POINT / (1.0 + np.abs(np.nan_to_num(at_mean[2])))
    rule = _tilted_rule(points._replace(variance=np.maximum(points.variance, least)))
    out = _refined(rule, _log_density, _log_average_terms)
    out[:4] = np.where(points.variance < least, at_mean, out[:4])
    return out


def _plain_weights(rule: _Rule, deviation: Array, measure: Array) -> Array:
    """Weights of the average over N."""
    variance = rule.points.variance
    return np.exp(-0.5 * deviation**2 / variance) * measure / np.sqrt(2.0 * math.pi * variance)


def _average_log_terms(rule: _Rule, deviation: Array, measure: Array, density: Array) -> Array:
    """g and its derivatives in mean and variance."""
    weights = _plain_weights(rule, deviation, measure)
    value, slope, curvature, _ = density
    return np.stack([(weights * term).sum(axis=0) for term in (value, slope, 0.5 * curvature)])


def _average_log(points: _Points) -> Array:
    """`AverageLogDensity`'s terms."""
    at_mean = points.log_density(np.zeros_like(points.mean))
    least = _POINT / (1.0 + np.abs(np.nan_to_num(at_mean[2])))
    rule = _plain_rule(points._replace(variance=np.maximum(points.variance, least)))
    out = _refined(rule, _log_density, _average_log_terms)
    return np.where(points.variance < least, at_mean[:3] * [[1.0], [1.0], [0.5]], out)


def _kernel(density: ScalarDensity, terms: Callable[[_Points], Array]) -> Kernel:
    """`terms` of the points that have any, in the form of a local computation."""

    def call(mean: Array, variance: Array, y: Observed, parameters: Array, out: Array) -> None:
        out[:] = np.nan
        given = parameters if len(parameters) else np.empty((0, len(mean)))  # `NO_PARAMETERS` has no columns
        points = _Points(density, mean, variance, y, given)
        with np.errstate(all="ignore"):
            usable = (
                ~np.isnan(points.log_density(0.0 * mean)[0])
                & np.isfinite(mean)
                & (variance >= 0.0)
                & (variance < np.inf)
            )
            chosen = np.flatnonzero(usable)
            if len(chosen):
                out[:, chosen] = terms(points.take(chosen))

    return call


def gaussian_average(density: ScalarDensity) -> GaussianAverage:
    """h of a density that gives its logarithm and nothing else."""
    return GaussianAverage(_kernel(density, _log_average))


def average_log_density(density: ScalarDensity) -> AverageLogDensity:
    """g of a density that gives its logarithm and nothing else."""
    return AverageLogDensity(_kernel(density, _average_log))


def parameter_slopes(density: ScalarDensity, derivatives: Kernel) -> ParameterSlopes:
    """Slopes of h and g in the parameters, averages of those of log p: `derivatives` as in `ParameterSlopes`."""

    def sample(rule: _Rule, nodes: Array) -> Array:
        points = rule.points
        slopes = points.evaluate(derivatives, (len(points.parameters), 3), points.mean + nodes)[:, 0]
        return np.concatenate([points.log_density(nodes)[:1], slopes])

    def averaged(weights: Array, slopes: Array) -> Array:
        return np.asarray((weights * np.where(weights > 0.0, slopes, 0.0)).sum(axis=1))

    def under_tilted(rule: _Rule, nodes: Array, measure: Array, sampled: Array) -> Array:
        return averaged(_tilted_weights(rule, nodes, measure, sampled[0])[0], sampled[1:])

    def under_normal(rule: _Rule, nodes: Array, measure: Array, sampled: Array) -> Array:
        return averaged(_plain_weights(rule, nodes, measure), sampled[1:])

    def least(points: _Points) -> _Points:
        return points._replace(variance=np.maximum(points.variance, _POINT))

    return ParameterSlopes(
        derivatives,
        _kernel(density, lambda points: _refined(_tilted_rule(least(points)), sample, under_tilted)),
        _kernel(density, lambda points: _refined(_plain_rule(least(points)), sample, under_normal)),
    )
