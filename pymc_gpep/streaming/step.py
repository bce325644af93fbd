"""A step of a fit batch by batch, as one graph or on arrays, with Adam for the hyperparameters.

The gradient of the objective in hyperparameters and inducing inputs is that of a number that a memory returns. In this
number the features of the batch depend on them, and all else is constant. Steps that learn nothing have no gradient.

`make_step` compiles the graph. `array_step` does the same work on arrays in a fraction of the time, by
`pymc_gpep.solvers.step_algebra`. Features are computed once for functions that share covariance and inducing inputs. On
arrays Adam is one loop, and any other optimiser of PyMC is its own graph.
"""

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any, NamedTuple, Protocol

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.pytensorf import compile as compile_graph
from pymc.variational.updates import adam
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.replace import graph_replace
from pytensor.tensor.variable import TensorVariable
from scipy.linalg import LinAlgError

from pymc_gpep.approximations.site_rules import ScalarSites
from pymc_gpep.array_types import Array
from pymc_gpep.graphs.interpreted import INTERPRETED, refuse_draws, without_c_compiler
from pymc_gpep.latent.latent_prior import RowsBeside
from pymc_gpep.log_posteriors.hyperparameters import Hyperparameters
from pymc_gpep.solvers.batch_sites import ArrayMarginals, ArrayMemory, PointKernel, at_sites, summed_by_function
from pymc_gpep.solvers.common_shift import CommonSites, OwnFeatures, SameFeatures
from pymc_gpep.solvers.step_algebra import StepPosterior, StepWhitening, adam_step, average_sites, log_normalisers
from pymc_gpep.solvers.step_blocks import Group, StepBlocks, grouped
from pymc_gpep.streaming.features import batch_features, prior_blocks
from pymc_gpep.streaming.memories import BatchGraph, Effect, Memory
from pymc_gpep.streaming.rules import Rule
from pymc_gpep.streaming.state import State


@dataclass(frozen=True)
class FallingAdam:
    """Adam whose rate falls along half a cosine to 0, for batches: an optimiser as PyMC has them.

    Parameters
    ----------
    steps : int
        Number of steps after which the rate is 0, of those in which hyperparameters move: without the first epochs of
        the `warmup`.
    learning_rate : float
        The largest rate. Inducing inputs move by about so many standard deviations of their column a step, the
        logarithms of hyperparameters by about so much.
    rise : int
        Number of steps at the beginning in which the rate goes up in a line. The full rate might undo there what the
        warm-up came to.

    Notes
    -----
    The number of steps taken is one of the updates. A fit that goes on from a checkpoint thus has the rate that it left
    off with. The fall is that of Loshchilov and Hutter (2017, equation 5), without restarts.
    """

    steps: int
    learning_rate: float
    rise: int = 0

    def __call__(self, gradients: Sequence[Any], parameters: Sequence[Any]) -> dict[Any, Any]:
        """Return updates of parameters and of what is remembered, which ends with the number of steps taken."""
        taken = pytensor.shared(0.0, "steps taken")
        fallen = pt.clip((taken - self.rise) / (self.steps - self.rise), 0.0, 1.0)
        part = pt.minimum((taken + 1.0) / max(1, self.rise), 0.5 * (1.0 + pt.cos(np.pi * fallen)))
        moved = dict(adam(gradients, parameters, learning_rate=self.learning_rate * part))
        return moved | {taken: taken + 1.0}

    def rate(self, taken: float) -> float:
        """Rate of the step that comes after so many."""
        fallen = min(max((taken - self.rise) / (self.steps - self.rise), 0.0), 1.0)
        part = min((taken + 1.0) / max(1, self.rise), 0.5 * (1.0 + np.cos(np.pi * fallen)))
        return float(self.learning_rate * part)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold an interrupt back, and hand it to whoever handles it at the end of the block.

    Other threads are not interrupted, and may not set handlers.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    came: list[tuple[int, Any]] = []
    signal.signal(signal.SIGINT, lambda *call: came.append(call))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            handler(*came[0])


type Optimiser = Callable[[list[TensorVariable], list[SharedVariable]], dict[SharedVariable, TensorVariable]]


class BatchProblem(NamedTuple):
    """What is fitted, and how."""

    space: Hyperparameters
    gps: Sequence[pm.gp.Latent] | None
    rule: Rule
    memory: Memory
    counts: Array
    """How many sites act on each function, (c,)."""
    batches: int
    """In an epoch."""
    batch_size: int
    rows: int
    """In all."""
    prior: StepBlocks | None = None
    """Prior moments on arrays."""
    beside: RowsBeside | None = None
    """Effects beside the process. Rows are then those of a table."""
    held: Array | None = None
    """Inputs of all rows, which steps then take from there instead of from their batches."""


class StepGraph(NamedTuple):
    """Consequences of a batch, before anything is changed."""

    inputs: TensorVariable
    labels: TensorVariable
    weights: TensorVariable
    beta: TensorVariable
    """Step size of q."""
    log_posterior: TensorVariable
    """Estimate of the objective over all rows and the log prior of hyperparameters."""
    gradient: list[TensorVariable]
    """Gradient of `log_posterior` in the flat hyperparameters and, where they are learned, the inducing inputs."""
    floored: TensorVariable
    """Share of points with a site that was held back."""
    effect: Effect
    """Effect of the batch on the variables that are remembered."""


class Taken(NamedTuple):
    """Results of a step."""

    log_posterior: float
    floored: float
    went_well: bool


type Step = Callable[[Array, NDArray[np.int64], Array, NDArray[np.int64], float, bool], Taken]


def step_graph(problem: BatchProblem, state: State) -> StepGraph:
    """The graph of a batch in terms of the state."""
    space, c = problem.space, problem.space.classifier.n_functions
    # Every shape is known: without that most of a graph would be about shapes.
    b, columns = problem.batch_size, len(problem.beside.columns) if problem.beside else len(state.units)
    x = pt.tensor("batch", dtype="float64", shape=(b, columns))
    labels = pt.tensor("labels", dtype="int64", shape=(b,))
    weights = pt.tensor("weights", dtype="float64", shape=(b,))
    beta = pt.dscalar("beta")
    inducing = state.inducing * state.units
    blocks = prior_blocks(space.classifier, problem.gps, space.data, inducing, x, problem.beside)
    values = dict(zip(space.value_vars, state.value_expressions(space), strict=True))
    # One after the other: they are tuples of their own kinds.
    features = batch_features(type(blocks)(*graph_replace(list(blocks), values, strict=False)), state.jitter)
    log_prior = graph_replace([space.prior], values, strict=False)[0]

    counts = pt.constant(problem.counts)
    functions = problem.rule.functions(labels, c)
    batch = BatchGraph(
        features,
        labels,
        weights,
        pt.eq(functions[:, :, None], np.arange(c)[None, None, :]),
        problem.batches,
        problem.rows,
        not space.classifier.likelihood_model.sees_common,
    )
    effect = problem.memory.take(problem.rule, state, batch, counts, beta)
    gradient = [
        of_data + of_prior
        for of_data, of_prior in zip(
            pytensor.grad(
                effect.surrogate, state.learned, consider_constant=effect.constants, disconnected_inputs="ignore"
            ),
            pytensor.grad(log_prior, state.learned, disconnected_inputs="ignore"),
            strict=True,
        )
    ]
    floored = (weights * effect.floored).sum() / weights.sum()
    return StepGraph(x, labels, weights, beta, effect.value + log_prior, gradient, floored, effect)


def make_step(problem: BatchProblem, state: State, optimiser: Optimiser, compile_kwargs: dict[str, Any]) -> Step:
    """Compile a step: a function of a batch (inputs, labels, weights, rows), β, and whether the optimiser moves.

    The function changes the state. It returns the log posterior, the share of floored points and whether all went well.
    Where a number is not finite the state stays as it is.
    """
    graph = step_graph(problem, state)
    learns = pt.scalar("learns", dtype="bool")
    downhill = [-slope for slope in graph.gradient]
    of_optimiser = optimiser(downhill, state.learned) if state.learned else {}
    state.hold([shared for shared in of_optimiser if shared not in state.learned])
    effect = graph.effect
    well = pt.isfinite(graph.log_posterior)
    for each in (*(new for _, new in effect.changes), *downhill):
        well = pt.and_(well, pt.isfinite(each.sum()))
    moves = pt.and_(well, learns)
    updates = {shared: pt.switch(moves, new, shared) for shared, new in of_optimiser.items()}
    updates |= {shared: pt.switch(well, new, shared) for shared, new in effect.changes}
    options = {"on_unused_input": "ignore"} | compile_kwargs  # nothing may be there to learn
    held, places = problem.held, pt.lvector("rows")
    of_batch, given = graph.inputs, {}
    if held is not None:
        of_batch, given = places, {graph.inputs: _kept(held, compile_kwargs)[places]}
    compiled = compile_graph(
        [of_batch, graph.labels, graph.weights, *effect.former, graph.beta, learns],
        [graph.log_posterior, graph.floored, well, *effect.latter],
        updates={shared: new.astype(shared.type.dtype) for shared, new in updates.items()},
        givens=given,
        **options,
    )
    refuse_draws(compiled)

    def step(
        inputs: Array, labels: NDArray[np.int64], weights: Array, rows: NDArray[np.int64], beta: float, learns: bool
    ) -> Taken:
        sites = state.sites
        former = sites.of(rows) if sites else ()
        try:
            first = inputs if held is None else rows
            value, floored, went_well, *latter = compiled(first, labels, weights, *former, beta, learns)
            if sites and went_well:
                real = weights > 0.0
                sites.put(rows[real], *(each[real] for each in latter))
        except KeyboardInterrupt:
            state.settle()  # q may have sites that are not kept yet
            raise
        return Taken(float(value), float(floored), bool(went_well))

    return step


def _kept(values: Array, compile_kwargs: dict[str, Any]) -> SharedVariable:
    """A variable with these values, where the backend computes: a function that it compiled has put them there."""
    variable = pytensor.shared(np.empty((0, values.shape[1])), "inputs of all rows", shape=(None, values.shape[1]))
    whole = pt.matrix("inputs", dtype="float64")
    compile_graph([whole], [], updates={variable: pt.specify_shape(whole, (None, values.shape[1]))}, **compile_kwargs)(
        values
    )
    return variable


_DEFAULTS = {"learning_rate": 0.001, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}  # of PyMC


class ArrayOptimiser(Protocol):
    """Moves what is learned along derivatives of what is to be raised."""

    def __call__(self, slopes: Sequence[Array]) -> None:
        """Take a step, in place; one array of derivatives for each of `State.learned`."""


def array_optimiser(optimiser: Callable[..., Any], state: State) -> ArrayOptimiser:
    """The optimiser for what a state learns; what it remembers becomes part of the state.

    Parameters
    ----------
    optimiser : function of (gradients, parameters)
        As PyMC has them.
    state : State
    """
    if not state.learned:
        return lambda slopes: None
    downhill = [each.type() for each in state.learned]
    updates = optimiser(downhill, state.learned)
    remembered = [shared for shared in updates if shared not in state.learned]
    state.hold(remembered)
    if isinstance(optimiser, FallingAdam):
        *of_adam, taken = remembered
        return _Adam(state.learned, of_adam, _DEFAULTS, taken, optimiser.rate)
    if isinstance(optimiser, partial) and optimiser.func is adam:
        settings = _DEFAULTS | optimiser.keywords
        if not optimiser.args and all(isinstance(settings[name], Real) for name in _DEFAULTS):
            return _Adam(state.learned, remembered, settings)
    with without_c_compiler():
        function = pytensor.function(
            downhill, [], updates=[(old, new.astype(old.type.dtype)) for old, new in updates.items()], mode=INTERPRETED
        )

    def by_graph(slopes: Sequence[Array]) -> None:
        function(*(-each for each in slopes))

    return by_graph


class _Adam:
    """Kingma and Ba (2015), with what is remembered as PyMC's `adam` has it: both moments of each, then the steps."""

    def __init__(
        self,
        learned: Sequence[SharedVariable],
        remembered: Sequence[SharedVariable],
        settings: dict[str, Any],
        taken: SharedVariable | None = None,
        rate: Callable[[float], float] | None = None,
    ) -> None:
        *moments, self._steps = remembered
        self._learned = list(zip(learned, moments[::2], moments[1::2], strict=True))
        self._first, self._second, self._least = (float(settings[name]) for name in ("beta1", "beta2", "epsilon"))
        self._rate, self._taken, self._falls = float(settings["learning_rate"]), taken, rate

    def __call__(self, slopes: Sequence[Array]) -> None:
        rate, steps = self._rate, float(self._steps.get_value()) + 1.0
        if self._taken is not None and self._falls is not None:
            done = float(self._taken.get_value())
            rate = self._falls(done)
            self._taken.set_value(np.asarray(done + 1.0, self._taken.type.dtype))
        self._steps.set_value(np.asarray(steps, self._steps.type.dtype))
        rate *= np.sqrt(1.0 - self._second**steps) / (1.0 - self._first**steps)
        for (variable, first, second), slope in zip(self._learned, slopes, strict=True):
            values, m, v = (each.get_value(borrow=True).reshape(-1) for each in (variable, first, second))
            adam_step(values, np.ravel(slope), m, v, rate, self._first, self._second, self._least)


_MANY = 100  # inducing inputs; with fewer of them products take little of the time
_LEFT_OUT = Taken(np.nan, np.nan, False)


def beats_graph(problem: BatchProblem, state: State) -> bool:
    """Whether a step on arrays, if there is one, takes less time than a graph of the step that is interpreted.

    It does not where graphs have the moments of several groups, which they find one after the other and twice.
    """
    prior = problem.prior
    return prior is None or prior.written or len(grouped(prior.covariance_of, state.inducing.type.shape[0])) == 1


def array_step(problem: BatchProblem, state: State, optimiser: Optimiser, single: bool | None = None) -> Step | None:
    """A step as `make_step` makes it; None where a loop lacks.

    Where `single`, products of matrices have 32 bits a number as far as that does no harm. If `single` is not
    given, they have with many inducing inputs, except for a bound. Effects beside the process are left out of that,
    since their coefficients may be large and cancel.
    """
    prior = problem.prior
    memory, kernel = problem.memory.in_arrays(), problem.rule.kernel()
    if prior is None or memory is None or kernel is None:
        return None
    groups = grouped(prior.covariance_of, state.inducing.type.shape[0])
    many = memory.single and state.inducing.type.shape[1] >= _MANY and problem.beside is None
    narrow = many if single is None else single
    return _ArrayStep(problem, state, memory, kernel, prior, groups, array_optimiser(optimiser, state), narrow)


class _ArrayStep:
    def __init__(
        self,
        problem: BatchProblem,
        state: State,
        memory: ArrayMemory,
        kernel: PointKernel,
        prior: StepBlocks,
        groups: list[Group],
        optimiser: Callable[[list[Array]], None],
        single: bool,
    ) -> None:
        self._single = single
        self._problem, self._state = problem, state
        self._memory, self._kernel, self._optimiser = memory, kernel, optimiser
        self._prior, self._groups = prior, groups
        self._prior_there: tuple[Array, tuple[float, Array]] | None = None
        sites = problem.rule.expresses()
        assert isinstance(sites, ScalarSites)
        self._functions = sites
        differences = not problem.space.classifier.likelihood_model.sees_common
        self._remembered = state.hold_common(own=len(groups) > 1).variables if differences else []
        self._share = memory.share(problem.counts)
        self._known: tuple[Array, Array, float, StepWhitening] | None = None

    def __call__(
        self,
        inputs: Array,
        labels: NDArray[np.int64],
        weights: Array,
        rows: NDArray[np.int64],
        beta: float,
        learns: bool,
    ) -> Taken:
        with np.errstate(all="ignore"):
            try:
                return self._step(inputs, labels, weights, beta, learns and bool(self._state.learned))
            except LinAlgError:
                return _LEFT_OUT

    def _step(self, inputs: Array, labels: NDArray[np.int64], weights: Array, beta: float, learns: bool) -> Taken:
        problem, state = self._problem, self._state
        precision, location = (each.get_value(borrow=True) for each in (state.precision, state.location))
        whitening = self._whitening()
        features = whitening.features(inputs)
        q = StepPosterior(precision, location, self._share, self._single, factors=len(features) > 1)
        common = self._common_sites()
        shifted = None if common is None else common.shift(q)
        covered = q.covered(features)

        functions = self._functions.functions(labels, problem.space.classifier.n_functions)
        prior_mean, rest = np.zeros(covered.mean.shape), np.empty(covered.mean.shape)
        for each in features:
            taken = each.group.taken
            rest[:, taken] = each.rest[:, None]
            if each.moments.mean is not None:
                prior_mean[:, taken] = each.moments.mean
        seen = (at_sites(each, functions) for each in (covered.mean, covered.variance, prior_mean, rest))
        at = ArrayMarginals(*seen)
        scale = weights * float(problem.batches)

        def summed(values: Array) -> Array:
            return summed_by_function(values, functions, scale, len(location))

        sites = self._memory.sites(self._kernel.of(labels), at)
        sites = self._memory.bounded(sites, at, functions, summed, beta)
        theta = state.theta.get_value(borrow=True)
        log_prior, of_prior = self._log_prior(theta)

        def whole() -> Array:
            if self._single:
                return q.whole_log_normalisers()
            return log_normalisers(precision, q.location)

        value = float(scale @ sites.value) + self._memory.constant(q, whole, problem.counts) + log_prior

        t, nu = summed(sites.precision), summed(sites.location)
        slopes: list[Array] = []
        if learns:
            of_mean, of_variance, of_rest = (summed(each) for each in sites[3:6])
            of_features = q.slopes(features, covered, of_mean, of_variance, of_rest)
            of_theta, of_z = whitening.pulled(features, of_features)
            slopes = [of_theta + of_prior] * bool(theta.size)
            slopes += [of_z * state.units] * (state.inducing in state.learned)
        if not (np.isfinite(value + t.sum() + nu.sum()) and all(np.isfinite(each.sum()) for each in slopes)):
            return _LEFT_OUT
        with uninterrupted():
            average_sites(precision, features, t, beta, self._single)
            for each in features:
                taken = each.group.taken
                location[taken] = q.location[taken] + beta * (nu[:, taken].T @ each.w - q.location[taken])
            if common is not None and shifted is not None:
                common.average(shifted, features, t, covered.mean, beta)
            if learns:
                self._optimiser(slopes)
        return Taken(value, float(weights @ sites.floored) / float(weights.sum()), True)

    def _common_sites(self) -> CommonSites | None:
        """Memory of the function common to all, as the state has it at present; None for likelihoods that see it."""
        remembered = [each.get_value(borrow=True) for each in self._remembered]
        if not remembered:
            return None
        return OwnFeatures(*remembered) if len(remembered) > 1 else SameFeatures(*remembered)

    def _log_prior(self, theta: Array) -> tuple[float, Array]:
        """Log prior of hyperparameters and its derivatives, which may be as they were."""
        known = self._prior_there
        if known is None or not np.array_equal(known[0], theta):
            known = theta.copy(), self._problem.space.log_prior_and_slope(theta)
            self._prior_there = known
        return known[1]

    def _whitening(self) -> StepWhitening:
        """The whitening at hyperparameters and inducing inputs as they are, which may be as they were."""
        state = self._state
        theta, inducing = state.theta.get_value(borrow=True), state.inducing.get_value(borrow=True)
        jitter = float(state.jitter.get_value())
        known = self._known
        if known is None or known[2] != jitter or not all(map(np.array_equal, known[:2], (theta, inducing))):
            moments = self._prior.at(theta, inducing * state.units, self._single)
            known = theta.copy(), inducing.copy(), jitter, StepWhitening(moments, self._groups, jitter)
            self._known = known
        return known[3]
