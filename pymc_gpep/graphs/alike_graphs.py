"""Graphs of the same structure: rewritten once in a process, with arrays as variables, or stacked.

Rewriting takes nine tenths of the time in which a function is made. Models of one kind have graphs of one structure,
for any data. Examples are folds of a cross-validation, and fits of one model by several methods.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.mode import Mode
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable, equal_computations
from pytensor.graph.op import HasInnerGraph, Op
from pytensor.graph.replace import graph_replace, vectorize_graph
from pytensor.graph.rewriting.basic import SequentialGraphRewriter
from pytensor.graph.traversal import ancestors, io_toposort
from pytensor.scalar.basic import ScalarConstant
from pytensor.sparse.variable import SparseVariable
from pytensor.tensor.basic import Alloc, Eye, MakeVector, TensorFromScalar
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.shape import SpecifyShape
from pytensor.tensor.subtensor import Subtensor
from pytensor.tensor.type import TensorType
from pytensor.tensor.variable import TensorConstant, TensorVariable
from scipy.sparse import issparse

_MOST_GRAPHS, _MOST_BYTES = 128, 200_000  # that are kept, and of the constants of each
_NO_REWRITES = SequentialGraphRewriter()  # a mode of PyTensor's that names none has those that its linker needs


class _Structure(NamedTuple):
    """Common part of graphs that are alike."""

    key: Any
    """Operations, types and constants, which can be compared and hashed."""
    leaves: list[Variable]
    """Inputs, and then shared variables in the order in which they are met."""
    ops: list[Op]
    """Operation of each node that another may stand in for, in the order in which they are met."""


class _Rewritten(NamedTuple):
    """A graph after rewriting, of leaves that hold no values."""

    leaves: list[Variable]
    outputs: list[Variable]
    ops: list[Op]


_kept: OrderedDict[Any, _Rewritten] = OrderedDict()
_one_at_a_time = Lock()


def rewritten_once(make: Callable[[], Any], inputs: Sequence[Variable], outputs: Any, mode: Mode, *how: Any) -> Any:
    """Return a function of a graph, by the rewritten graph of one that is alike where there is one.

    An operation may have an attribute `stands_for`, with all that rewriting depends on besides types. Operations with
    the same one take each other's place.

    Parameters
    ----------
    make : function
        Function that rewrites the graph, and makes the function. That may have further outputs, which are made of
        `outputs` alone.
    inputs : sequence of Variable
    outputs : sequence of Variable or Variable
    mode : Mode
        Mode that the graph is rewritten and linked by. Where it changes, so does its query of rewrites.
    *how : hashable
        Further values that rewriting depends on.

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
        with _one_at_a_time:
            _kept[structure.key] = rewritten
            while len(_kept) > _MOST_GRAPHS:
                _kept.popitem(last=False)
    return made


def _structure(inputs: Sequence[Variable], outputs: Sequence[Variable], how: tuple[Any, ...]) -> _Structure | None:
    """Structure of a graph; None where it draws random numbers, is large, or has what cannot be compared.

    Graphs within it that hold arrays are not compared either.
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
    """Whether a graph within the graph has an array, which its owner may change in place."""
    for each in ancestors(op.inner_outputs):
        if isinstance(each, Constant) and any(array.ndim for array in _arrays(each.data)):
            return True
        within = None if each.owner is None else each.owner.op
        if isinstance(within, HasInnerGraph) and _holds_arrays(within):
            return True
    return False


def _arrays(data: Any) -> list[Any]:
    """Arrays that a constant holds."""
    if issparse(data):
        return [data.data, data.indices, data.indptr]
    return [data] if isinstance(data, np.ndarray) else []


def _value(constant: Constant, arrays: Sequence[Any]) -> Any:
    """Part of a key that tells constants apart.

    Arrays are copied: the caller may change them in place. PyTensor's signatures hold them as they are, and take sparse
    matrices for equal that differ by a millionth.
    """
    if not arrays:
        return constant.signature()
    return constant.type, constant.data.shape, *((each.dtype.str, each.tobytes()) for each in arrays)


def _without_values(made: Any, structure: _Structure) -> _Rewritten | None:
    """Return the rewritten graph of a function, with leaves of its own.

    None where the function has updates, or where rewriting computed what another operation would compute otherwise.
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
    """Outputs of the same graph of other leaves, with other operations and constants in the place of those given."""
    now: dict[Variable, Variable] = {**(constants or {}), **dict(zip(graph.leaves, leaves, strict=True))}
    op_now = dict(zip(graph.ops, ops, strict=True))
    for node in io_toposort(graph.leaves, graph.outputs):
        op: Any = op_now.get(node.op, node.op) if op_now else node.op
        copied: Apply = Apply(op, [now.get(each, each) for each in node.inputs], [each.type() for each in node.outputs])
        now.update(zip(node.outputs, copied.outputs, strict=True))
    return [now.get(each, each) for each in graph.outputs]


# Most numbers of an array, or of an axis, that stay part of the graph.
_LARGEST = 16


def arrays_as_shared(outputs: Sequence[Variable]) -> list[Any]:
    """Replace arrays that are constants of a graph, and lengths of axes, by shared variables with the same values.

    A function that was rewritten or compiled with a constant serves no other data, and takes longer to make than a fit.
    Without the arrays it serves the next data set: a fold, a bootstrap sample. The number of its rows may be another
    one, since axes of more than a few numbers have no length in the graph. Sparse matrices stay constants.
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
            if number.type.dtype == "int64" and number.data > _LARGEST:  # a slope has such lengths
                now[node.outputs[0]] = length(number.data)
            continue
        lengths = range(*_lengths(node).indices(len(node.inputs)))
        inputs = [shared(each, i in lengths) for i, each in enumerate(node.inputs)]
        if any(new is not old for new, old in zip(inputs, node.inputs, strict=True)):
            copied: Apply = Apply(node.op, inputs, [_without_lengths(each.type)() for each in node.outputs])
            now.update(zip(node.outputs, copied.outputs, strict=True))
    return [shared(each, False) for each in outputs]


def _lengths(node: Apply) -> slice:
    """Return the inputs of an operation that are lengths of axes, or whole numbers which serve as well as shared."""
    op = node.op
    if isinstance(op, Alloc | SpecifyShape):
        return slice(1, None)  # the first is what is repeated, or has the shape
    if isinstance(op, Eye):
        return slice(2)  # the third is a diagonal
    if isinstance(op, MakeVector) and op.dtype == "int64":
        return slice(None)
    return slice(0)


@lru_cache(1000)
def _without_lengths(kind: Any) -> Any:
    """Return the type of arrays whose axes may have any length where it has more than a few numbers."""
    if not isinstance(kind, TensorType):
        return kind
    return kind.clone(shape=tuple(None if s is not None and s > _LARGEST else s for s in kind.shape))


def stacked(
    graphs: Sequence[Sequence[TensorVariable]], along: Mapping[Variable, TensorVariable]
) -> list[TensorVariable]:
    """Each of the outputs of c graphs as one variable with a leading axis (c, ...).

    Where the graphs are the same expressions of other variables or constants, an expression is made once, of these
    stacked; else there are c expressions.

    Parameters
    ----------
    graphs : sequence of sequence of TensorVariable
        The same outputs of each graph.
    along : dict
        Variables of all graphs → what takes their place in each, (c, ...).
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
    """Variables of the first graph → what is in their place in the others; None where the graphs are not alike.

    What is replaced in all of them is `along`.
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
    # What is replaced must not be part of what all have in common, nor depend on what is replaced as well.
    for first in found:
        below = set(ancestors([first]))
        if along & below or any(first in ancestors([each]) for each in same):
            return None
    return found


def _stack(leaves: Sequence[TensorVariable]) -> TensorVariable:
    """Leaves as one variable, at once where they are elements of one vector."""
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
