"""PyTensor operation that returns the evidence of an approximation, with its derivatives.

Samplers evaluate the same graph at many points, and their only input is the point. Therefore the operation stores
solutions. A solve that starts from a stored solution is shorter, and differs within the tolerance. Each process and
thread stores separate solutions, so chains do not share them.

Code that PyTensor compiles with numba calls a solver as a C function (`external`). A symbol identifies the function,
since its address differs between processes. The C function acquires the interpreter's lock and runs the solver in
Python.
"""

import _thread
import ctypes
import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import llvmlite.binding
import numpy as np
import pytensor.tensor as pt
from numba.core import types
from numpy.typing import NDArray
from pytensor.gradient import DisconnectedType, disconnected_type, grad_not_implemented
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_default_op_cache_key

from pymc_gpep.approximations.approximator import Approximator
from pymc_gpep.approximations.solution import Neighbours
from pymc_gpep.array_types import Array, Observed
from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.gaussians.prior_form import PriorForm
from pymc_gpep.kernels.compile import source_key
from pymc_gpep.kernels.status import CONVERGED, OUT_OF_MEMORY
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.solvers.problem import NO_PARAMETERS, Outcome

REFUSED = -1
"""Status that replaces a ValueError of a solver, since compiled code cannot raise exceptions."""

_int = types.int64
_ints = types.CPointer(types.int64)
_double = types.float64
_doubles = types.CPointer(_double)


def signature(observed_dtype: str) -> Any:
    """Return the numba signature of the function that runs a solver, for observations of this type.

    Arrays are C-ordered. The solver writes its results into the start and into the last five arrays. Without
    convergence the evidence and its derivatives are NaN.
    """
    observed = _ints if observed_dtype == "int64" else _doubles
    return types.void(
        _int, _int, _int, _int, _int,  # Number of prior matrices (1 or c), c, n, columns of a matrix, p.
        _doubles, _doubles, observed, _doubles,  # Array of the prior, prior mean, observations, parameters.
        _doubles, _int,  # Start, which is overwritten, and its size.
        _double,  # Factor on the tolerance.
        _doubles, _doubles, _doubles, _doubles, _ints,  # Evidence, its derivatives; status and iterations.
    )  # fmt: skip


_C_TYPES: dict[Any, Any] = {
    _int: ctypes.c_int64,
    _ints: ctypes.POINTER(ctypes.c_int64),
    _double: ctypes.c_double,
    _doubles: ctypes.POINTER(ctypes.c_double),
}

_MOMENT = 0.01  # Seconds until an interrupt is raised again.

_made: dict[str, Any] = {}
"""C functions by symbol. They are stored here, since compiled code calls them as long as the process runs."""


def external(name: str, solve: Callable[..., Outcome], observed_dtype: str = "int64", observed_axes: int = 1) -> Any:
    """Return a function of compiled code that runs a solver.

    It runs `solve(k, mean, labels, start, looseness, parameters, gradient=True)`.

    Parameters
    ----------
    name : str
        Unique name of this solver and its options, equal in all processes.
    solve : callable
    observed_dtype : {"int64", "float64"}
        Type of the observations.
    observed_axes : int
        Number of axes of the observations: 1 for (n,), 2 for (n, c).
    """
    kind = signature(observed_dtype)
    symbol = f"pymc_gpep_{hashlib.sha256(name.encode()).hexdigest()[:16]}"
    if symbol not in _made:
        _made[symbol] = ctypes.CFUNCTYPE(None, *(_C_TYPES[each] for each in kind.args))(
            _on_pointers(solve, observed_axes)
        )
        llvmlite.binding.add_symbol(symbol, ctypes.cast(_made[symbol], ctypes.c_void_p).value)
    return types.ExternalFunction(symbol, kind)


def _on_pointers(solve: Callable[..., Outcome], observed_axes: int) -> Callable[..., None]:
    def call(
        matrices: int, c: int, n: int, columns: int, p: int, k_: Any, mean_: Any, labels_: Any, parameters_: Any,
        start_: Any, size: int, looseness: float,
        evidence_: Any, gradient_: Any, gradient_mean_: Any, gradient_parameters_: Any, outcome_: Any,
    ) -> None:  # fmt: skip
        array = np.ctypeslib.as_array
        evidence, outcome, start = array(evidence_, (1,)), array(outcome_, (2,)), array(start_, (size,))
        gradient, gradient_mean = array(gradient_, (matrices, n, columns)), array(gradient_mean_, (c, n))
        parameters, gradient_parameters = (
            array(values, (p, n)) if p else np.empty((0, n)) for values in (parameters_, gradient_parameters_)
        )
        evidence[:] = gradient[:] = gradient_mean[:] = gradient_parameters[:] = np.nan
        outcome[:] = OUT_OF_MEMORY, 0
        try:
            k, mean = array(k_, (matrices, n, columns)), array(mean_, (c, n))
            labels = array(labels_, (n, c)[:observed_axes])
            found = solve(k, mean, labels, start, looseness, parameters, gradient=True)
        except KeyboardInterrupt:
            # Compiled code cannot raise exceptions. Interrupt again after `_MOMENT`, when this code has returned.
            threading.Timer(_MOMENT, _thread.interrupt_main).start()
            return
        except ValueError:
            outcome[:] = REFUSED, 0
            return
        outcome[:] = found.status, found.iterations
        start[:] = found.start
        if found.status == CONVERGED:
            evidence[:], gradient[:], gradient_mean[:] = found.evidence, found.gradient, found.gradient_mean
            if p:
                gradient_parameters[:] = found.gradient_parameters

    return call


_PROBLEMS = 16  # Largest number of problems in memory.
_SOLVES = 48  # Largest number of stored solves of each problem.
_POINTS = 12  # Number of points whose prior moments are the coordinates of a solve.
_CORRELATION = 3.0  # Weight of correlations relative to logarithms of variances.


class RecentSolves:
    """Starts of the last solves of each problem, and coordinates of their prior moments (`place_of`)."""

    def __init__(self) -> None:
        self._problems: OrderedDict[Hashable, Neighbours] = OrderedDict()
        self._lock = threading.Lock()

    def near(self, problem: Hashable) -> Neighbours | None:
        """Return the solves of a problem by this thread; None before the first solve."""
        with self._lock:
            return self._problems.get(self._key(problem))

    def add(self, problem: Hashable, place: Array, start: Array) -> None:
        """Store a solve. If there are too many problems, drop the problem whose last use is the oldest."""
        key = self._key(problem)
        with self._lock:
            near = self._problems.pop(key, Neighbours((), ()))
            self._problems[key] = near.joined(place, start, _SOLVES)
            while len(self._problems) > _PROBLEMS:
                self._problems.popitem(last=False)

    def _key(self, problem: Hashable) -> Hashable:
        return os.getpid(), threading.get_ident(), problem


def place_of(prior: PriorForm, mean: Array) -> Array:
    """Return coordinates (d,) that describe prior moments by the moments of a few points.

    The coordinates are log variances, weighted correlations, and means in standard deviations. If a hyperparameter
    grows by a factor e, the coordinates move by a distance of about 1.
    """
    chosen = np.unique(np.linspace(0, mean.shape[1] - 1, _POINTS).round().astype(int))
    matrices = prior.among(chosen, chosen)
    variances = np.diagonal(matrices, axis1=1, axis2=2)
    scales = np.sqrt(variances)
    upper = np.triu_indices(len(chosen), 1)
    parts = (
        np.log(variances),
        _CORRELATION * (matrices / (scales[:, :, None] * scales[:, None]))[:, upper[0], upper[1]],
        mean[:, chosen] / scales,
    )
    return np.concatenate([part.ravel() / np.sqrt(max(part.shape[1], 1)) for part in parts])


_recent = RecentSolves()

_UNUSABLE = (
    "k must be one matrix or one for each latent function, labels must be valid, and start must have the "
    "length that the approximation needs."
)


_DIFFERENTIABLE = True, True, False, False, False, True
"""True for each input with respect to which the evidence has derivatives."""


def _with_axes(name: str, value: Any, ndim: int, dtype: str) -> Any:
    tensor = pt.as_tensor_variable(value)
    if tensor.type.ndim != ndim:
        raise TypeError(f"{name} must have {ndim} axes, but has {tensor.type.ndim}.")
    return tensor.astype(dtype)


class Evidence(Op):
    """log Z(K, m) of Gaussian process priors and a likelihood, computed by an approximation.

    Inputs are the prior covariance (1 or c, n, n), or the array of another `form` of the prior, the prior mean (c, n)
    and labels. Labels are (n,), or (n, c) if each class has a number. Further inputs are a start (a vector), a factor
    on the approximation's tolerance, and parameters of the likelihood (p, n). Derivatives with respect to start and
    factor are 0, since the fixed point does not depend on them. Without a start the solve is cold, and the mean must
    have a static shape. With a factor other than 1, as during a search for a maximum, the prior covariance is not
    checked, since the check takes a factorisation.

    Outputs are the evidence, its derivatives in K and mean, the start for a solve nearby, status, iterations, and
    derivatives in the parameters. Unless the solver converged, evidence and derivatives are NaN, and the status is the
    reason (`pymc_gpep.kernels.status`). A sampler counts this as a divergence.

    Without `slopes`, derivatives with respect to parameters are NaN, for graphs whose parameters are constants. If the
    operation stores solves, it starts from close solves of the same problem. It starts from the input if close solves
    are absent, or if the solve from them fails. See `pymc_gpep.evidence.evidence`.

    At a fixed point the derivatives are closed expressions of the sites. So the pullback multiplies outputs that were
    already computed. Second derivatives are not defined.
    """

    __props__ = ("approximator", "likelihood", "remembers", "form", "slopes")
    default_output = 0

    def __init__(
        self,
        approximator: Approximator,
        likelihood: Likelihood | None = None,
        remembers: bool = False,
        form: type[PriorForm] = DensePrior,
        slopes: bool = True,
    ) -> None:
        self.slopes = slopes
        self.approximator = approximator
        self.likelihood = likelihood or approximator.first_likelihood()
        self.remembers = remembers
        self.form = form

    @property
    def stands_for(self) -> tuple[Any, ...]:
        """Return the attributes on which the graph around the operation depends. It does not depend on the method."""
        return "evidence", self.remembers, getattr(self.form, "kind", self.form)

    def make_node(
        self, k: Any, mean: Any, labels: Any, start: Any = None, looseness: Any = 1.0, parameters: Any = None
    ) -> Apply:
        """Apply the operation. Shapes that are not static are checked at evaluation.

        Raises
        ------
        TypeError
            If an input has another number of axes.
        """
        mean = _with_axes("mean", mean, 2, "float64")
        c, n = mean.type.shape
        size = None if c is None or n is None else self.approximator.cold(c, n, self.form).size
        if start is None:
            if size is None:
                raise ValueError("mean has no static shape, so start is needed: start=np.zeros(start_size).")
            start = np.zeros(size)
        n = mean.shape[1] if n is None else n
        k = pt.specify_shape(
            _with_axes("k, the array of the prior,", k, 3, "float64"),
            (None, *((n, n) if self.form.square else (None, None))),
        )
        axes = self.likelihood.observed_axes
        labels = _with_axes("labels", labels, axes, self.likelihood.observed_dtype)
        labels = pt.specify_shape(labels, (n, mean.shape[0] if c is None else c)[:axes])
        start = pt.specify_shape(_with_axes("start", start, 1, "float64"), (size,))
        looseness = _with_axes("looseness", looseness, 0, "float64")
        given = pt.zeros((0, n)) if parameters is None else parameters
        parameters = pt.specify_shape(_with_axes("parameters", given, 2, "float64"), (None, n))
        evidence, status, iterations = pt.dscalar("evidence"), pt.lscalar(), pt.lscalar()
        outputs = [evidence, k.type(), mean.type(), start.type(), status, iterations, parameters.type()]
        return Apply(self, [k, mean, labels, start, looseness, parameters], outputs)

    def infer_shape(self, node: Apply, shapes: Sequence[Any]) -> list[Any]:
        """Return shapes of the outputs from shapes of the inputs."""
        k, mean, _, start, _, parameters = shapes
        return [(), k, mean, start, (), (), parameters]

    def solve(
        self,
        k: NDArray[np.float64],
        mean: NDArray[np.float64],
        labels: Observed,
        start: NDArray[np.float64],
        looseness: float = 1.0,
        parameters: NDArray[np.float64] = NO_PARAMETERS,
        gradient: bool = True,
    ) -> Outcome:
        """Run the solver.

        Raises
        ------
        ValueError
            If shapes of arrays do not match, or a label is invalid. Kernels use labels as indices without checks.
        """
        c, n = mean.shape
        likelihood = self.likelihood.given(parameters)
        likelihood.check(labels, c, n)
        if len(k) not in (1, c) or n < 1 or start.size != self.approximator.cold(c, n, self.form).size:
            raise ValueError(_UNUSABLE)
        approximator = self.approximator.loosened(float(looseness))
        trusted = looseness != 1.0
        run = partial(
            approximator.run, k, mean, labels, gradient=gradient, likelihood=likelihood, form=self.form,
            trusted=trusted, slopes=self.slopes,
        )  # fmt: skip
        if not self.remembers:
            return run(start)
        means = np.concatenate([mean, likelihood.parameters]) if likelihood.has_parameters else mean
        problem, place = (self, k.shape, labels.tobytes()), place_of(self.form(k, mean), means)
        if not np.isfinite(place).all():
            return run(start)  # This run raises the error with its reason.
        near = _recent.near(problem)
        found = run(start if near is None else near.predict(approximator, place))
        if near is not None and found.status != CONVERGED:
            found = run(start)
        if found.status == CONVERGED:
            _recent.add(problem, place, found.start)
        return found

    def evaluate(
        self,
        k: NDArray[np.float64],
        mean: NDArray[np.float64],
        labels: Observed,
        start: NDArray[np.float64],
        looseness: float | NDArray[np.float64] = 1.0,
        parameters: NDArray[np.float64] = NO_PARAMETERS,
    ) -> tuple[Any, ...]:
        """Compute all outputs from arrays."""
        k, mean, labels, start = np.asarray(k), np.asarray(mean), np.asarray(labels), np.asarray(start)
        found = self.solve(k, mean, labels, start, float(looseness), np.asarray(parameters))
        ok = found.status == CONVERGED
        return (
            found.evidence if ok else np.nan,
            found.gradient if ok else np.full_like(k, np.nan),
            found.gradient_mean if ok else np.full_like(mean, np.nan),
            found.start,
            found.status,
            found.iterations,
            found.gradient_parameters if ok and len(parameters) else np.full_like(parameters, np.nan),
        )

    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: Sequence[list[Any]]) -> None:
        """Evaluate in Python, for linkers that do not compile the operation."""
        for storage, value, variable in zip(output_storage, self.evaluate(*inputs), node.outputs, strict=True):
            storage[0] = np.asarray(value, dtype=variable.type.dtype)

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        """Return the pairs with derivatives: evidence with respect to covariance, mean and parameters."""
        return [[differentiable] * 7 for differentiable in _DIFFERENTIABLE]

    def pullback(
        self, inputs: Sequence[Variable], outputs: Sequence[Variable], cotangents: Sequence[Variable]
    ) -> list[Variable]:
        """Return the derivatives of the evidence times its cotangent."""
        _, gradient_k, gradient_mean, *_, gradient_parameters = outputs
        cotangent, *others = cotangents
        if any(not isinstance(other.type, DisconnectedType) for other in others):
            return [
                grad_not_implemented(
                    self, i, inputs[i], "Only the evidence itself can be differentiated, and only once."
                )
                if differentiable
                else disconnected_type()
                for i, differentiable in enumerate(_DIFFERENTIABLE)
            ]
        return [
            cotangent * gradient_k,
            cotangent * gradient_mean,
            *(disconnected_type() for _ in range(3)),
            cotangent * gradient_parameters,
        ]


@register_funcify_default_op_cache_key(Evidence)
def _numba_evidence(op: Evidence, node: Apply, **kwargs: Any) -> tuple[Any, int]:
    remembers = " from near by" if op.remembers else ""
    name = f"{op.approximator!r} of {op.likelihood!r}{remembers} by {op.form.__name__}"
    solve = external(name, op.solve, op.likelihood.observed_dtype, op.likelihood.observed_axes)

    @numba_njit
    def evidence(k_, mean_, labels_, start, looseness, parameters_):  # type: ignore[no-untyped-def]  # numba infers them
        k = np.ascontiguousarray(k_)
        mean = np.ascontiguousarray(mean_)
        labels = np.ascontiguousarray(labels_)
        parameters = np.ascontiguousarray(parameters_)
        c, n = mean.shape
        end = start.copy()
        value = np.full(1, np.nan)
        gradient_k = np.empty_like(k)
        gradient_mean = np.empty_like(mean)
        gradient_parameters = np.empty_like(parameters)
        outcome = np.array([OUT_OF_MEMORY, 0])
        solve(
            len(k), c, n, k.shape[2], len(parameters), k.ctypes, mean.ctypes, labels.ctypes, parameters.ctypes,
            end.ctypes, end.size, np.float64(looseness.item()),
            value.ctypes, gradient_k.ctypes, gradient_mean.ctypes, gradient_parameters.ctypes, outcome.ctypes,
        )  # fmt: skip
        if outcome[0] == REFUSED:
            raise ValueError(_UNUSABLE)
        status, iterations = np.asarray(outcome[0]), np.asarray(outcome[1])
        return np.asarray(value[0]), gradient_k, gradient_mean, end, status, iterations, gradient_parameters

    return evidence, source_key(__file__)
