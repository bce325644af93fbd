"""Functions of graphs that are alike in structure, which are rewritten once in a process.

Rewriting takes nine tenths of the time in which a function is made. Models of one kind have graphs of one structure,
whatever their data. Examples are folds of a cross-validation, and fits of one model by several methods.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import pytensor
from pytensor.compile.mode import Mode
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import HasInnerGraph, Op
from pytensor.graph.rewriting.basic import SequentialGraphRewriter
from pytensor.graph.traversal import ancestors, io_toposort
from pytensor.tensor.random.type import RandomType
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
