"""A step of a fit batch by batch, with Adam for the hyperparameters.

The memory returns an objective. It depends on hyperparameters and inducing inputs only through the features of the
batch. Steps without learned parameters compute no gradient. Features are computed once for all functions with the same
covariance and inducing inputs. Adam is a loop in NumPy. Other optimisers of PyMC are graphs.
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
from pymc.variational.updates import adam
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.tensor.variable import TensorVariable
from scipy.linalg import LinAlgError

from pymc_gpep.array_types import Array
from pymc_gpep.graphs.interpreted import INTERPRETED
from pymc_gpep.latent.latent_prior import EffectRows
from pymc_gpep.log_posteriors.hyperparameters import Hyperparameters
from pymc_gpep.pytensor_settings import without_c_compiler
from pymc_gpep.solvers.step_algebra import Group, StepBlocks, StepWhitening, grouped
from pymc_gpep.solvers.step_arrays import StepArrays, adam_step
from pymc_gpep.streaming.memories import Memory, StepBatch
from pymc_gpep.streaming.rules import Rule
from pymc_gpep.streaming.state import State


@dataclass(frozen=True)
class FallingAdam:
    """Optimiser in the form of PyMC's optimisers: Adam with a rate that falls to 0 along half a cosine.

    Parameters
    ----------
    steps : int
        Number of steps until the rate is 0. Steps of the warm-up, with fixed hyperparameters, are not counted.
    learning_rate : float
        Largest rate. In a step, an inducing input moves by about this number of standard deviations of its column. The
        log of a hyperparameter moves by about this number.
    rise : int
        Number of first steps in which the rate rises linearly. A full rate could undo the result of the warm-up.

    Notes
    -----
    The number of steps taken is a variable of the updates. So a fit that continues from a checkpoint has the same
    rates. The rate falls as in Loshchilov and Hutter (2017, equation 5), without restarts.
    """

    steps: int
    learning_rate: float
    rise: int = 0

    def __call__(self, gradients: Sequence[Any], parameters: Sequence[Any]) -> dict[Any, Any]:
        """Return the updates of the parameters and of the optimiser's variables.

        The last variable is the number of steps taken.
        """
        taken = pytensor.shared(0.0, "steps taken")
        fallen = pt.clip((taken - self.rise) / (self.steps - self.rise), 0.0, 1.0)
        part = pt.minimum((taken + 1.0) / max(1, self.rise), 0.5 * (1.0 + pt.cos(np.pi * fallen)))
        moved = dict(adam(gradients, parameters, learning_rate=self.learning_rate * part))
        return moved | {taken: taken + 1.0}

    def rate(self, taken: float) -> float:
        """Return the rate of the step after `taken` steps."""
        fallen = min(max((taken - self.rise) / (self.steps - self.rise), 0.0), 1.0)
        part = min((taken + 1.0) / max(1, self.rise), 0.5 * (1.0 + np.cos(np.pi * fallen)))
        return float(self.learning_rate * part)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Return a context manager that delays an interrupt until the end of the block.

    It has an effect only in the main thread: Python interrupts only this thread.
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
    """Model, data and settings of a fit by batches."""

    space: Hyperparameters
    gps: Sequence[pm.gp.Latent] | None
    rule: Rule
    memory: Memory
    counts: Array
    """Number of sites on each function, (c,)."""
    batches: int
    """Number of batches in an epoch."""
    batch_size: int
    rows: int
    """Number of rows in total."""
    prior: StepBlocks
    """Prior moments of the inducing values and of the rows of a batch."""
    effect_rows: EffectRows | None = None
    """Effects that are added to the process. With effects, batches have rows of a table in place of inputs."""
    held: Array | None = None
    """Inputs of all rows, for steps in JAX; None if the batches contain the inputs."""

    def groups(self, state: State) -> list[Group]:
        """Return the groups of functions that have the same features."""
        return grouped(self.prior.covariance_of, state.inducing.type.shape[0])

    def hold(self, state: State) -> None:
        """Allocate the averages and stored sites of the memory in the state."""
        own = len(self.groups(state)) > 1
        differences = not self.space.classifier.likelihood_model.sees_common
        if self.memory.stores:
            c = self.space.classifier.n_functions
            per_row = self.rule.expresses().functions(np.zeros(1, np.int64), c).shape[1]
            state.hold_sites(self.rows, per_row, c if own else 1, differences)
        elif differences:
            state.hold_common(own)


class Taken(NamedTuple):
    """Results of a step: log posterior, share of points with a limited site, and success."""

    log_posterior: float
    floored: float
    went_well: bool


type Step = Callable[[Array, NDArray[np.int64], Array, NDArray[np.int64], float, bool], Taken]


_DEFAULTS = {"learning_rate": 0.001, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}  # Defaults of `pm.adam`.


class ArrayOptimiser(Protocol):
    """Optimiser that changes learned parameters in place, given derivatives of the objective."""

    def __call__(self, slopes: Sequence[Array]) -> None:
        """Take a step. `slopes` are derivatives of the objective in each variable of `State.learned`."""


def array_optimiser(optimiser: Callable[..., Any], state: State) -> ArrayOptimiser:
    """Return the optimiser of the learned parameters of a state. Its variables become part of the state.

    Parameters
    ----------
    optimiser : function of (gradients, parameters)
        An optimiser of PyMC.
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
    """Adam (Kingma and Ba 2015), with the variables of PyMC's `adam`: moments of each parameter, number of steps."""

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


_MANY = 100  # Smallest number of inducing inputs for which products in single precision save time.
_LEFT_OUT = Taken(np.nan, np.nan, False)


def array_step(problem: BatchProblem, state: State, optimiser: Optimiser, single: bool | None = None) -> Step:
    """Return a step in NumPy: a function of inputs, labels, weights, rows, step size β, and whether to optimise.

    The function changes the state. It returns the log posterior, the share of points with a limited site, and success.
    If a number is not finite, the state does not change.

    If `single` is True, matrix products are in single precision where the result is accurate. By default it is True
    with many inducing inputs, if the memory allows it. With effects it is False: their coefficients may cancel.
    """
    many = problem.memory.single and state.inducing.type.shape[1] >= _MANY and problem.effect_rows is None
    narrow = many if single is None else single
    return _ArrayStep(problem, state, array_optimiser(optimiser, state), StepArrays(narrow))


class _ArrayStep:
    def __init__(self, problem: BatchProblem, state: State, optimiser: ArrayOptimiser, arrays: StepArrays) -> None:
        self._problem, self._state, self._optimiser, self.arrays = problem, state, optimiser, arrays
        self._groups = problem.groups(state)
        self._sites, self._kernel = problem.rule.expresses(), problem.rule.kernel()
        problem.hold(state)
        self._prior_there: tuple[Array, tuple[float, Array]] | None = None
        self._known: tuple[Array, Array, float, StepWhitening] | None = None

    def __call__(self, *given: Any) -> Taken:
        with np.errstate(all="ignore"):
            try:
                return self._step(*given)
            except LinAlgError:
                return _LEFT_OUT

    def _step(
        self,
        inputs: Array,
        labels: NDArray[np.int64],
        weights: Array,
        rows: NDArray[np.int64],
        beta: float,
        learns: bool,
    ) -> Taken:
        problem, state = self._problem, self._state
        whitening = self._whitening()
        features = whitening.features(inputs)
        functions = self._sites.functions(labels, problem.space.classifier.n_functions)
        batch = StepBatch(
            self.arrays, features, self._kernel.of(labels), functions, weights * float(problem.batches), weights,
            problem.counts, state.stored_rows(rows),
        )  # fmt: skip
        effect = problem.memory.take(state.remembered(), batch, beta)
        theta = state.theta.get_value(borrow=True)
        log_prior, of_prior = self._log_prior(theta)
        value = float(effect.value) + log_prior
        slopes: list[Array] = []
        learns = learns and bool(state.learned)
        if learns:
            of_theta, of_z = whitening.pulled(features, effect.slopes())
            slopes = [of_theta + of_prior] * bool(theta.size)
            slopes += [of_z * state.units] * (state.inducing in state.learned)
        if not (np.isfinite(value + effect.sums.sum()) and all(np.isfinite(each.sum()) for each in slopes)):
            return _LEFT_OUT
        with uninterrupted():
            state.remember(effect.remembered())
            if state.sites is not None and effect.stored is not None:
                real = weights > 0.0
                state.sites.put(rows[real], effect.stored.of(real), functions[real])
            if learns:
                self._optimiser(slopes)
        return Taken(value, float(weights @ effect.floored) / float(weights.sum()), True)

    def _log_prior(self, theta: Array) -> tuple[float, Array]:
        """Return the log prior of hyperparameters and its derivatives. They are cached until `theta` changes."""
        known = self._prior_there
        if known is None or not np.array_equal(known[0], theta):
            known = theta.copy(), self._problem.space.log_prior_and_slope(theta)
            self._prior_there = known
        return known[1]

    def _whitening(self) -> StepWhitening:
        """Return the whitening for the state's hyperparameters and inducing inputs. It is cached until these change."""
        state, arrays = self._state, self.arrays
        theta, inducing = state.theta.get_value(borrow=True), state.inducing.get_value(borrow=True)
        jitter = float(state.jitter.get_value())
        known = self._known
        if known is None or known[2] != jitter or not all(map(np.array_equal, known[:2], (theta, inducing))):
            moments = self._problem.prior.at(theta, inducing * state.units, arrays.single)
            known = theta.copy(), inducing.copy(), jitter, StepWhitening(arrays, moments, self._groups, jitter)
            self._known = known
        return known[3]
