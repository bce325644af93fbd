"""A step over a batch in JAX, compiled as one function. It has the formulas of `step`, with arrays of JAX.

The module is imported only if a fit uses JAX. Prior moments, their derivatives, and the optimiser are graphs of
PyTensor, which are compiled to JAX functions.

Rules return log normalisers or expected log likelihoods of the points in a batch. Shapes are static, numbers have 64
bits, and failures are NaN. Derivatives have closed forms.

Integrals without a closed form are computed by the trapezoid rule on a window around the mode. The log integrand
decreases by at least half the squared distance from the mode. Newton's method finds the mode, then both ends of the
window. Beyond the ends the integrand is negligible. The rule converges geometrically with the number of nodes, since
integrands are smooth and flat at both ends.
"""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytensor.tensor as pt
from jax.scipy.linalg import cho_solve, solve_triangular
from numpy.typing import NDArray
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import graph_replace
from pytensor.link.jax.dispatch.basic import jax_funcify

from pymc_gpep.array_types import Array
from pymc_gpep.solvers.step_algebra import Group, RowMoments, StepWhitening
from pymc_gpep.solvers.step_arrays import LEAST_RIDGE, PointTerms, StepArrays, StepGaussians
from pymc_gpep.streaming.features import prior_blocks
from pymc_gpep.streaming.memories import Remembered, RowSites, StepBatch
from pymc_gpep.streaming.rules import (
    ExpectedLogLabelNoise,
    ExpectedLogLogit,
    ExpectedLogPairs,
    ExpectedLogProbit,
    LogitNormaliser,
    PairNormalisers,
    ProbitNormaliser,
    Rule,
    WholePointNormaliser,
)
from pymc_gpep.streaming.state import State
from pymc_gpep.streaming.step import BatchProblem, Optimiser, Step, Taken, uninterrupted

_HALF, _HALF_LOG_2PI = np.sqrt(0.5), 0.5 * np.log(2.0 * np.pi)
_FAR = 9.0  # A continued fraction replaces the error function for arguments below minus this number.


def log_cdf_and_hazard(z: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return log Φ(z) and the hazard φ(z) / Φ(z) of a normal distribution, accurate in both tails."""
    near = jnp.maximum(z, -_FAR)
    tail = 0.5 * jax.scipy.special.erfc(_HALF * jnp.abs(near))
    value = jnp.where(z < 0.0, jnp.log(tail), jnp.log1p(-tail))
    rate = jnp.exp(-0.5 * near * near - _HALF_LOG_2PI - value)
    t = rest = jnp.maximum(-z, _FAR)
    for n in range(10, 0, -1):
        rest = t + n / rest
    is_far = z < -_FAR
    far_value = -0.5 * t * t - _HALF_LOG_2PI - jnp.log(rest)
    return jnp.where(is_far, far_value, value), jnp.where(is_far, rest, rate)


type LogIntegrand = Callable[[jax.Array], tuple[jax.Array, jax.Array, jax.Array]]
"""Function that returns B log integrands at points (r, B), with their first and minus second derivatives."""


_FALL = 36.0  # Decrease of the log integrand from the mode to the ends of the window.
_TO_MODE, _TO_ENDS, _HALVINGS = (
    8,
    4,
    50,
)  # Numbers of Newton steps to the mode, of Newton steps to the ends, and of bisections.
_NODES, _NODES_OF_POINT = 100, 64  # Numbers of nodes of trapezoid rules: for a logit, and for several classes.
_HERMITE, _WEIGHTS = np.polynomial.hermite_e.hermegauss(64)


_WEIGHTS /= _WEIGHTS.sum()


def _mode(integrand: LogIntegrand, count: int) -> jax.Array:
    """Return the modes (1, B) of B log integrands, by Newton's method from 0."""
    mode = jnp.zeros((1, count))
    for _ in range(_TO_MODE):
        _, slope, curvature = integrand(mode)
        mode = mode + slope / curvature
    return mode


def _ends(integrand: LogIntegrand, mode: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return both ends (B,) of the windows of B integrands. Their logs have a curvature of at least 1."""
    top, _, _ = integrand(mode)
    sides = np.array([[-1.0], [1.0]])
    distance = jnp.full((2, mode.shape[1]), np.sqrt(2.0 * _FALL))
    for _ in range(_TO_ENDS):
        # The decrease is convex in the distance. So Newton steps from outside the window stay outside.
        value, slope, _ = integrand(mode + sides * distance)
        distance = distance - jnp.maximum(top - value - _FALL, 0.0) / jnp.maximum(-sides * slope, 1.0)
    return mode[0] - distance[0], mode[0] + distance[1]


def _normalised(log_terms: jax.Array, step: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return log integrals log(step Σ exp(log_terms) / √2π), (B,), and the shares of the terms, (B, nodes)."""
    top = log_terms.max(axis=1, keepdims=True)
    weights = jnp.exp(log_terms - top)
    total = weights.sum(axis=1)
    return top[:, 0] + jnp.log(total * step) - _HALF_LOG_2PI, weights / total[:, None]


def _sign(labels: jax.Array) -> jax.Array:
    """Return 1 for label 1, and −1 for label 0."""
    return 2.0 * labels - 1.0


def _probit_normaliser(rule: ProbitNormaliser, mean: jax.Array, variance: jax.Array, labels: jax.Array) -> PointTerms:
    scale = _sign(labels) / jnp.sqrt(1.0 + variance[:, 0])
    z = scale * mean[:, 0]
    value, rate = log_cdf_and_hazard(z)
    return PointTerms(value, (scale * rate)[:, None], (-0.5 * scale * scale * rate * z)[:, None])


def _logit_normaliser(rule: LogitNormaliser, mean: jax.Array, variance: jax.Array, labels: jax.Array) -> PointTerms:
    sign, deviation = _sign(labels), jnp.sqrt(variance[:, 0])
    centre = sign * mean[:, 0]
    nothing = jnp.zeros_like(centre)

    def integrand(x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        f = centre + deviation * x
        miss = jax.nn.sigmoid(-f)
        curvature = deviation * deviation * miss * (1.0 - miss) + 1.0
        return jax.nn.log_sigmoid(f) - 0.5 * x * x, deviation * miss - x, curvature

    def halved(_: Any, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = bounds
        middle = 0.5 * (low + high)
        uphill = integrand(middle)[1] > 0.0
        return jnp.where(uphill, middle, low), jnp.where(uphill, high, middle)

    # Newton's method may oscillate if the deviation is large, so the mode is bisected. The slope is positive at 0, and
    # negative at the deviation.
    low, high = jax.lax.fori_loop(0, _HALVINGS, halved, (nothing, deviation))
    first_end, last_end = _ends(integrand, 0.5 * (low + high)[None, :])
    # The logistic function bends at f = 0. The trapezoid rule in u, x = place + width sinh u, has dense nodes near 0.
    bend = -centre / deviation
    place = jnp.clip(bend, first_end, last_end)
    width = 2.0 / deviation + jnp.abs(bend - place)
    begin, end = jnp.arcsinh((first_end - place) / width), jnp.arcsinh((last_end - place) / width)
    step = (end - begin) / (_NODES - 1)
    u = begin[:, None] + step[:, None] * np.arange(_NODES)
    x = place[:, None] + width[:, None] * jnp.sinh(u)
    f = centre[:, None] + deviation[:, None] * x
    value, weights = _normalised(jax.nn.log_sigmoid(f) - 0.5 * x * x + jnp.log(jnp.cosh(u)), step * width)
    miss = jax.nn.sigmoid(-f)
    first = (weights * miss).sum(axis=1)
    # The derivative in the variance is half the average of σ″ / σ = (1 − σ)(1 − 2σ), for the logistic function σ.
    second = (weights * miss * (2.0 * miss - 1.0)).sum(axis=1)
    return PointTerms(value, (sign * first)[:, None], 0.5 * second[:, None])


def _expected(
    response: Callable[[jax.Array], tuple[jax.Array, jax.Array]], mean: jax.Array, variance: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return averages of a log response over normals, and derivatives in mean and variance, by fixed quadrature."""
    deviation = jnp.sqrt(variance)
    value, slope = response(mean[..., None] + deviation[..., None] * _HERMITE)
    along = (slope * (_WEIGHTS * _HERMITE)).sum(axis=-1)
    return (value * _WEIGHTS).sum(axis=-1), (slope * _WEIGHTS).sum(axis=-1), 0.5 * along / deviation


def _log_logistic(f: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jax.nn.log_sigmoid(f), jax.nn.sigmoid(-f)


def _expected_of_one(
    response: Callable[[jax.Array], tuple[jax.Array, jax.Array]],
    mean: jax.Array,
    variance: jax.Array,
    labels: jax.Array,
) -> PointTerms:
    sign = _sign(labels)
    value, slope, in_variance = _expected(response, sign * mean[:, 0], variance[:, 0])
    return PointTerms(value, (sign * slope)[:, None], in_variance[:, None])


def _differences(mean: jax.Array, variance: jax.Array, noise: float) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return means, variances, and variances including noise, of f_y − f_k for k ≠ y, (B, c − 1) each."""
    half = mean.shape[1] // 2
    spread = variance[:, :half] + variance[:, half:]
    return mean[:, :half] - mean[:, half:], spread, noise + spread


def _of_both(value: jax.Array, slope: jax.Array, in_variance: jax.Array) -> PointTerms:
    """Return the terms of the sites on f_y and on all f_k, from the terms of their differences (B, c − 1)."""
    both = jnp.concatenate([slope, -slope], axis=1), jnp.concatenate([in_variance, in_variance], axis=1)
    return PointTerms(value.sum(axis=1), *both)


def _pair_normalisers(rule: PairNormalisers, mean: jax.Array, variance: jax.Array, labels: jax.Array) -> PointTerms:
    centre, _, spread = _differences(mean, variance, rule.noise)
    scale = 1.0 / jnp.sqrt(spread)
    z = scale * centre
    value, rate = log_cdf_and_hazard(z)
    return _of_both(value, scale * rate, -0.5 * scale * scale * rate * z)


def _expected_pairs(rule: ExpectedLogPairs, mean: jax.Array, variance: jax.Array, labels: jax.Array) -> PointTerms:
    centre, spread, _ = _differences(mean, variance, rule.noise)
    scale = 1.0 / np.sqrt(rule.noise)
    value, slope, in_variance = _expected(log_cdf_and_hazard, scale * centre, scale * scale * spread)
    return _of_both(value, scale * slope, scale * scale * in_variance)


def _log_largest(mean: jax.Array, variance: jax.Array, labels: jax.Array) -> PointTerms:
    """Return log probabilities that the label's utility is largest, for normal utilities with moments (B, c)."""
    # x is the standardised utility of the observed class. Factors of all other classes are Φ(a x + d).
    observed = jnp.arange(mean.shape[1])[None, :] == labels[:, None]
    inverse = 1.0 / jnp.sqrt(variance)
    own_mean = (mean * observed).sum(axis=1, keepdims=True)
    own_scale = 1.0 / (inverse * observed).sum(axis=1, keepdims=True)
    a, d = own_scale * inverse, (own_mean - mean) * inverse
    others = 1.0 - observed

    def integrand(x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        z = a * x[..., None] + d
        value, rate = log_cdf_and_hazard(z)
        rate = rate * others
        return (
            (value * others).sum(axis=-1) - 0.5 * x * x,
            (a * rate).sum(axis=-1) - x,
            (a * a * rate * (rate + z)).sum(axis=-1) + 1.0,
        )

    first_end, last_end = _ends(integrand, _mode(integrand, len(labels)))
    step = (last_end - first_end) / (_NODES_OF_POINT - 1)
    x = first_end[:, None] + step[:, None] * np.arange(_NODES_OF_POINT)
    z = a[:, :, None] * x[:, None, :] + d[:, :, None]
    log_cdf, rate = log_cdf_and_hazard(z)
    value, weights = _normalised((log_cdf * others[:, :, None]).sum(axis=1) - 0.5 * x * x, step)
    rate = rate * weights[:, None, :]
    in_variance = -0.5 * inverse * inverse * (rate * z).sum(axis=2)
    own = 0.5 * inverse * inverse * ((weights * x * x).sum(axis=1, keepdims=True) - 1.0)
    of_own = inverse * (weights * x).sum(axis=1, keepdims=True)
    in_mean = jnp.where(observed, of_own, -inverse * rate.sum(axis=2))
    return PointTerms(value, in_mean, jnp.where(observed, own, in_variance))


def _whole_point(rule: WholePointNormaliser, mean: jax.Array, variance: jax.Array, labels: jax.Array) -> PointTerms:
    found = _log_largest(mean, variance + rule.noise, labels)
    if not rule.epsilon:
        return found
    right = np.log1p(-rule.epsilon) + found.value
    value = jnp.logaddexp(right, np.log(rule.epsilon / mean.shape[1]))
    share = jnp.exp(right - value)[:, None]
    return PointTerms(value, share * found.in_mean, share * found.in_variance)


def _expected_labels(
    rule: ExpectedLogLabelNoise, mean: jax.Array, variance: jax.Array, labels: jax.Array
) -> PointTerms:
    found = _log_largest(mean, variance + rule.noise, labels)
    c = mean.shape[1]
    lowest = np.log(rule.epsilon / c)
    gain = (np.log1p(-rule.epsilon * (1.0 - 1.0 / c)) - lowest) * jnp.exp(found.value)
    return PointTerms(lowest + gain, gain[:, None] * found.in_mean, gain[:, None] * found.in_variance)


_FORMS: dict[type[Rule], Callable[..., PointTerms]] = {
    WholePointNormaliser: _whole_point,
    PairNormalisers: _pair_normalisers,
    ProbitNormaliser: _probit_normaliser,
    LogitNormaliser: _logit_normaliser,
    ExpectedLogPairs: _expected_pairs,
    ExpectedLogProbit: lambda rule, *given: _expected_of_one(log_cdf_and_hazard, *given),
    ExpectedLogLogit: lambda rule, *given: _expected_of_one(_log_logistic, *given),
    ExpectedLogLabelNoise: _expected_labels,
}


def traced_terms(rule: Rule, labels: Any) -> Callable[[Any, Any], PointTerms]:
    """Return the terms of points with labels (B,) as a function of means and variances (B, d)."""
    form = _FORMS[type(rule)]
    return lambda mean, variance: form(rule, mean, variance, labels)


class TracedArrays(StepArrays):
    """Linear algebra of a step on JAX arrays, see `StepArrays`. No array is overwritten, and failures are NaN."""

    xp: ModuleType = jnp

    def root(self, matrix: Any) -> Any:
        return solve_triangular(jnp.linalg.cholesky(matrix), jnp.eye(len(matrix)), lower=True)

    def whitened(self, root: Any, rows: Any, transposed: bool = False) -> Any:
        return rows @ (root if transposed else root.T)

    def pulled_root(self, root: Any, half: Any) -> Any:
        lower = jnp.tril(half)
        return -0.5 * root.T @ (lower + lower.T - jnp.diag(jnp.diagonal(half))) @ root

    def with_diagonal(self, matrix: Any, added: Any) -> Any:
        return matrix + added * jnp.eye(len(matrix))

    def gaussians(self, precision: Any, location: Any, share: Any, roots: bool) -> StepGaussians:
        eye = jnp.eye(precision.shape[1])
        factor = jnp.linalg.cholesky(eye + share[:, None, None] * precision)
        found = solve_triangular(factor, jnp.broadcast_to(eye, factor.shape), lower=True)
        covariance = found.mT @ found
        half_log_dets = jnp.log(jnp.diagonal(factor, axis1=1, axis2=2)).sum(axis=1)
        return StepGaussians(self.means(found, location, share), covariance, half_log_dets, found)

    def means(self, roots: Any, location: Any, share: Any) -> Any:
        return share[:, None] * (roots.mT @ (roots @ location[:, :, None]))[:, :, 0]

    def log_normalisers(self, precision: Any, location: Any) -> Any:
        factor = jnp.linalg.cholesky(jnp.eye(precision.shape[1]) + precision)
        half = solve_triangular(factor, location[:, :, None], lower=True)[:, :, 0]
        return 0.5 * (half * half).sum(axis=1) - jnp.log(jnp.diagonal(factor, axis1=1, axis2=2)).sum(axis=1)

    def residual_covariances(self, covariance: Any, share: Any) -> Any:
        return ((jnp.eye(covariance.shape[1]) - covariance) / share[:, None, None]).sum(axis=0)

    def residual_tests(self, precision: Any, cross: Any, roots: Any, share: Any) -> Any:
        half = roots @ cross.mT
        return precision - (share[:, None, None] * (half.mT @ half)).sum(axis=0)

    def products(self, precision: Any, x: Any) -> Any:
        return precision @ x

    def solved(self, system: Any, right: Any, ridge: float) -> Any:
        added = ridge * jnp.maximum(system.trace(), 0.0) / len(system) + LEAST_RIDGE
        solution = cho_solve((jnp.linalg.cholesky(self.with_diagonal(system, added)), True), right)
        return jnp.where(jnp.isfinite(solution.sum()), solution, 0.0)

    def narrow(self, rows: Any) -> Any:
        return rows

    def residual_variances(self, variance: Any, w: Any) -> Any:
        return jnp.maximum(variance - (w * w).sum(axis=1), 0.0)

    def inner_products(self, w: Any, covariances: Any, functions: int) -> Any:
        return (covariances.reshape(len(w), functions, -1) * w[:, None, :]).sum(axis=2)

    def feature_slopes(
        self, w: Any, covariances: Any, of_variance: Any, of_rest: Any, inducing: int, slopes: Any
    ) -> Any:
        each = covariances.reshape(len(w), of_variance.shape[1], -1)
        found = slopes + 2.0 * (of_variance[:, :, None] * each).sum(axis=1)
        own = (np.arange(w.shape[1]) < inducing) * w
        return found - 2.0 * of_rest.sum(axis=1, keepdims=True) * own

    def with_sites(
        self,
        precision: Any,
        features: Sequence[tuple[Any, Sequence[int]]],
        weights: Any,
        beta: Any,
        added: bool = False,
    ) -> Any:
        sums = [(w.T * weights.T[np.array(functions), None, :]) @ w for w, functions in features]
        order = np.argsort([k for _, functions in features for k in functions])
        return (1.0 if added else 1.0 - beta) * precision + beta * jnp.concatenate(sums)[order]

    def with_tests(self, cross: Any, tests: Any, features: Sequence[Any], weights: Any, beta: Any) -> Any:
        new = jnp.stack([(tests * weights[:, k, None]).T @ w for k, w in enumerate(features)])
        return cross + beta * (new - cross)

    def at_sites(self, values: Any, functions: Any) -> Any:
        return jnp.take_along_axis(values, functions, axis=1)

    def by_function(self, values: Any, functions: Any, weights: Any, count: int) -> Any:
        acts = functions[:, :, None] == np.arange(count)
        return ((weights[:, None] * values)[:, :, None] * acts).sum(axis=1)

    def repeat[Changing](self, update: Callable[[Changing], Changing], start: Changing, times: int) -> Changing:
        return jax.lax.fori_loop(0, times, lambda _, values: update(values), start)

    def cavities(self, mean: Any, variance: Any, t: Any, nu: Any, prior_mean: Any, rest: Any) -> Any:
        keep = 1.0 - t * variance
        cavity_mean, cavity_variance = (mean - nu * variance) / keep, variance / keep
        return cavity_mean, cavity_variance, prior_mean + cavity_mean, rest + cavity_variance

    def matching_sites(self, in_mean: Any, in_variance: Any, mean: Any, variance: Any) -> Any:
        gamma = jnp.maximum(in_mean * in_mean - 2.0 * in_variance, 0.0)
        narrower = 1.0 - gamma * variance
        return gamma / narrower, (in_mean + gamma * mean) / narrower

    def bounded_sites(self, variance: Any, largest: float, t: Any, nu: Any) -> Any:
        bounded = jnp.minimum(t, largest / variance)
        return bounded, jnp.where(t > bounded, nu * bounded / t, nu)

    def site_log_normalisers(self, t: Any, nu: Any, mean: Any, variance: Any) -> Any:
        stretch = 1.0 + t * variance
        quadratic = nu * nu * variance + 2.0 * nu * mean - t * mean * mean
        return 0.5 * (quadratic / stretch - jnp.log(stretch)).sum(axis=1)


def traced(inputs: Sequence[Variable], outputs: Sequence[Variable], mode: Mode) -> Callable[..., Any]:
    """Return a JAX function that computes the outputs of a graph from arrays of its inputs."""
    graph = FunctionGraph(list(inputs), list(outputs), clone=True)
    mode.optimizer.rewrite(graph)
    return jax_funcify(graph)


class _TracedMoments:
    """Prior moments in JAX with their derivatives; see `InducingMoments`."""

    def __init__(self, found: Sequence[Any], pull: Callable[..., Any], groups: Sequence[Group], effects: int) -> None:
        self._pull, self._groups = pull, groups
        self.covariances, cross, variance, mean, coefficients = (list(each) for each in found)
        means = [jnp.stack([mean[k] for k in each.functions], axis=1) for each in groups]
        of_effects = [each.T if effects else None for each in coefficients]
        self._rows = [
            RowMoments(own.T, of, m, extra)
            for own, of, m, extra in zip(cross, variance, means, of_effects, strict=True)
        ]
        self._shapes = [each.shape for each in found]

    def rows(self, x: Any) -> list[RowMoments]:
        return self._rows

    def pulled(self, covariances: Sequence[Any], rows: Sequence[RowMoments]) -> tuple[Any, Any]:
        of_function = {
            k: each.mean[:, place]  # type: ignore[index]
            for each, group in zip(rows, self._groups, strict=True)
            for place, k in enumerate(group.functions)
        }
        effects = [jnp.zeros(self._shapes[4][1:]) if each.effects is None else each.effects.T for each in rows]
        bars = (
            jnp.stack(list(covariances)),
            jnp.stack([each.cross.T for each in rows]),
            jnp.stack([each.variance for each in rows]),
            jnp.stack([of_function[k] for k in range(len(of_function))]),
            jnp.stack(effects),
        )
        of_theta, of_z = self._pull(bars)
        return of_theta, of_z


def jax_step(problem: BatchProblem, state: State, optimiser: Optimiser, mode: Mode) -> Step:
    """Return a step of a fit by batches in JAX, see `array_step`. Arrays of the state stay on the device."""
    return _JaxStep(problem, state, optimiser, mode)


class _JaxStep:
    def __init__(self, problem: BatchProblem, state: State, optimiser: Optimiser, mode: Mode) -> None:
        self._problem, self._state = problem, state
        self._groups = problem.groups(state)
        self._sites = problem.rule.expresses()
        problem.hold(state)
        space = problem.space
        theta, inducing = state.theta.type("theta"), state.inducing.type("inducing")
        columns = len(problem.effect_rows.columns) if problem.effect_rows else len(state.units)
        x = pt.tensor("batch", dtype="float64", shape=(problem.batch_size, columns))
        z = inducing * state.units
        blocks = prior_blocks(space.classifier, problem.gps, space.data, z, x, self._groups, problem.effect_rows)
        parts = dict(zip(space.value_vars, state.value_expressions(space, theta), strict=True))
        # Express the moments and the log prior in the flat vector `theta`.
        found = graph_replace(list(blocks), parts, strict=False)
        prior = graph_replace([space.prior], parts, strict=False)
        self._moments, self._log_prior = traced([theta, inducing, x], found, mode), traced([theta], prior, mode)

        downhill = [each.type() for each in state.learned]
        updates = optimiser(downhill, state.learned) if state.learned else {}
        remembered = [shared for shared in updates if shared not in state.learned]
        state.hold(remembered)
        self._moved = [*state.learned, *remembered]
        stand = {shared: shared.type() for shared in self._moved}
        new = [updates[shared].astype(shared.type.dtype) for shared in self._moved]
        new = graph_replace(new, stand, strict=False) if new else []
        self._optimise = traced([*downhill, *stand.values()], new, mode) if new else lambda *given: ()
        self._held = None if problem.held is None else jnp.asarray(problem.held)
        self._compiled = jax.jit(self._traced, static_argnames="learns")

    def __call__(
        self,
        inputs: Array,
        labels: NDArray[np.int64],
        weights: Array,
        rows: NDArray[np.int64],
        beta: float,
        learns: bool,
    ) -> Taken:
        problem, state = self._problem, self._state
        functions = self._sites.functions(labels, problem.space.classifier.n_functions)
        moved = [each.get_value(borrow=True) for each in self._moved]
        value, floored, well, after, new, stored = self._compiled(
            state.theta.get_value(borrow=True), state.inducing.get_value(borrow=True), state.jitter.get_value(),
            state.remembered(), moved, self._held, inputs if self._held is None else rows, labels, functions, weights,
            state.stored_rows(rows), beta, learns=learns and bool(state.learned),
        )  # fmt: skip
        if not bool(well):
            return Taken(float(value), float(floored), False)
        with uninterrupted():
            state.remember(after)
            for variable, each in zip(self._moved, new, strict=True):
                variable.container.storage[0] = each
            if state.sites is not None:
                real = weights > 0.0
                state.sites.put(rows[real], RowSites(*map(np.asarray, stored)).of(real), functions[real])
        return Taken(float(value), float(floored), True)

    def _traced(
        self,
        theta: Any,
        inducing: Any,
        jitter: Any,
        remembered: Remembered,
        moved: Sequence[Any],
        held: Any,
        x: Any,
        labels: Any,
        functions: Any,
        weights: Any,
        stored: RowSites | None,
        beta: Any,
        learns: bool,
    ) -> tuple[Any, ...]:
        problem, state, arrays = self._problem, self._state, TracedArrays()
        if held is not None:
            x = held[x]
        found, pull = jax.vjp(lambda *of: tuple(self._moments(*of, x)), theta, inducing)
        effects = problem.effect_rows.n_effects if problem.effect_rows else 0
        moments = _TracedMoments(found, pull, self._groups, effects)
        whitening = StepWhitening(arrays, moments, self._groups, jitter)
        features = whitening.features(x)
        terms = traced_terms(problem.rule, labels)
        scale = weights * float(problem.batches)
        batch = StepBatch(arrays, features, terms, functions, scale, weights, problem.counts, stored)
        effect = problem.memory.take(remembered, batch, beta)
        log_prior, of_prior = jax.value_and_grad(lambda at: self._log_prior(at)[0].sum())(theta)
        value = effect.value + log_prior
        well = jnp.isfinite(value + effect.sums.sum())
        after, new = effect.remembered(), tuple(moved)
        if learns:
            of_theta, of_z = whitening.pulled(features, effect.slopes())
            uphill = [of_theta + of_prior] * bool(theta.size) + [of_z] * (state.inducing in state.learned)
            for each in uphill:
                well &= jnp.isfinite(each.sum())
            new = tuple(self._optimise(*(-each for each in uphill), *moved))
        kept = jax.tree.map(lambda one, other: jnp.where(well, one, other), (after, new), (remembered, tuple(moved)))
        floored = (weights @ effect.floored) / weights.sum()
        return value, floored, well, *kept, effect.stored
