"""PyTensor graphs evaluated in plain Python, one operation after the other, or compiled by a backend.

A graph of a model has hundreds of operations on a few numbers. With PyTensor's checks, each operation takes ten times
as long as in NumPy. Interpreted graphs skip the checks of static shapes. No operation writes into an existing array.
Rewrites join operations, so each array is read once. For example, a sum of matrix products becomes a single product.

Compilation to machine code takes ten seconds or more for each model and shape, and minutes for a step of a fit by
batches. A fit evaluates a few n × n arrays some dozens of times, or products of large matrices thousands of times.
Machine code would save only a few milliseconds per evaluation. Functions that PyMC's samplers call thousands of times
are compiled.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from importlib.util import find_spec
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.blocking import PointType
from pymc.initial_point import convert_str_to_rv_dict, make_initial_point_expression, make_initial_point_fn
from pymc.pytensorf import reseed_rngs, resolve_backend_compile_kwargs
from pytensor.compile.mode import Mode, get_mode, predefined_modes
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import Op
from pytensor.graph.replace import graph_replace
from pytensor.graph.rewriting.basic import GraphRewriter, dfs_rewriter, node_rewriter
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.graph.traversal import ancestors
from pytensor.link.jax import JAXLinker
from pytensor.link.vm import Loop, VMLinker
from pytensor.scalar.basic import AND, GE, LE, Add, Cast, Clip, Mul, Sub
from pytensor.scalar.math import BetaInc, Log1mexp, PolyGamma, Softplus, TriGamma
from pytensor.tensor.blas import BatchedDot
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.math import Dot
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.utils import import_func_from_string
from pytensor.tensor.variable import TensorVariable
from scipy.special import betainc, polygamma

from pymc_gpep.argument_types import did_you_mean
from pymc_gpep.graphs.affine import is_elementwise
from pymc_gpep.graphs.alike_graphs import arrays_as_shared, rewritten_once
from pymc_gpep.graphs.errors import StructureError
from pymc_gpep.graphs.private_names import check_broadcast
from pymc_gpep.pytensor_settings import one_thread_at_a_time, without_c_compiler


class Ufunc(Op):
    """Elementwise operation by a single NumPy function, also for sums and products of several operands.

    Parameters
    ----------
    elemwise : Elemwise
        Elementwise operation with a NumPy function. It must not work in place.
    """

    __props__ = ("elemwise",)

    def __init__(self, elemwise: Elemwise) -> None:
        self.elemwise = elemwise

    def __str__(self) -> str:
        return str(self.elemwise)

    def make_node(self, *inputs: Variable) -> Apply:
        """Return the node of the elementwise operation."""
        made = self.elemwise.make_node(*inputs)
        return Apply(self, made.inputs, [made.outputs[0].type()])

    def function(self, operands: int, dtype: str) -> Callable[..., Any]:
        """Return a function that computes an array of this dtype from a number of operands."""
        called = _called(self.elemwise, operands)
        if isinstance(called, np.ufunc) and dtype in ("float64", "bool"):
            return called
        return lambda *values: np.asarray(called(*values), dtype)

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        """Compute the result for one node of a graph."""
        with np.errstate(all="ignore"):
            found = _called(self.elemwise, len(inputs))(*inputs)
        output_storage[0][0] = np.asarray(found, node.outputs[0].dtype)

    def make_py_thunk(
        self, node: Apply, storage_map: Any, compute_map: Any, no_recycling: Any, debug: bool = False
    ) -> Any:
        """Return a function without arguments that computes one node, for PyTensor's virtual machine."""
        function, dtype = _called(self.elemwise, len(node.inputs)), np.dtype(node.outputs[0].dtype)
        cells, out = [storage_map[each] for each in node.inputs], storage_map[node.outputs[0]]
        done = [False] if compute_map is None else compute_map[node.outputs[0]]
        # PyTensor broadcasts an axis only if its static length is 1. Axes without a static length must have equal
        # lengths.
        unknown = [cell for cell, each in zip(cells, node.inputs, strict=True) if None in each.type.shape]
        unknown = unknown if len(cells) > 1 else []

        def thunk() -> None:
            values = [cell[0] for cell in cells]
            for cell in unknown:
                if 1 in cell[0].shape:
                    check_broadcast(node, values)
                    break
            with np.errstate(all="ignore"):
                out[0] = np.asarray(function(*values), dtype)
            done[0] = True

        thunk.inputs, thunk.outputs, thunk.lazy = cells, [out], False  # type: ignore[attr-defined]
        return thunk


@node_rewriter([Elemwise])
def by_ufuncs(fgraph: Any, node: Apply) -> list[Variable] | None:
    """Replace an elementwise operation by a NumPy function, if NumPy has a function for it and these types."""
    op = node.op
    if op.inplace_pattern or len(node.outputs) != 1 or not _has_function(op, len(node.inputs)):
        return None
    # If one operand has double precision, NumPy converts all operands to double precision, as PyTensor does.
    types = {each.dtype for each in node.inputs}
    truths = types == {"bool"} and not isinstance(op.scalar_op, Add | Sub)
    cast = isinstance(op.scalar_op, Cast)
    if not (truths or cast or "float64" in types) or any(each.startswith("complex") for each in types):
        return None
    return [Ufunc(op)(*node.inputs)]


def _has_function(op: Elemwise, operands: int) -> bool:
    """Return whether NumPy has a function for an elementwise operation with this number of operands."""
    if isinstance(op.scalar_op, Cast) or type(op.scalar_op) in _SPECIAL:
        return True
    name, most, results = op.nfunc_spec or ("", 0, 0)
    if results != 1 or not (operands == most or (isinstance(op.scalar_op, Add | Mul) and operands > most)):
        return False
    function = import_func_from_string(name)
    return isinstance(function, np.ufunc) or function is np.where


def _log_one_minus_exp(x: Any) -> Any:
    return np.where(x < -math.log(2.0), np.log1p(-np.exp(x)), np.log(-np.expm1(x)))


_SHIFT = 10
_BERNOULLI = (1.0 / 6.0, -1.0 / 30.0, 1.0 / 42.0, -1.0 / 30.0, 5.0 / 66.0, -691.0 / 2730.0)


def _trigamma(x: Any) -> Any:
    """Trigamma ψ′ of positive x, by the recurrence and the asymptotic series at x + 10; relative error 1e-15."""
    if not np.all(x > 0.0):
        return polygamma(1, x)
    ahead = sum((1.0 / np.square(x + k) for k in range(_SHIFT)), start=np.zeros(np.shape(x)))
    z = 1.0 / (x + _SHIFT)
    square = z * z
    series = reduce(lambda total, b: total * square + b, reversed(_BERNOULLI), 0.0 * z)
    return ahead + z + 0.5 * square + z * square * series


def _betainc(a: Any, b: Any, x: Any) -> Any:
    """Regularised incomplete beta function, xᵃ for b = 1, as for zeros of a negative binomial."""
    if not np.all(b == 1.0):
        return betainc(a, b, x)
    return np.where((a > 0.0) & (x >= 0.0) & (x <= 1.0), np.power(x, a), np.nan)


_SPECIAL: dict[type, Callable[..., Any]] = {
    BetaInc: _betainc,
    Log1mexp: _log_one_minus_exp,
    PolyGamma: polygamma,
    Softplus: lambda x: np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x))),
    TriGamma: _trigamma,
}
"""Vectorised functions for operations that PyTensor computes by a Python call for each number."""


def _called(op: Elemwise, operands: int) -> Callable[..., Any]:
    if isinstance(op.scalar_op, Cast):
        return partial(np.asarray, dtype=op.scalar_op.o_type.dtype)
    if (special := _SPECIAL.get(type(op.scalar_op))) is not None:
        return special
    function = import_func_from_string(op.nfunc_spec[0])
    return function if operands == op.nfunc_spec[1] else lambda *values: reduce(function, values)


_MOST_OPERANDS = 31  # Largest number of operands that NumPy's functions accept.


@node_rewriter([Elemwise])
def _clip_by_ufuncs(fgraph: Any, node: Apply) -> list[Variable] | None:
    """Replace a clip by minimum and maximum, which are vectorised. PyTensor's `Clip` calls Python for each number.

    For an infinite bound no operation is added.
    """
    if not isinstance(node.op.scalar_op, Clip):
        return None
    x, low, high = node.inputs
    if not _is_constant(low, -np.inf):
        x = pt.maximum(x, low)
    if not _is_constant(high, np.inf):
        x = pt.minimum(x, high)
    return [x.astype(node.outputs[0].dtype)]


@node_rewriter([Elemwise])
def _in_bounds_without_infinity(fgraph: Any, node: Apply) -> list[Variable] | None:
    """Replace (x ≥ a) ∧ (x ≤ ∞) by x ≥ a, in derivatives of `Clip`. Both are false if x is NaN."""
    if not isinstance(node.op.scalar_op, AND):
        return None
    for this, other in (node.inputs, node.inputs[::-1]):
        if _compares(this, LE, np.inf) and _compares(other, GE) and this.owner.inputs[0] is other.owner.inputs[0]:
            return [other]
    return None


@node_rewriter([Elemwise])
def _products_in_one(fgraph: Any, node: Apply) -> list[Variable] | None:
    """Replace a sum of matrix products A C + B C by (A + B) C."""
    if not isinstance(node.op.scalar_op, Add):
        return None
    products: dict[tuple[Any, Variable], list[Variable]] = defaultdict(list)
    rest = []
    for term in node.inputs:
        own = term.owner
        if own is not None and isinstance(own.op, Dot | BatchedDot) and len(fgraph.clients[term]) == 1:
            products[own.op, own.inputs[1]].append(own.inputs[0])
        else:
            rest.append(term)
    if all(len(left) == 1 for left in products.values()):
        return None
    return [pt.add(*(op(pt.add(*left), right) for (op, right), left in products.items()), *rest)]


@node_rewriter([Elemwise])
def _rows_in_one(fgraph: Any, node: Apply) -> list[Variable] | None:
    """Replace a C + b C by (a + b) C, where a and b have one number for each row of C."""
    if not isinstance(node.op.scalar_op, Add) or node.outputs[0].type.ndim < 2:
        return None
    multiples: dict[tuple[Variable, ...], list[Variable]] = defaultdict(list)
    rest = []
    for term in node.inputs:
        if is_elementwise(term, Mul) and len(fgraph.clients[term]) == 1:
            operands = term.owner.inputs
            narrow = [each for each in operands if each.type.broadcastable[-1]]
            wide = tuple(each for each in operands if not each.type.broadcastable[-1])
            if narrow and wide:
                multiples[wide].append(_of_all(pt.mul, narrow))
                continue
        rest.append(term)
    if all(len(factors) == 1 for factors in multiples.values()):
        return None
    return [pt.add(*(pt.mul(_of_all(pt.add, own), *wide) for wide, own in multiples.items()), *rest)]


@node_rewriter([Elemwise])
def _small_operands_first(fgraph: Any, node: Apply) -> list[Variable] | None:
    """Combine first the operands of a sum or product that are smaller than its result.

    Each operation has at most as many operands as NumPy's functions accept.
    """
    if not isinstance(node.op.scalar_op, Add | Mul) or len(node.inputs) < 3:
        return None
    alike: dict[tuple[bool, ...], list[Variable]] = defaultdict(list)
    for operand in node.inputs:
        alike[operand.type.broadcastable].append(operand)
    whole = alike.pop(node.outputs[0].type.broadcastable, [])
    parts = [_of_all(node.op, own) for _, own in sorted(alike.items(), reverse=True)]
    if len(parts) + len(whole) == len(node.inputs) <= _MOST_OPERANDS:
        return None
    return [_of_all(node.op, parts + whole)]


def _of_all(op: Any, operands: Sequence[Variable]) -> Variable:
    """Return a sum or product of all operands, computed in groups of at most `_MOST_OPERANDS`."""
    while len(operands) > 1:
        operands = [
            op(*few) if len(few) > 1 else few[0]
            for few in (operands[i : i + _MOST_OPERANDS] for i in range(0, len(operands), _MOST_OPERANDS))
        ]
    return operands[0]


def _is_constant(variable: Variable, value: float) -> bool:
    return isinstance(variable, Constant) and bool(np.all(np.asarray(variable.data) == value))


def _compares(variable: Variable, how: type, bound: float | None = None) -> bool:
    """Return whether a variable is a comparison of this type and, if a bound is given, with this constant."""
    return is_elementwise(variable, how) and (bound is None or _is_constant(variable.owner.inputs[1], bound))


# Each rewrite has a separate rewriter: a rewriter of two rewrites cannot be pickled.
NUMPY_REWRITES: list[tuple[GraphRewriter, float]] = [
    (dfs_rewriter(each), 49.0 + 0.1 * place)
    for place, each in enumerate(
        (
            _clip_by_ufuncs,
            _in_bounds_without_infinity,
            _products_in_one,
            _rows_in_one,
            _small_operands_first,
            by_ufuncs,
        )
    )
]


_OF_OTHER_CODE = "fusion", "BlasOpt", "inplace", "local_pow_to_nested_squaring"
_MULTIPLIED_OUT = ("local_greedy_distributor",)
_OF_ASSUMPTIONS = (
    "dot_diag_to_elemwise",
    "orthogonal_dot_transpose_to_eye",
    "selection_dot_to_indexing",
    "useless_symmetric_transpose",
    "drain_specify_assumptions",
)

INTERPRETED = Mode(
    VMLinker(use_cloop=False, c_thunks=False),
    # Keep the rewrites that make graphs stable and small, so that interpreted and compiled graphs have equal values up
    # to rounding. Leave out fusion, which saves no time here. Leave out in-place operations, which create an array and
    # copy it. Leave out rewrites by assumptions: they are slow, and models have few products of diagonal or orthogonal
    # matrices. Leave out the search for sums that are simpler when multiplied out: it takes half of the rewriting and
    # rarely succeeds.
    RewriteDatabaseQuery(
        include=["fast_run", "py_only"], exclude=[*_OF_OTHER_CODE, *_OF_ASSUMPTIONS, *_MULTIPLIED_OUT]
    ),
).register(*NUMPY_REWRITES)


# The C library returns the memory of freed arrays to the system if they are larger than a threshold. The threshold
# grows with the largest freed array. The system clears returned pages at each evaluation, which takes 10 to 20 % of the
# time of a fit of a few hundred rows. So raise the threshold to its limit: allocate and free an array of 32 MB. The
# array is never written, so it occupies no memory.
np.empty(2**25 - 2**13, dtype=np.uint8)


class GraphFunction:
    """Function of a model's graph that can be pickled.

    Overflow at extreme hyperparameters does not raise NumPy's warnings, as in compiled code.
    """

    def __init__(self, function: Any, *, settled: bool = False) -> None:
        self._function, self._settled = function, settled
        if settled:
            _settle(function)

    def copy(self) -> "GraphFunction":
        """Return a copy for another thread: a function stores the values of its last evaluation."""
        with one_thread_at_a_time:
            return GraphFunction(self._function.copy(), settled=self._settled)

    def settled(self) -> "GraphFunction":
        """Return this function with operations on data computed once, and not at each call.

        The values of the graph's shared variables must not change afterwards.
        """
        return GraphFunction(self._function, settled=True)

    def seed(self, seed: int) -> None:
        """Seed the random variables that the function draws."""
        reseed_rngs([v for v in self._function.get_shared() if isinstance(v.type, RandomType)], seed)

    def __call__(self, *values: Any) -> Any:
        try:
            with np.errstate(all="ignore"):
                return self._function(*values)
        except SystemError as error:
            # If an interrupt comes while Numba's C code calls Python, a SystemError is raised with the interrupt as its
            # cause.
            if caused_by_an_interrupt(error):
                raise KeyboardInterrupt from error
            raise


def caused_by_an_interrupt(error: BaseException | None) -> bool:
    """Return whether an error, or any error in its chain of causes, is a KeyboardInterrupt."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _settle(function: Any) -> None:
    """Run operations of an interpreted function that do not depend on its arguments, and remove them from calls.

    Operations with a returned result stay: a caller may change the returned array.
    """
    vm, maker = function.vm, function.maker
    if not isinstance(vm, Loop):
        return
    moving = {v for v, each in zip(vm.fgraph.inputs, maker.inputs, strict=True) if not each.implicit}
    returned = set(vm.fgraph.outputs)
    settled: set[int] = set()
    calls: list[tuple[Any, Any, Any]] = []
    cleared = vm.post_thunk_clear or [()] * len(vm.nodes)
    for node, thunk, cells in zip(vm.nodes, vm.thunks, cleared, strict=True):
        if moving.isdisjoint(node.inputs) and returned.isdisjoint(node.outputs):
            thunk()
            settled.update(id(vm.storage_map[each]) for each in node.outputs)
        else:
            moving.update(node.outputs)
            calls.append((node, thunk, cells))
    vm.nodes, vm.thunks = [node for node, _, _ in calls], [thunk for _, thunk, _ in calls]
    if vm.post_thunk_clear:
        vm.post_thunk_clear = [[cell for cell in cells if id(cell) not in settled] for _, _, cells in calls]
    vm.pre_call_clear = [cell for cell in vm.pre_call_clear if id(cell) not in settled]


def graph_function(
    model: pm.Model,
    inputs: Sequence[Variable],
    outputs: Any,
    *,
    trust_input: bool = False,
    draws: bool = False,
    further: Callable[[], Sequence[Variable]] | None = None,
    **kwargs: Any,
) -> GraphFunction:
    """Return a function of variables in a model's graph.

    Parameters
    ----------
    model : pm.Model
    inputs : sequence of Variable
        Arguments; unused arguments are allowed.
    outputs : sequence of Variable or Variable
    trust_input : bool
        Whether to skip checks of the arguments' types.
    draws : bool
        Whether random variables are drawn at each call, unless they are arguments.
    further : function, optional
        Function without arguments that returns further outputs, such as derivatives of the sequence `outputs`. It is
        not called if a graph of the same structure is already rewritten.
    **kwargs
        Arguments of `pytensor.function`. Without a `mode` the graph is interpreted.

    Raises
    ------
    StructureError
        If a random variable would be drawn, and `draws` is false.
    """
    settings = {"mode": INTERPRETED, "on_unused_input": "ignore"} | kwargs

    def make() -> Any:
        whole = outputs if further is None else [*outputs, *further()]
        return model.compile_fn(whole, inputs=inputs, point_fn=False, **settings)

    made_by = None if further is None else further.__qualname__
    with without_c_compiler() if settings["mode"] is INTERPRETED else one_thread_at_a_time:
        if draws or settings["mode"] is not INTERPRETED or not set(kwargs) <= {"mode"}:
            function = make()
        else:
            function = rewritten_once(make, inputs, outputs, INTERPRETED, model.check_bounds, made_by)
    if not draws:
        refuse_draws(function)
    function.trust_input = trust_input
    return GraphFunction(function)


def interpreted(inputs: Sequence[Variable], outputs: Sequence[Variable]) -> Any:
    """Return the interpreted function of a graph; unused inputs are allowed."""
    settings = {"mode": INTERPRETED, "on_unused_input": "ignore", "allow_input_downcast": True}
    make = partial(pytensor.function, list(inputs), list(outputs), **settings)
    with without_c_compiler():
        return rewritten_once(make, inputs, outputs, INTERPRETED)


def slopes_of(value: TensorVariable, wanted: Sequence[Variable]) -> list[TensorVariable]:
    """Return derivatives of a number with respect to `wanted` variables; 0 for a variable not in its graph."""
    return list(pytensor.grad(value, list(wanted), disconnected_inputs="ignore")) if wanted else []


def pulled_back(
    outputs: Sequence[TensorVariable], wanted: Sequence[Variable]
) -> tuple[list[TensorVariable], list[TensorVariable]]:
    """Return symbols for derivatives of a scalar in `outputs`, and expressions for its derivatives in `wanted`."""
    bars = [each.type() for each in outputs]
    total = pt.add(0.0, *((bar * each).sum() for bar, each in zip(bars, outputs, strict=True)))
    return bars, slopes_of(total, wanted)


def flat(parts: Sequence[TensorVariable]) -> TensorVariable:
    """Return the entries of all variables as one vector."""
    found: TensorVariable = pt.concatenate([each.ravel() for each in parts]) if parts else pt.zeros(0)
    return found


def evaluate(outputs: Sequence[Variable], given: Mapping[Any, NDArray[Any]] | None = None) -> list[NDArray[Any]]:
    """Compute variables, given values of other variables in their graphs.

    A StructureError is raised if the result depends on random variables without a given value.
    """
    if all(isinstance(each, Constant) for each in outputs):
        return [np.asarray(each.data) for each in outputs]
    given = given or {}
    function = interpreted(list(given), outputs)
    refuse_draws(function)
    return [np.asarray(value) for value in GraphFunction(function)(*given.values())]


def refuse_draws(function: Any) -> None:
    """Raise a StructureError if a compiled function draws random variables at each call."""
    drawn = [
        output
        for node in function.maker.fgraph.toposort()
        if any(isinstance(output.type, RandomType) for output in node.outputs)
        for output in node.outputs
        if not isinstance(output.type, RandomType)
    ]
    if drawn:
        names = ", ".join(repr(each.name) for each in drawn if each.name) or "a variable without a name"
        raise StructureError(
            f"A random variable would be drawn anew at each evaluation: {names}. Inputs, labels and numbers in the "
            "model must be data, constants or functions of hyperparameters. Declare each distribution as a named "
            "variable of the model, pm.Normal('name', ...), and inputs as pm.Data."
        )


_initial: WeakKeyDictionary[pm.Model, dict[Any, tuple[list[Any], list[Variable]]]] = WeakKeyDictionary()


def _initial_values(model: pm.Model, rvs: Sequence[TensorVariable], strategies: Mapping[Any, Any]) -> list[Variable]:
    """Return graphs of PyMC's initial values. The graphs are slow to make, so they are cached for each model."""
    made_of = [*strategies.keys(), *strategies.values(), *model.rvs_to_transforms.values()]
    kept = _initial.setdefault(model, {})
    before, values = kept.get(tuple(rvs), ([], []))
    if len(before) != len(made_of) or any(a is not b for a, b in zip(before, made_of, strict=True)):
        values = make_initial_point_expression(
            free_rvs=rvs,
            rvs_to_transforms=model.rvs_to_transforms,
            initval_strategies=dict(strategies),
            return_transformed=True,
        )
        kept[tuple(rvs)] = made_of, values
    return values


def initial_point(
    model: pm.Model,
    overrides: Mapping[Any, Any] | None = None,
    seed: int = 0,
    rvs: Sequence[TensorVariable] | None = None,
) -> PointType:
    """Return PyMC's initial value of each value variable, by its name.

    Parameters
    ----------
    model : pm.Model
    overrides : dict, optional
        Initial values by the name of a variable, or of its value variable.
    seed : int
        Seed for initial values that are random draws.
    rvs : sequence of TensorVariable, optional
        Free variables of the result, together with the free variables that they depend on. The default is all.
    """
    rvs = model.free_RVs if rvs is None else rvs
    strategies = {**model.rvs_to_initial_values, **convert_str_to_rv_dict(model, overrides or {})}
    values = _initial_values(model, rvs, strategies)
    if any(isinstance(each.type, RandomType) for each in ancestors(values)):
        with without_c_compiler():
            point: PointType = make_initial_point_fn(model=model, overrides=overrides)(seed)
        return point
    names = [model.rvs_to_values[rv].name for rv in rvs]
    return dict(zip(names, evaluate(values), strict=True))


# Standard deviation of `ModelFunctions.nearby` around the initial point, in unconstrained coordinates.
_NEARBY = 0.3
# Seed of random values for comparisons of graphs.
SEED = 1
# Relative differences between two evaluations of a quantity up to this number count as rounding.
EVALUATION_TOLERANCE = 1e-8


class AtPoint:
    """Function of a point that can be pickled. It calls `function` with the point's values of `names`, in order."""

    def __init__(self, function: GraphFunction, names: Sequence[str]) -> None:
        self._function, self._names = function, names

    def __call__(self, point: PointType, *values: Any) -> Any:
        return self._function(*(np.asarray(point[name]) for name in self._names), *values)

    def seed(self, seed: int) -> None:
        """Seed the random variables that the function draws."""
        self._function.seed(seed)


class ModelFunctions:
    """Compiler for functions of a model's hyperparameters, with data of the model replaced.

    Parameters
    ----------
    model : pm.Model
    hyperparameters : sequence of TensorVariable
        Free variables of the model. Functions read their value variables from a point.
    data : mapping, optional
        Data of the model → their replacements in all functions.

    Attributes
    ----------
    values : list of TensorVariable
        Value variables of the hyperparameters.
    names : list of str
        Names of the value variables.
    """

    def __init__(
        self, model: pm.Model, hyperparameters: Sequence[Variable], data: Mapping[Variable, Variable] | None = None
    ) -> None:
        self.model, self._data, self._rvs = model, dict(data or {}), list(hyperparameters)
        self.values = [model.rvs_to_values[rv] for rv in hyperparameters]
        self.names = [str(v.name) for v in self.values]

    def known(self, outputs: Sequence[Variable], replaced: Mapping[Variable, Variable] | None = None) -> list[Any]:
        """Return expressions in value variables, after replacement of the data and of the variables in `replaced`."""
        # Replace random variables first. Replacement of data first would copy random variables that depend on the data.
        found = self.model.replace_rvs_by_values(list(outputs)) if outputs else []
        others = {**self._data, **(replaced or {})}
        return graph_replace(found, others, strict=False) if found and others else found

    def __call__(
        self,
        outputs: Sequence[Variable],
        inputs: Sequence[Variable] = (),
        replaced: Mapping[Variable, Variable] | None = None,
        shared: bool = False,
    ) -> AtPoint:
        """Return a function of a point and of `inputs`. With `shared`, `arrays_as_shared` is applied to its graph."""
        known = self.known(outputs, replaced)
        known = arrays_as_shared(known) if shared else known
        return AtPoint(graph_function(self.model, [*self.values, *inputs], known), self.names)

    def nearby(self, rng: np.random.Generator, distance: float = _NEARBY) -> PointType:
        """Return a random point near the start. A coefficient that is 0 at this point is almost surely always 0."""
        start = initial_point(self.model, rvs=self._rvs)
        return {name: start[name] + distance * rng.standard_normal(np.shape(start[name])) for name in self.names}


def compile_options(backend: str | None, compile_kwargs: dict[str, Any] | None) -> dict[str, Any]:
    """Return the keyword arguments of `pytensor.function` for a backend, with `compile_kwargs` added.

    Raises
    ------
    ValueError
        If the backend is unknown, or if `compile_kwargs` contain a `mode` in addition.
    ModuleNotFoundError
        If the backend is JAX, and JAX is not installed.
    """
    known = ["c", *(name.lower() for name in predefined_modes)]
    if backend is not None and str(backend).lower() not in known:
        raise ValueError(
            f'backend must be "numba", "jax", "c" or another mode of PyTensor, but is {backend!r}.'
            f"{did_you_mean([backend], known)}"
        )
    options = resolve_backend_compile_kwargs(backend, compile_kwargs)
    check_installed(options)
    return options


def check_installed(compile_kwargs: dict[str, Any]) -> None:
    """Raise a ModuleNotFoundError if these arguments of `pytensor.function` need JAX, and JAX is not installed."""
    if runs_in_jax(compile_kwargs) and find_spec("jax") is None:
        raise ModuleNotFoundError(
            "backend='jax' needs JAX, which is not installed: pip install jax. Without backend=, graphs are "
            "interpreted."
        )


def runs_in_jax(compile_kwargs: Mapping[str, Any]) -> bool:
    """Return whether functions that are compiled with these arguments of `pytensor.function` run in JAX."""
    return isinstance(get_mode(compile_kwargs.get("mode")).linker, JAXLinker)
