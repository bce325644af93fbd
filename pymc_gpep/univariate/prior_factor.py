"""Prior p of an effect u that is not normal, as a factor of EP: p(u) / N(u | base).

A normal prior, the base, replaces the prior p of an effect u, and the factor of a row restores p. The base does not
depend on hyperparameters. The base times the site of the row is the Gaussian approximation of p. So the fixed point of
EP and its evidence do not depend on the base.

Integrals over u are sums over cells. Widths of cells double with the distance from the centre of p and from the bounds
of its support. So cells resolve both spikes and tails. Nodes are stored as distances from the cavity mean.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import graph_inputs
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array, Observed
from pymc_gpep.graphs.errors import distribution
from pymc_gpep.graphs.interpreted import evaluate
from pymc_gpep.likelihoods.likelihood import UNBOUNDED
from pymc_gpep.likelihoods.links import Reading
from pymc_gpep.likelihoods.local_computations import (
    AverageLogDensity,
    GaussianAverage,
    Kernel,
    ParameterSlopes,
    PlainDensity,
    ScalarDensity,
)
from pymc_gpep.likelihoods.standard_density import reading_of
from pymc_gpep.univariate.density import RowDensity, row_graph
from pymc_gpep.univariate.likelihood import UnivariateLikelihood, depends_on_draws

PRIOR = "Prior"
"""Name of the distribution of an observed variable that is the factor of a prior."""

MIXTURE = "PriorMixture"
"""Name of the distribution of an observed variable that is the factor of a prior with local scales."""

SUFFIX = "_prior"
"""Suffix of the names of observed variables that are factors of priors, after the name of the effect."""

_OWN = 4
"""Number of parameters of the factor itself: mean and standard deviation of the base, and two bounds."""

_DROP = 40.0  # Cells where the log integrand is this much below its maximum are left out.
_NODES = 12  # Number of quadrature nodes in a cell.
_NEAR = np.arange(-9.0, 9.1, 1.5)  # Ends of cells around the cavity mean, in standard deviations of the cavity.
# Ends of cells on each side of a centre, in standard deviations of the base.
_STEPS = 2.0 ** np.r_[-100.0, -60.0, np.arange(-40.0, 31.0)]
_FLAT = 0.01  # Neighbouring cells are merged if the log integrand changes by less than this at their ends.
# The integral is infinite if the log integrand rises towards an outermost end that is less than this below the maximum.
_NO_TAIL = 30.0
_NO_VARIANCE = -3.01  # A power tail with at least this exponent has no variance.
_IMPOSSIBLE = -1e10  # Log density outside the support, for importance weights of draws.
WEAK = 1e-6  # Precision (or slope) of the data, in units of the base prior, below which it counts as 0.


def is_factor(variable: Variable) -> bool:
    """Return whether an observed variable is the factor of a prior."""
    return distribution(variable) in (PRIOR, MIXTURE)


class EffectPriors(NamedTuple):
    """Factors of n effects at given hyperparameters."""

    density: RowDensity
    parameters: Array
    """Parameters (4 + K + p, n): `_OWN` of the factor, K centres, and p of the density."""
    centres: int

    @property
    def base(self) -> tuple[Array, Array]:
        """Mean and variance of the base, (n,) each."""
        return self.parameters[0], self.parameters[1] ** 2

    @property
    def bounds(self) -> Array:
        """Bounds of the support, (2, n)."""
        given = self.parameters[2:_OWN]
        return np.where(np.abs(given) >= UNBOUNDED, np.copysign(np.inf, given), given)

    @property
    def places(self) -> Array:
        """Points around which quadrature cells are small, (K, n)."""
        return self.parameters[_OWN : _OWN + self.centres]

    @property
    def own(self) -> Array:
        """Parameters of the density, (p, n)."""
        return self.parameters[_OWN + self.centres :]

    def columns(self) -> Array:
        """Return the parts (q, n) of the log density that do not depend on the values of the effects."""
        return self.density.columns(np.zeros(self.parameters.shape[1]), self.own)


class TiltedNodes(NamedTuple):
    """Nodes of integrals over the tilted distributions of n effects, N in total."""

    of: NDArray[np.intp]
    """Index of the effect of each node, (N,). Each effect has at least one node."""
    deviation: Array
    """Nodes minus the mean of the cavity, (N,)."""
    weights: Array
    """Probabilities of nodes, (N,), with sum 1 for each effect."""
    log_z: Array
    """Log integral for each effect, (n,)."""
    weak: NDArray[np.bool_]
    """Mask (n,) of effects whose mean and variance are determined neither by data nor by the prior."""
    diverges: NDArray[np.bool_]
    """Mask (n,) of effects whose tilted distribution is improper.

    These effects have the nodes of the prior, and log_z is NaN.
    """

    def average(self, values: Array) -> Array:
        """Return averages (..., n) for each effect of values (..., N) at nodes."""
        starts = np.searchsorted(self.of, np.arange(len(self.log_z)))
        return np.asarray(np.add.reduceat(self.weights * values, starts, axis=-1))

    def quantiles(self, mean: Array, levels: Array) -> Array:
        """Return quantiles (k, n) at levels (k, n), for cavities with means (n,)."""
        found = np.empty(levels.shape)
        ends = np.searchsorted(self.of, np.arange(len(self.log_z) + 1))
        for i, (start, stop) in enumerate(pairwise(ends)):
            weights = self.weights[start:stop]
            below = np.cumsum(weights) - 0.5 * weights
            found[:, i] = mean[i] + np.interp(levels[:, i], below, self.deviation[start:stop])
        return found


@cache
def _legendre() -> tuple[Array, Array]:
    x, w = np.polynomial.legendre.leggauss(_NODES)
    return 0.5 * (1.0 + x), 0.5 * w


def relative_cavity(
    base_mean: Array, base: Array, mean: Array, variance: Array
) -> tuple[Array, Array, Array, NDArray[np.bool_]]:
    """Return the ratio of cavity to base as exp(constant + slope d − ½ precision d²), with d = u − cavity mean.

    Parameters
    ----------
    base_mean, base : array (n,)
        Mean and variance of the base.
    mean, variance : array (n,)
        Moments of cavities, finite and positive.

    Returns
    -------
    precision, slope, constant : array (n,)
    alone : array (n,)
        Mask of effects without information in the cavity. Their terms are only rounding errors; callers set them to 0.
    """
    precision = (base - variance) / (variance * base)
    slope = (mean - base_mean) / base
    constant = 0.5 * (mean - base_mean) * slope + 0.5 * np.log(base / variance)
    alone = (np.abs(precision) * base < WEAK) & (np.abs(slope) * np.sqrt(base) < WEAK)
    return precision, slope, constant, alone


def tilted(prior: EffectPriors, mean: Array, variance: Array) -> TiltedNodes:
    """Return nodes for p(u) N(u | mean, variance) / N(u | base). Cavities include the base.

    Parameters
    ----------
    prior : EffectPriors
    mean, variance : array (n,)
        Means and variances of the cavities, finite and positive.
    """
    *terms, alone = relative_cavity(*prior.base, mean, variance)
    found = _Integrand(prior, mean, *(np.where(alone, 0.0, each) for each in terms))
    nodes, diverges = found.nodes()
    if diverges.any():
        # The product of p and the cavity is improper: use the prior alone.
        found = found._replace(
            precision=np.where(diverges, 0.0, found.precision),
            slope=np.where(diverges, 0.0, found.slope),
            constant=np.where(diverges, 0.0, found.constant),
        )
        nodes, _ = found.nodes()
    return nodes._replace(log_z=np.where(diverges, np.nan, nodes.log_z), diverges=diverges)


class _Integrand(NamedTuple):
    """p(u) exp(constant + slope d − ½ precision d²) as a function of the deviations d = u − `mean` of effects, (n,)."""

    prior: EffectPriors
    mean: Array
    precision: Array
    slope: Array
    constant: Array

    def nodes(self) -> tuple[TiltedNodes, NDArray[np.bool_]]:
        """Return nodes, and a mask (n,) of effects whose integrals are infinite."""
        prior, mean, precision, slope, constant = self
        columns, n = prior.columns(), len(mean)
        unit = prior.parameters[1]

        def exponent(deviation: Array, of: NDArray[np.intp]) -> Array:
            value = prior.density.two_derivatives(mean[of] + deviation, columns[:, of])[0]
            return np.asarray(value + deviation * (slope[of] - 0.5 * precision[of] * deviation))

        known = precision * unit**2 > WEAK
        width = np.where(known, 1.0 / np.sqrt(np.where(known, precision, 1.0)), 0.0)
        about = np.where(known, slope / np.where(known, precision, 1.0), 0.0)
        low, high = prior.bounds - mean
        finite = [np.where(np.isfinite(end), end, prior.places[0] - mean) for end in (low, high)]
        ladders = [*(prior.places - mean), *(finite if np.isfinite(prior.bounds).any() else ())]
        steps = np.r_[-_STEPS[::-1], 0.0, _STEPS][:, None] * unit
        ends = np.concatenate([about + _NEAR[:, None] * width, *(centre + steps for centre in ladders)])
        ends = np.sort(np.clip(ends, low, high), axis=0)
        every = np.tile(np.arange(n), len(ends))
        height = exponent(ends.ravel(), every).reshape(ends.shape)
        impossible = np.isnan(height).all(axis=0)
        height = np.where(np.isfinite(height), height, -np.inf)
        top = height.max(axis=0)
        fallen = [height[i] < top - _NO_TAIL for i in (0, -1)]
        rises = [height[i] >= height[j] - 1e-9 for i, j in ((0, 1), (-1, -2))]
        change = np.abs(np.diff(height, axis=0)) < _FLAT
        open_end = [np.isinf(end) & ~down for end, down in zip((low, high), fallen, strict=True)]
        diverges = (open_end[0] & rises[0]) | (open_end[1] & rises[1])
        kept = np.full(ends.shape, True)
        kept[1:-1] = ~(change[1:] & change[:-1])
        for always in (*(prior.places - mean), low, high):
            kept |= ends == always
        kept[1:] &= np.diff(ends, axis=0) > 0.0
        # Distances of ends from a centre double. So the end `before` places further inside has half the distance.
        fall = np.log(2.0) * _NO_VARIANCE
        before = len(ladders)
        tails = height[0] - height[before], height[-1] - height[-1 - before]
        weak = np.any([np.isinf(end) & (tail >= fall) for end, tail in zip((low, high), tails, strict=True)], axis=0)
        return _integrated(exponent, ends.T, height.T, kept.T, constant, impossible | diverges, weak), diverges


def _integrated(
    exponent: Any,
    ends: Array,
    height: Array,
    kept: NDArray[np.bool_],
    constant: Array,
    impossible: NDArray[np.bool_],
    weak: NDArray[np.bool_],
) -> TiltedNodes:
    """Return the nodes in cells between the ends (n, k) that are in the mask `kept`."""
    n = len(ends)
    of = np.nonzero(kept)[0]
    at, value = ends[kept], height[kept]
    same = of[1:] == of[:-1]
    counts = (np.maximum(value[1:], value[:-1]) > height.max(axis=1)[of[1:]] - _DROP) & same
    counts &= ~impossible[of[1:]]
    low, high, own = at[:-1][counts], at[1:][counts], of[1:][counts]
    missing = np.setdiff1d(np.arange(n), own)  # An effect without any cell gets an empty cell.
    order = np.argsort(np.r_[own, missing], kind="stable")
    own = np.r_[own, missing][order]
    low, high = np.r_[low, np.zeros(missing.size)][order], np.r_[high, np.zeros(missing.size)][order]
    x, w = _legendre()
    length = high - low
    deviation = (low[:, None] + length[:, None] * x).ravel()
    of = np.repeat(own, _NODES)
    value = exponent(deviation, of)
    with np.errstate(divide="ignore"):
        value = value + np.log((length[:, None] * w).ravel())
    value = np.where(np.isnan(value), -np.inf, value)
    starts = np.searchsorted(of, np.arange(n))
    top = np.maximum.reduceat(value, starts)
    top = np.where(np.isfinite(top), top, 0.0)
    weights = np.exp(value - top[of])
    total = np.add.reduceat(weights, starts)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_z = np.where(total > 0.0, top + np.log(total) + constant, np.nan)
        weights = weights / total[of]
    return TiltedNodes(of, deviation, weights, log_z, weak, np.zeros(n, bool))


@dataclass(frozen=True)
class PriorFactor(UnivariateLikelihood):
    """The factor p(u) / N(u | base) of an effect u.

    Parameters
    ----------
    centres : int
        Number of centres around which cells are small.
    smooth : bool
        Whether the density is positive and twice differentiable everywhere.
    whole : bool
        Whether the support of the prior is the whole line.
    effect : str
        Name of the effect.
    """

    centres: int = 1
    smooth: bool = False
    whole: bool = False
    effect: str = ""

    name: ClassVar[str] = "prior"
    written: ClassVar[str] = "prior of an effect that is not normal"
    of_prior: ClassVar[bool] = True

    @property
    def effects(self) -> list[str]:
        return [self.effect]

    @property
    def local(self) -> tuple[object, ...]:  # type: ignore[override]
        if self.density is None:
            return ()
        made = _Computations(self)
        kind = ScalarDensity if self.smooth else PlainDensity
        averages = (AverageLogDensity(made.average_log),) if self.whole else ()
        slopes = ParameterSlopes(made.slopes, made.average_slopes, made.average_log_slopes)
        return kind(made.derivatives), GaussianAverage(made.average), *averages, slopes

    def may_be(self, variable: TensorVariable) -> bool:
        return distribution(variable) == PRIOR

    def read(self, variable: TensorVariable, latents: Collection[Variable] = ()) -> Reading | None:
        if not self.may_be(variable):
            return None
        argument, count, smooth, *rows = variable.owner.op.dist_params(variable.owner)
        centres, smooth = (int(np.ravel(each)[0]) for each in evaluate([count, smooth]))
        graph, parts = row_graph(variable, argument)
        density = RowDensity(graph, [depends_on_draws(part) for part in parts])
        whole = all(map(_is_infinite, rows[2:_OWN]))
        effect = str(variable.name).removesuffix(SUFFIX)
        likelihood = replace(self, density=density, centres=centres, whole=whole, effect=effect)
        likelihood = replace(likelihood, smooth=bool(smooth) and whole)
        return reading_of(argument, *rows[: _OWN + centres], *parts)._replace(likelihood=likelihood)

    def why_not(self, variable: TensorVariable, latents: Collection[Variable]) -> str | None:
        return None

    def check(self, observed: ArrayLike, n_functions: int, n_points: int, name: str = "labels") -> Observed:
        return np.zeros(n_points)

    def check_parameters(self, observed: NDArray[Any] | None, name: str) -> None:
        """Accept all parameters. The evidence is NaN if the prior has no density for them."""

    def of(self, parameters: Array) -> EffectPriors:
        """Return the factors for these parameters."""
        return EffectPriors(self._known, parameters, self.centres)

    def quantiles(self, mean: Array, variance: Array, levels: Array) -> Array:
        """Return quantiles (k, n) of tilted distributions at levels (k, n), for moments (n,) of cavities."""
        with np.errstate(all="ignore"):
            return tilted(self.of(self.parameters), mean, variance).quantiles(mean, levels)

    def without_moments(self, mean: Array, variance: Array) -> NDArray[np.bool_]:
        """Return a mask (n,) of tilted distributions without mean and variance, for moments (n,) of cavities."""
        with np.errstate(all="ignore"):
            return tilted(self.of(self.parameters), mean, variance).weak

    def log_densities(self, f: Array, observed: Observed) -> Array:
        values = f[..., 0, :]
        repeats = values.size // max(values.shape[-1], 1)
        out = np.empty((4, values.size))
        _Computations(self).derivatives(values.ravel(), observed, np.tile(self.parameters, (1, repeats)), out)
        return np.maximum(out[0], _IMPOSSIBLE).reshape(values.shape)


def at_widths(
    derivatives: Kernel, mean: Array, variance: Array, y: Observed, parameters: Array, out: Array
) -> NDArray[np.intp]:
    """Write the log density and its derivatives where variances are 0, NaN elsewhere, into `out` (5, n).

    Return the rows with a positive variance.
    """
    out[:] = np.nan
    usable = np.isfinite(mean) & np.isfinite(variance) & (variance >= 0.0)
    points = np.flatnonzero(usable & (variance == 0.0))
    if points.size:
        found = np.empty((4, points.size))
        derivatives(mean[points], y[points], np.ascontiguousarray(parameters[:, points]), found)
        out[:4, points] = found
    return np.flatnonzero(usable & (variance > 0.0))


class _Computations:
    """Local computations of a factor."""

    def __init__(self, factor: PriorFactor) -> None:
        self._of, self._density = factor.of, factor.density
        assert factor.density is not None
        self._first, self._learned = _OWN + factor.centres, np.flatnonzero(factor.density.learned)
        self._plain = replace(UnivariateLikelihood(), density=factor.density)

    def derivatives(self, f: Array, y: Observed, parameters: Array, out: Array) -> None:
        prior = self._of(parameters)
        columns, (mean, variance) = prior.columns(), prior.base
        out[:3] = prior.density.two_derivatives(f, columns)
        out[3] = prior.density.third_derivative(f, columns)
        d = (f - mean) / variance
        out[0] += 0.5 * d * (f - mean) + 0.5 * np.log(2.0 * np.pi * variance)
        out[1] += d
        out[2] += 1.0 / variance
        beyond = (f < prior.bounds[0]) | (f > prior.bounds[1])
        out[0] = np.where(beyond, -np.inf, out[0])

    def average(self, mean: Array, variance: Array, y: Observed, parameters: Array, out: Array) -> None:
        if (chosen := at_widths(self.derivatives, mean, variance, y, parameters, out)).size:
            v = variance[chosen]
            with np.errstate(all="ignore"):
                nodes = tilted(self._of(np.ascontiguousarray(parameters[:, chosen])), mean[chosen], v)
                first = nodes.average(nodes.deviation)
                d = nodes.deviation - first[nodes.of]
                second, third, fourth = nodes.average(np.stack([d**2, d**3, d**4]))
                cumulants = [first / v, (second / v - 1.0) / v, third / v**3, (fourth - 3.0 * second**2) / v**4]
            out[0, chosen] = nodes.log_z
            out[1:, chosen] = np.where(nodes.weak | nodes.diverges, 0.0, cumulants)

    def average_log(self, mean: Array, variance: Array, y: Observed, parameters: Array, out: Array) -> None:
        prior = self._of(parameters)
        self._plain.computation(AverageLogDensity).terms(mean, variance, y, prior.own, out)
        base_mean, base = prior.base
        out[0] += 0.5 * ((mean - base_mean) ** 2 + variance) / base + 0.5 * np.log(2.0 * np.pi * base)
        out[1] += (mean - base_mean) / base
        out[2] += 0.5 / base

    def slopes(self, f: Array, y: Observed, parameters: Array, out: Array) -> None:
        out[:] = 0.0
        own = np.empty((len(parameters) - self._first, *out.shape[1:]))
        self._plain.computation(ParameterSlopes).derivatives(f, y, parameters[self._first :], own)
        out[self._first :] = own

    def average_slopes(self, mean: Array, variance: Array, y: Observed, parameters: Array, out: Array) -> None:
        """Write derivatives of log_z in the parameters. In a bound, this is ± the tilted density at the bound."""
        out[:] = 0.0
        with np.errstate(all="ignore"):
            prior = self._of(parameters)
            nodes = tilted(prior, mean, variance)
            if self._learned.size:
                u = mean[nodes.of] + nodes.deviation
                found = prior.density.slopes(u, np.zeros(u.size), prior.own[:, nodes.of], 1)[self._learned, 0]
                found = np.where(nodes.weights > 0.0, found, 0.0)
                out[self._first + self._learned] = nodes.average(found)
            base_mean, base = prior.base
            for row, (end, inside) in enumerate(zip(prior.bounds, (np.inf, -np.inf), strict=True)):
                at = np.nextafter(np.where(np.isfinite(end), end, 0.0), inside)
                value = prior.density.two_derivatives(at, prior.columns())[0]
                value += 0.5 * ((at - base_mean) ** 2 / base - (at - mean) ** 2 / variance + np.log(base / variance))
                sign = np.where(np.isfinite(end), (-1.0, 1.0)[row], 0.0)
                out[2 + row] = sign * np.exp(np.where(sign == 0.0, 0.0, value - nodes.log_z))

    def average_log_slopes(self, mean: Array, variance: Array, y: Observed, parameters: Array, out: Array) -> None:
        out[:] = 0.0
        own = np.empty((len(parameters) - self._first, len(mean)))
        self._plain.computation(ParameterSlopes).average_log(mean, variance, y, parameters[self._first :], own)
        out[self._first :] = own


def _is_infinite(bound: TensorVariable) -> bool:
    """Return whether a bound is infinite for all effects and hyperparameters."""
    constant = all(isinstance(each, Constant) for each in graph_inputs([bound]))
    return constant and bool((np.abs(evaluate([bound])[0]) >= UNBOUNDED).all())


PRIOR_FACTOR = PriorFactor()
"""Reader of observed variables that are priors, as factors."""
