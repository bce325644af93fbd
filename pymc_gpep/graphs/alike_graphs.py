"""Graphs of the same structure: the rewritten form of a graph is reused, or several graphs are built as one graph.

Rewriting a graph takes nine tenths of the time to make its function. Models that differ only in data have graphs of one
structure. Examples are folds of a cross-validation, and fits of one model by several methods.

Constants are in double precision, and are copies of the user's arrays. PyTensor computes in the smallest type that
represents the values of arrays. Then a covariance of single-precision inputs with length scale 1 would have single
precision, and sums of small integers would overflow. PyTensor does not copy arrays: later changes of an array would
change the model.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from threading import Lock
from typing import Any, NamedTuple, cast

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.mode import Mode
from pytensor.compile.ops import ViewOp
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable, equal_computations
from pytensor.graph.op import HasInnerGraph, Op
from pytensor.graph.replace import graph_replace, vectorize_graph
from pytensor.graph.rewriting.basic import SequentialGraphRewriter
from pytensor.graph.traversal import ancestors, io_toposort, toposort
from pytensor.raise_op import CheckAndRaise
from pytensor.scalar.basic import BinaryBitOp, ScalarConstant, UnaryBitOp
from pytensor.sparse.variable import SparseVariable
from pytensor.tensor.basic import Alloc, AllocDiag, Eye, Join, MakeVector, TensorFromScalar, alloc_diag
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.math import Dot
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.shape import Reshape, SpecifyShape
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor
from pytensor.tensor.type import TensorType
from pytensor.tensor.variable import TensorConstant, TensorVariable
from scipy.sparse import issparse

from pymc_gpep.graphs.graphs_on_disk import path_of, read, write
from pymc_gpep.noted_inputs import renew_note

# Largest number of stored graphs, and largest size of the constants of a graph in bytes.
_MOST_GRAPHS, _MOST_BYTES = 128, 200_000
_NO_REWRITES = SequentialGraphRewriter()  # For a mode with only the rewrites that its linker requires.


class _Structure(NamedTuple):
    """The structure of a graph: its operations and types, without the values of its leaves."""

    key: Any
    """Operations, types and constants, as a hashable value."""
    leaves: list[Variable]
    """Inputs, then shared variables, in the order of a traversal."""
    ops: list[Op]
    """Operations with an attribute `stands_for`, in this order. They replace operations of a reused graph."""


class _Rewritten(NamedTuple):
    """A rewritten graph whose leaves have no values."""

    leaves: list[Variable]
    outputs: list[Variable]
    ops: list[Op]


_kept: OrderedDict[Any, _Rewritten] = OrderedDict()
_one_at_a_time = Lock()


def rewritten_once(make: Callable[[], Any], inputs: Sequence[Variable], outputs: Any, mode: Mode, *how: Any) -> Any:
    """Return the function of a graph. If an earlier graph has the same structure, its rewritten form is reused.

    An operation may have an attribute `stands_for`. Its value and the types of the inputs must determine how the
    operation is rewritten. An operation with an equal value may replace it in a rewritten graph.

    Parameters
    ----------
    make : function
        Function that rewrites the graph and returns the graph's function. It may have further outputs.
    inputs : sequence of Variable
    outputs : sequence of Variable or Variable
    mode : Mode
        Mode that rewrites and links the graph. A rewritten form is reused only for a mode with the same rewrites.
    *how : hashable
        Further values on which the rewritten form depends.

    Returns
    -------
    pytensor.compile.executor.Function
    """
    one = isinstance(outputs, Variable)
    structure = _structure(inputs, [outputs] if one else outputs, (mode.provided_optimizer, *how))
    if structure is None:
        return make()
    with _one_at_a_time:
        if (found := _kept.get(structure.key)) is not None:
            _kept.move_to_end(structure.key)
    # Operations with `stands_for` contain data of this process, so their graphs are not stored on disk.
    path = None if found is not None or structure.ops else path_of((_described(mode), how, structure.key[1:]))
    if path is not None and (stored := read(path)) is not None:
        leaves, rewritten_outputs = stored
        found = _Rewritten(leaves, rewritten_outputs, [])
        _keep(structure.key, found)
    if found is not None:
        moved = _moved(found, structure.leaves, structure.ops)
        return pytensor.function(
            list(inputs),
            moved[0] if one else moved,
            mode=Mode(mode.linker, _NO_REWRITES),
            on_unused_input="ignore",
            allow_input_downcast=True,
            accept_inplace=True,
        )
    made = make()
    if (rewritten := _without_values(made, structure)) is not None:
        _keep(structure.key, rewritten)
        if path is not None:
            write(path, (rewritten.leaves, rewritten.outputs))
    return made


def _keep(key: Any, graph: _Rewritten) -> None:
    with _one_at_a_time:
        _kept[key] = graph
        while len(_kept) > _MOST_GRAPHS:
            _kept.popitem(last=False)


def _described(mode: Mode) -> tuple[Any, ...]:
    """Return the rewrites of a mode, in an order that does not depend on the process."""
    query = mode.provided_optimizer
    further = [(str(rewrite), position) for rewrite, position in query.extra_rewrites]
    return sorted(query.include), sorted(query.require), sorted(query.exclude), further


def _structure(inputs: Sequence[Variable], outputs: Sequence[Variable], how: tuple[Any, ...]) -> _Structure | None:
    """Return the structure of a graph.

    None if the graph draws random numbers, is large, or has parts that cannot be compared, such as inner arrays.
    """
    places: dict[Variable, int] = {v: i for i, v in enumerate(inputs)}
    leaves, ops = list(inputs), list[Op]()
    size = 0

    def place(variable: Variable) -> Any:
        nonlocal size
        if variable in places:
            return places[variable]
        if isinstance(variable, Constant):
            arrays = _arrays(variable.data)
            size += sum(each.nbytes for each in arrays)
            return _value(variable, arrays) if size <= _MOST_BYTES else None
        if not isinstance(variable, SharedVariable) or isinstance(variable.type, RandomType):
            raise TypeError
        places[variable] = len(places)
        leaves.append(variable)
        return variable.type

    try:
        nodes: list[Any] = []
        for node in io_toposort(inputs, outputs):
            op = node.op
            if isinstance(op, HasInnerGraph) and _holds_arrays(op):
                return None
            if (stand_in := getattr(op, "stands_for", None)) is not None:
                ops.append(op)
                stand_in = (stand_in, ops.index(op))
            nodes.append((stand_in or op, *map(place, node.inputs), *(each.type for each in node.outputs)))
            for each in node.outputs:
                places.setdefault(each, len(places))
        key = (how, tuple(v.type for v in inputs), tuple(nodes), tuple(map(place, outputs)))
        hash(key)
    except TypeError:
        return None
    return None if size > _MOST_BYTES else _Structure(key, leaves, ops)


def _holds_arrays(op: HasInnerGraph) -> bool:
    """Return whether an inner graph contains an array. Other code may change such an array in place."""
    for each in ancestors(op.inner_outputs):
        if isinstance(each, Constant) and any(array.ndim for array in _arrays(each.data)):
            return True
        within = None if each.owner is None else each.owner.op
        if isinstance(within, HasInnerGraph) and _holds_arrays(within):
            return True
    return False


def _arrays(data: Any) -> list[Any]:
    """Return the arrays that a constant contains."""
    if issparse(data):
        return [data.data, data.indices, data.indptr]
    return [data] if isinstance(data, np.ndarray) else []


def _value(constant: Constant, arrays: Sequence[Any]) -> Any:
    """Return a hashable value that distinguishes constants.

    It contains copies of arrays: the caller may change arrays in place. PyTensor's signatures contain no copies, and
    sparse matrices that differ by a millionth have equal signatures.
    """
    if not arrays:
        return constant.signature()
    return constant.type, constant.data.shape, *((each.dtype.str, each.tobytes()) for each in arrays)


def _without_values(made: Any, structure: _Structure) -> _Rewritten | None:
    """Return the rewritten graph of a function with new leaves, without values.

    None if the function has updates, or if rewriting removed or merged operations with `stands_for`.
    """
    maker = made.maker
    still = [node for node in maker.fgraph.apply_nodes if hasattr(node.op, "stands_for")]
    if any(each.update is not None for each in maker.inputs) or len(still) != len(structure.ops):
        return None
    own = {each.variable: here for each, here in zip(maker.inputs, maker.fgraph.inputs, strict=True)}
    rewritten = _Rewritten([own[leaf] for leaf in structure.leaves], maker.fgraph.outputs, structure.ops)
    leaves = [leaf.type() for leaf in rewritten.leaves]
    of_their_own = {
        each: type(each)(each.type, each.data.copy(), name=each.name)
        for each in ancestors(rewritten.outputs, rewritten.leaves)
        if isinstance(each, Constant) and _arrays(each.data)
    }
    return rewritten._replace(leaves=leaves, outputs=_moved(rewritten, leaves, structure.ops, of_their_own))


def _moved(
    graph: _Rewritten, leaves: Sequence[Variable], ops: Sequence[Op], constants: Mapping[Any, Variable] | None = None
) -> list[Variable]:
    """Return the outputs of a graph after its leaves, operations and constants are replaced."""
    now: dict[Variable, Variable] = {**(constants or {}), **dict(zip(graph.leaves, leaves, strict=True))}
    op_now = dict(zip(graph.ops, ops, strict=True))
    for node in io_toposort(graph.leaves, graph.outputs):
        op: Any = op_now.get(node.op, node.op) if op_now else node.op
        copied: Apply = Apply(op, [now.get(each, each) for each in node.inputs], [each.type() for each in node.outputs])
        now.update(zip(node.outputs, copied.outputs, strict=True))
    return [now.get(each, each) for each in graph.outputs]


# Integers up to this number, and arrays up to this size, remain constants of a graph.
_LARGEST = 16


def arrays_as_shared(outputs: Sequence[Variable]) -> list[Any]:
    """Replace constant arrays of a graph, and lengths of axes, by shared variables with the same values.

    A function with constant arrays cannot be reused for other data, and to make it takes longer than a fit. With shared
    variables it can be reused for other data, such as a fold or a bootstrap sample. The number of rows may differ: long
    axes have no static length. Sparse matrices stay constants.
    """
    now: dict[Any, Any] = {}

    def length(number: Any) -> Any:
        return now.setdefault(int(number), pytensor.shared(np.asarray(number, dtype=np.int64), name="length"))

    def shared(variable: Variable, is_length: bool) -> Any:
        if variable in now:
            return now[variable]
        if not isinstance(variable, TensorConstant) or issparse(variable.data):
            return variable
        data = variable.data
        if data.ndim and data.size > _LARGEST:
            shape = _without_lengths(variable.type).shape
            return now.setdefault(variable, pytensor.shared(data, name="array", shape=shape, borrow=True))
        return length(data) if is_length and not data.ndim and data.dtype.kind in "iu" and data > _LARGEST else variable

    for node in io_toposort([], outputs):
        if isinstance(node.op, TensorFromScalar) and isinstance(number := node.inputs[0], ScalarConstant):
            if number.type.dtype == "int64" and number.data > _LARGEST:  # A length in a derivative.
                now[node.outputs[0]] = length(number.data)
            continue
        lengths = range(*_lengths(node).indices(len(node.inputs)))
        inputs = [shared(each, i in lengths) for i, each in enumerate(node.inputs)]
        if any(new is not old for new, old in zip(inputs, node.inputs, strict=True)):
            copied: Apply = Apply(node.op, inputs, [_without_lengths(each.type)() for each in node.outputs])
            now.update(zip(node.outputs, copied.outputs, strict=True))
    return [shared(each, False) for each in outputs]


def _lengths(node: Apply) -> slice:
    """Return a slice of the inputs of an operation: the inputs that are lengths of axes."""
    op = node.op
    if isinstance(op, Alloc | SpecifyShape):
        return slice(1, None)  # The first input is the array.
    if isinstance(op, Eye):
        return slice(2)  # The third input is the index of the diagonal.
    if isinstance(op, MakeVector) and op.dtype == "int64":
        return slice(None)
    return slice(0)


@lru_cache(1000)
def _without_lengths(kind: Any) -> Any:
    """Return a type without static lengths of long axes."""
    if not isinstance(kind, TensorType):
        return kind
    return kind.clone(shape=tuple(None if s is not None and s > _LARGEST else s for s in kind.shape))


def stacked(
    graphs: Sequence[Sequence[TensorVariable]], along: Mapping[Variable, TensorVariable]
) -> list[TensorVariable]:
    """Return each output of c graphs as one variable with a first axis over the graphs, (c, ...).

    If the graphs are the same expression of different leaves, it is built once, from stacked leaves. Otherwise outputs
    are stacked.

    Parameters
    ----------
    graphs : sequence of sequence of TensorVariable
        The same outputs of each of the c graphs.
    along : dict
        Variables that occur in all graphs, each with its values in the graphs, (c, ...).
    """
    count = len(graphs)
    leaves = differences(graphs, set(along))
    if leaves is None:
        each = [
            graph_replace(list(graph), {old: new[k] for old, new in along.items()}, strict=False)
            for k, graph in enumerate(graphs)
        ]
        return [pt.stack(list(outputs)) for outputs in zip(*each, strict=True)]
    together = dict(along) | {first: _stack([first, *others]) for first, others in leaves.items()}
    found = vectorize_graph(list(graphs[0]), replace=together)
    return [
        new if new.ndim > old.ndim else pt.broadcast_to(new, (count, *(new.shape[i] for i in range(new.ndim))))
        for new, old in zip(found, graphs[0], strict=True)
    ]


def differences(
    graphs: Sequence[Sequence[TensorVariable]], along: set[Variable]
) -> dict[Variable, tuple[Variable, ...]] | None:
    """Return each variable of the first graph that differs in other graphs, with its c − 1 counterparts there.

    None if the structures differ. The variables `along` occur in all graphs, and the caller replaces them.
    """
    found: dict[Variable, tuple[Variable, ...]] = {}
    same: set[Variable] = set()
    seen: dict[Variable, tuple[Variable, ...]] = {}

    def alike(variables: tuple[Variable, ...]) -> bool:
        first, *others = variables
        if first in seen:
            return seen[first] == variables
        if all(each is first for each in others) or _equal_constants(variables):
            same.add(first)
        elif not _same_node(variables) or not all(
            alike(inputs) for inputs in zip(*(each.owner.inputs for each in variables), strict=True)
        ):
            if (
                isinstance(first, SparseVariable)
                or not isinstance(first, TensorVariable)
                or not all(
                    isinstance(each, TensorVariable) and each.type.is_super(first.type) and each.dtype == first.dtype
                    for each in others
                )
            ):
                return False
            found[first] = tuple(others)
        seen[first] = variables
        return True

    if not all(alike(outputs) for outputs in zip(*graphs, strict=True)):
        return None
    # Variables with counterparts must not depend on `along`. Equal variables must not depend on variables with
    # counterparts.
    for first in found:
        below = set(ancestors([first]))
        if along & below or any(first in ancestors([each]) for each in same):
            return None
    return found


def _stack(leaves: Sequence[TensorVariable]) -> TensorVariable:
    """Return leaves stacked into one variable. Entries of one vector become a selection from the vector."""
    owners = [each.owner for each in leaves]
    if all(owner is not None and isinstance(owner.op, Subtensor) and owner.op.idx_list == (0,) for owner in owners):
        vectors, places = zip(*(owner.inputs for owner in owners), strict=True)
        one = all(equal_computations([vectors[0]], [each]) for each in vectors)
        if one and all(isinstance(each, Constant) for each in places):
            found: TensorVariable = vectors[0][np.array([each.data for each in places])]
            return found
    return pt.stack(list(leaves))


def _same_node(variables: tuple[Variable, ...]) -> bool:
    owners = [each.owner for each in variables]
    if any(owner is None for owner in owners):
        return False
    first = owners[0]
    place = first.outputs.index(variables[0])
    return all(
        owner.op == first.op and len(owner.inputs) == len(first.inputs) and owner.outputs[place] is each
        for owner, each in zip(owners, variables, strict=True)
    )


def _equal_constants(variables: tuple[Variable, ...]) -> bool:
    if not all(isinstance(each, Constant) and each.type == variables[0].type for each in variables):
        return False
    if issparse(variables[0].data):
        return all(
            each.data.shape == variables[0].data.shape and (each.data != variables[0].data).nnz == 0
            for each in variables
        )
    return all(np.array_equal(np.asarray(each.data), np.asarray(variables[0].data)) for each in variables)


_ALL_NUMBERS = (Elemwise, CAReduce, Dot, Blockwise, DimShuffle, ViewOp, OpFromGraph)
_FIRST_NUMBERS = (Alloc, Reshape, SpecifyShape, Subtensor, AdvancedSubtensor)
"""Operations whose inputs after the first are shapes or indices."""


# An input counts as an integer if its distance from the integer is at most this number.
_DISTANCE_TO_INTEGER = 1e-6
_ONLY_WHOLE = CheckAndRaise(
    ValueError,
    "Inputs that the covariance function uses as an index must be whole numbers. Give Xnew, or inducing inputs, the "
    "form of the inputs of the model.",
)


def in_double_precision(outputs: Sequence[TensorVariable], stop: Collection[Variable]) -> list[TensorVariable]:
    """Return expressions with numeric data and constants in double precision.

    Indices, shapes and bitwise operations do not change.

    Parameters
    ----------
    outputs : sequence of TensorVariable
    stop : collection of Variable
        Random variables of the model. Their graphs do not change.
    """
    return [cast(TensorVariable, each) for each in _promoted_graph(outputs, stop, {})]


def _promoted_graph(
    outputs: Sequence[Variable], stop: Collection[Variable], made: dict[Variable, Variable]
) -> list[Variable]:
    """Return expressions with leaves in double precision, and store all replacements of variables in `made`."""

    def new(variable: Variable) -> Variable:
        if variable not in made:
            leaf = variable.owner is None and variable not in stop
            made[variable] = _promoted(variable) if leaf else variable
        return made[variable]

    for node in toposort(outputs, blockers=stop):
        inputs = [new(each) if number else each for each, number in zip(node.inputs, _numbers(node), strict=True)]
        if any(each is not old for each, old in zip(inputs, node.inputs, strict=True)):
            made |= dict(zip(node.outputs, _remade(node.op, inputs), strict=True))
    return [new(each) for each in outputs]


def _remade(op: Op, inputs: Sequence[Variable]) -> list[Variable]:
    """Return the outputs of an operation for inputs of new types."""
    if isinstance(op, CAReduce):
        return [reduced(op, inputs[0])]
    if isinstance(op, AllocDiag):
        return [alloc_diag(inputs[0], op.offset, op.axis1, op.axis2)]
    if isinstance(op, OpFromGraph):  # The inner graph was built for the types of the original inputs.
        return _promoted_graph(op.inner_outputs, (), dict(zip(op.inner_inputs, inputs, strict=True)))
    return op.make_node(*inputs).outputs


def reduced(op: CAReduce, values: Variable) -> TensorVariable:
    """Return a reduction, such as a sum, for an input of a new type.

    The operation has a fixed output type in PyTensor, so a new operation is needed.
    """
    free = op.clone()
    free.dtype = free.acc_dtype = None
    return cast(TensorVariable, free(values))


def is_bitwise(node: Apply) -> bool:
    """Return whether a node operates on the bits of integers or booleans."""
    return isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, BinaryBitOp | UnaryBitOp)


def whole(made: TensorVariable, dtype: str) -> TensorVariable:
    """Return numbers rounded and cast to an integer or boolean type.

    Evaluation of the graph raises an error if a number is not an integer.
    """
    if made.dtype == dtype:
        return made
    rounded = pt.round(made)
    close = pt.all(pt.abs(rounded - made) < _DISTANCE_TO_INTEGER)
    return cast(TensorVariable, _ONLY_WHOLE(rounded, close).astype(dtype))


def _numbers(node: Apply) -> list[bool]:
    """Return for each input of a node whether it has numeric data, and not indices or a shape."""
    count = len(node.inputs)
    if isinstance(node.op, Join) or (isinstance(node.op, _ALL_NUMBERS) and not is_bitwise(node)):
        return [True] * count
    return [isinstance(node.op, _FIRST_NUMBERS) and place == 0 for place in range(count)]


def _promoted(variable: Variable) -> Variable:
    """Return a leaf in double precision. Scalar integers do not change: they are counts or exponents."""
    if not isinstance(variable, TensorVariable | SharedVariable | Constant) or not hasattr(variable.type, "dtype"):
        return variable
    low = variable.type.dtype in ("float16", "float32")
    if not low and not (variable.type.ndim and variable.type.dtype.startswith(("int", "uint", "bool"))):
        return variable
    if isinstance(variable, Constant) and low and not variable.type.ndim:
        return pt.constant(variable.data.astype("float64"))
    return pt.cast(variable, "float64")


_OWN = "pymc_gpep_own"


def own_constants_of_model(model: pm.Model) -> None:
    """Replace the arrays of a model's constants by copies, unless they are copies already."""
    own_constants([*model.basic_RVs, *model.potentials, *model.deterministics, *model.rvs_to_values.values()])


def own_constants(variables: Iterable[Variable]) -> None:
    """Replace the arrays of constants in the graphs of variables by copies, unless they are copies already."""
    for each in _constants(list(variables), set()):
        if (isinstance(each.data, np.ndarray) or issparse(each.data)) and not getattr(each.tag, _OWN, False):
            former, each.data = each.data, each.data.copy()
            renew_note(each, former)
            setattr(each.tag, _OWN, True)


def _constants(variables: list[Variable], seen: set[int]) -> Iterator[Constant]:
    """Yield the constants in the graphs of variables, inner graphs included."""
    for each in ancestors(variables):
        if isinstance(each, Constant):
            yield each
        elif each.owner is not None and isinstance(each.owner.op, OpFromGraph) and id(each.owner.op) not in seen:
            seen.add(id(each.owner.op))
            yield from _constants(each.owner.op.inner_outputs, seen)
