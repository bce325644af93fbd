"""Proof that a variable of a graph is affine in other variables, from the operations of the graph.

A derivative that looks constant proves nothing: derivatives of `abs`, `switch` and saturated links are mostly constant.

`Lifted` moves selections and changes of shape inside elementwise functions: `exp(a)[index]` becomes `exp(a[index])`. So
the reader finds the argument of a link at the rows of the data. Several axes over rows become one.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, singledispatch
from typing import Any, cast

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.ops import ViewOp
from pytensor.graph.basic import Apply, Constant, Variable, equal_computations
from pytensor.graph.op import Op
from pytensor.graph.traversal import ancestors, graph_inputs
from pytensor.raise_op import CheckAndRaise
from pytensor.scalar.basic import Add, Cast, Identity, Mul, Neg, Second, Sub, Switch, TrueDiv
from pytensor.sparse.basic import SparseFromDense
from pytensor.sparse.math import Dot as SparseDot
from pytensor.sparse.math import StructuredDot
from pytensor.tensor.basic import Alloc, Join, MakeVector, ScalarFromTensor, Split, TensorFromScalar
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.extra_ops import CumOp, Repeat
from pytensor.tensor.linalg.products import KroneckerProduct
from pytensor.tensor.linalg.solvers.core import SolveBase
from pytensor.tensor.math import Dot
from pytensor.tensor.reshape import JoinDims, SplitDims
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape
from pytensor.tensor.special import Softmax
from pytensor.tensor.subtensor import (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    IncSubtensor,
    Subtensor,
    indices_from_subtensor,
)
from pytensor.tensor.variable import TensorVariable


def is_elementwise(variable: Variable, scalar_op: type) -> bool:
    """Return whether a variable is the result of this elementwise operation, such as `pytensor.scalar.basic.Add`."""
    node = variable.owner
    return node is not None and isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, scalar_op)


type Sources = frozenset[Variable]

_NOTHING: Sources = frozenset()


class NotAffineError(Exception):
    """An operation is not affine in the sources that it depends on.

    Attributes
    ----------
    node : Apply
        The operation.
    sides : list of frozenset of Variable
        Groups of sources. With several groups, the operation is affine in the first group if all other groups are
        fixed. With a single group, it may be non-affine even if part of the group is fixed.
    """

    def __init__(self, node: Apply, sides: Iterable[Sources]) -> None:
        self.node = node
        self.sides = list(dict.fromkeys(sides))
        super().__init__(f"{node.op} is not affine in {[v.name for side in self.sides for v in side]}.")


class Affinity:
    """Proof that variables of a graph are affine in some sources, and the sources of each variable.

    Parameters
    ----------
    sources : frozenset of Variable
        Variables in which the graphs should be affine. The graphs of the sources are not read.
    known : mapping, optional
        Sources of variables, if computed before.
    """

    def __init__(self, sources: frozenset[Variable], known: Mapping[Variable, Sources] | None = None) -> None:
        self.sources = sources
        self._known: dict[Variable, Sources] = dict(known or {})

    def behind(self, variable: Variable) -> Sources:
        """Return the sources that a variable depends on by their values, and not only by their shapes.

        Raises
        ------
        NotAffineError
            If the variable is not affine in its sources.
        """
        pending = [variable]
        while pending:
            last = pending[-1]
            if last in self._known:
                pending.pop()
            elif last in self.sources:
                self._known[last] = frozenset([last])
            elif last.owner is None or isinstance(last.owner.op, Shape | Shape_i):
                self._known[last] = _NOTHING  # Shapes do not depend on the values of sources.
            elif missing := [v for v in last.owner.inputs if v not in self._known]:
                pending.extend(missing)
            else:
                given = [self._known[v] for v in last.owner.inputs]
                self._known[last] = _through(last.owner.op, last.owner, given) if any(given) else _NOTHING
        return self._known[variable]

    def reached(self, variables: Iterable[Variable]) -> Sources:
        """Return the sources that variables depend on, whether affinely or not."""
        return self.sources.intersection(ancestors(list(variables), blockers=self.sources))


def _union(given: Iterable[Sources]) -> Sources:
    return _NOTHING.union(*given)


def _linear_in(node: Apply, given: list[Sources], *places: int) -> Sources:
    """Return the sources of an operation that is linear in the inputs at `places` if other inputs are fixed."""
    others = _union(each for i, each in enumerate(given) if i not in places)
    here = _union(given[i] for i in places)
    if others:
        raise NotAffineError(node, [here, others] if here and not here & others else [here | others])
    return here


def _one_factor(node: Apply, given: list[Sources]) -> Sources:
    """Return the sources of a product. At most one of its factors may depend on sources."""
    sides = [each for each in given if each]
    if len(sides) < 2:
        return sides[0]
    if any(a & b for i, a in enumerate(sides) for b in sides[i + 1 :]):
        raise NotAffineError(node, [_union(sides)])
    raise NotAffineError(node, sides)


@singledispatch
def _through(op: Op, node: Apply, given: list[Sources]) -> Sources:
    """Return the sources of the result of an operation, from the sources of each of its inputs."""
    raise NotAffineError(node, [_union(given)])


@_through.register(DimShuffle)
@_through.register(Reshape)
@_through.register(SplitDims)
@_through.register(JoinDims)
@_through.register(SpecifyShape)
@_through.register(ViewOp)
@_through.register(Subtensor)
@_through.register(AdvancedSubtensor)
@_through.register(CumOp)
@_through.register(Alloc)
@_through.register(Repeat)
@_through.register(ScalarFromTensor)
@_through.register(TensorFromScalar)
@_through.register(SparseFromDense)
def _(op: Op, node: Apply, given: list[Sources]) -> Sources:
    if isinstance(op, CumOp) and op.mode != "add":
        raise NotAffineError(node, [_union(given)])
    return _linear_in(node, given, 0)


@_through.register(IncSubtensor)
@_through.register(AdvancedIncSubtensor)
def _(op: Op, node: Apply, given: list[Sources]) -> Sources:
    return _linear_in(node, given, 0, 1)


@_through.register
def _(op: CAReduce, node: Apply, given: list[Sources]) -> Sources:
    if not isinstance(op.scalar_op, Add):
        raise NotAffineError(node, [_union(given)])
    return given[0]


@_through.register(Join)
@_through.register(MakeVector)
def _(op: Op, node: Apply, given: list[Sources]) -> Sources:
    return _union(given)


@_through.register(Split)
def _(op: Op, node: Apply, given: list[Sources]) -> Sources:
    return _linear_in(node, given, 0)


@_through.register(Dot)
@_through.register(KroneckerProduct)
@_through.register(StructuredDot)
@_through.register(SparseDot)
def _(op: Op, node: Apply, given: list[Sources]) -> Sources:
    return _one_factor(node, given)


@_through.register
def _(op: SolveBase, node: Apply, given: list[Sources]) -> Sources:
    return _linear_in(node, given, 1)


@_through.register
def _(op: Blockwise, node: Apply, given: list[Sources]) -> Sources:
    return _through(op.core_op, node, given)


@_through.register
def _(op: OpFromGraph, node: Apply, given: list[Sources]) -> Sources:
    inside = Affinity(_NOTHING, dict(zip(op.inner_inputs, given, strict=True)))
    return _union(inside.behind(each) for each in op.inner_outputs)


@_through.register
def _(op: Elemwise, node: Apply, given: list[Sources]) -> Sources:
    match op.scalar_op:
        case Add() | Sub() | Neg() | Identity():
            return _union(given)
        case Cast() if node.outputs[0].dtype.startswith("float"):
            return given[0]
        case Second():
            return given[1]
        case Mul():
            return _one_factor(node, given)
        case TrueDiv():
            return _linear_in(node, given, 0)
        case Switch():
            return _linear_in(node, given, 1, 2)
    raise NotAffineError(node, [_union(given)])


_MOVES = (DimShuffle, Reshape, JoinDims, SplitDims, SpecifyShape, Subtensor, AdvancedSubtensor, Alloc, Repeat)
"""Operations that rearrange, select or repeat entries of their first input."""


class Lifted:
    """Graphs in which selections and changes of shape are moved inside functions that are not affine in the sources.

    Parameters
    ----------
    sources : frozenset of Variable
        Variables of the graphs. Affine functions of these do not change.
    shape_of : callable
        Function that returns the lengths of the axes of a variable, with None for an unknown length.
    """

    def __init__(
        self, sources: frozenset[Variable], shape_of: Callable[[TensorVariable], Sequence[int | None]]
    ) -> None:
        self._shape_of = shape_of
        self._sources, self._affinity = sources, Affinity(sources)
        self._made: dict[Variable, Variable] = {}
        self._rows: dict[tuple[Variable, int, int], TensorVariable] = {}
        self._moved: dict[tuple[Op, Variable], list[tuple[list[Variable], TensorVariable]]] = {}

    def __call__(self, variable: TensorVariable) -> TensorVariable:
        """Return a graph with the same values; the variable itself if nothing can be moved."""
        if variable not in self._made:
            self._made[variable] = self._lift(variable)
        return cast(TensorVariable, self._made[variable])

    def affine(self, variable: Variable) -> bool:
        """Return whether a variable is affine in the sources, or independent of them."""
        try:
            self._affinity.behind(variable)
        except NotAffineError:
            return False
        return True

    def _lift(self, variable: TensorVariable) -> TensorVariable:
        node = variable.owner
        if node is None or self.affine(variable):
            return variable
        if isinstance(node.op, _MOVES):
            first = self(node.inputs[0])
            source = _bare(first)
            one = all(source.type.broadcastable)  # A single number may have axes of length 1.
            if not one and isinstance(source.owner and source.owner.op, Elemwise) and len(source.owner.outputs) == 1:
                return self._behind(source, node, variable.ndim)
            return variable if first is node.inputs[0] else self._move(node, first)
        if isinstance(node.op, Dot) and node.inputs[0].type.shape[-1] == 1 and variable.ndim == 2:
            return self(cast(TensorVariable, pt.mul(*node.inputs)))  # an outer product
        if (
            not isinstance(node.op, Elemwise | ViewOp | CheckAndRaise | Join | MakeVector | Softmax)
            or len(node.outputs) > 1
        ):
            return variable
        made = [self(cast(TensorVariable, each)) for each in node.inputs]
        if isinstance(node.op, Join | MakeVector) and (joined := self._joined(node, made)) is not None:
            return joined
        if all(new is old for new, old in zip(made, node.inputs, strict=True)):
            return variable
        return made[0] if isinstance(node.op, ViewOp) else cast(TensorVariable, node.op(*made))

    def softmax(self, variable: TensorVariable) -> TensorVariable:
        """Return the graph softmax(x[rows]) for softmax(x)[rows]; the variable itself for other graphs."""
        node = variable.owner
        if node is None or not isinstance(node.op, Subtensor | AdvancedSubtensor):
            return variable
        source = _bare(cast(TensorVariable, node.inputs[0]))
        op, last = source.owner and source.owner.op, source.ndim - 1
        whole = isinstance(op, Softmax) and op.axis in {(last,), (-1,)} and len(node.op.idx_list) <= last
        if not whole or variable.ndim != source.ndim:
            return variable
        return cast(TensorVariable, op(self._move(node, cast(TensorVariable, source.owner.inputs[0]))))

    def _inside(self, variable: TensorVariable) -> TensorVariable:
        """Lift an operand of a moved function. Selections also move inside functions such as −x and 2 x."""
        node = variable.owner
        if node is None or not isinstance(node.op, _MOVES) or not self.affine(variable):
            return self(variable)
        if not self._of_one(node.inputs[0]):
            return variable
        source = _bare(cast(TensorVariable, node.inputs[0]))
        return self._behind(source, node, variable.ndim)

    def _of_one(self, variable: Variable) -> bool:
        """Return whether a variable is an elementwise function of one variable and constants, such as −x or 2 x."""
        node = variable.owner
        if node is None or variable in self._sources:
            return False
        if isinstance(node.op, ViewOp | CheckAndRaise):
            return self._of_one(node.inputs[0])
        if not isinstance(node.op, Elemwise):
            return False
        return sum(any(not isinstance(leaf, Constant) for leaf in graph_inputs([each])) for each in node.inputs) == 1

    def _behind(self, source: TensorVariable, node: Apply, ndim: int) -> TensorVariable:
        """Return f(node(a), node(b)) for a selection or change of shape `node` of `source` = f(a, b)."""
        shape = self._shape_of(source)
        lengths = [source.shape[i] if length is None else length for i, length in enumerate(shape)]
        spread = [_moved(each, source, lengths, partial(self._move, node), ndim) for each in source.owner.inputs]
        return cast(TensorVariable, source.owner.op(*map(self._inside, spread)))

    def _move(self, node: Apply, source: TensorVariable) -> TensorVariable:
        """Apply the selection or change of shape `node` to `source`.

        Equal arguments return the same variable. So callers can compare results by `is`.
        """
        how, known = node.inputs[1:], self._moved.setdefault((node.op, source), [])
        for other, made in known:
            if equal_computations(how, other):
                return made
        own = cast(TensorVariable, node.op(source, *how))
        known.append((how, own))
        return own

    def _joined(self, node: Apply, parts: Sequence[TensorVariable]) -> TensorVariable | None:
        """Return f(join(a, b)) for join(f(a), f(b)); None for other inputs of the join."""
        bare = [_bare(each) for each in parts]
        nodes = [each.owner for each in bare]
        first, *others = nodes
        if first is None or not isinstance(first.op, Elemwise) or len(first.inputs) > 1 or not others:
            return None
        if any(each is None or each.op != first.op for each in others):
            return None
        inner = cast(TensorVariable, node.op(*(each.inputs[0] for each in nodes)))
        return cast(TensorVariable, first.op(self(inner)))

    def rows(self, variable: TensorVariable, shape: Sequence[Any], core: int = 0) -> TensorVariable:
        """Return a lifted graph with its axes over rows merged into one axis.

        Parameters
        ----------
        variable : TensorVariable
        shape : sequence
            Lengths of the axes of rows, to which the variable broadcasts.
        core : int
            Number of last axes of the variable that are not over rows.

        Returns
        -------
        TensorVariable
            Graph with rows in the first axis. This axis has length 1 if all rows have the same value.
        """
        key = variable, core, len(shape)  # Callers compare results by identity.
        if key not in self._rows:
            self._rows[key] = self._merged(variable, shape, core)
        return self._rows[key]

    def _merged(self, variable: TensorVariable, shape: Sequence[Any], core: int) -> TensorVariable:
        batch = variable.ndim - core
        if batch < len(shape):
            variable = variable.dimshuffle(*["x"] * (len(shape) - batch), *range(variable.ndim))
        batch = len(shape)
        if all(variable.type.broadcastable[:batch]):
            return cast(TensorVariable, variable.dimshuffle("x", *range(batch, variable.ndim)))
        found = self._through(variable, shape, core)
        if found is not None:
            return found
        variable = _full(variable, [*shape, *(variable.shape[i] for i in range(batch, variable.ndim))], batch)
        static = variable.type.shape[:batch]
        length = -1 if None in static else int(np.prod([int(each or 0) for each in static]))
        return cast(TensorVariable, variable.reshape((length, *_lengths(variable, range(batch, variable.ndim)))))

    def _through(self, variable: TensorVariable, shape: Sequence[Any], core: int) -> TensorVariable | None:
        """Return an operation applied to the merged rows of its inputs; None if it cannot be moved."""
        node, batch = variable.owner, len(shape)
        if node is None or (core == 0 and self.affine(variable) and not self._of_one(variable)):
            return None
        inputs = cast(list[TensorVariable], node.inputs)
        match node.op:
            case ViewOp() | CheckAndRaise():
                return self.rows(inputs[0], shape, core)
            case Elemwise() if len(node.outputs) == 1:
                return cast(TensorVariable, node.op(*(self.rows(each, shape, core) for each in inputs)))
            case Softmax(axis=axis) if axis is not None and min(axis) >= batch:
                inner = self.rows(inputs[0], shape, core)
                return cast(TensorVariable, pt.special.softmax(inner, axis=tuple(i - batch + 1 for i in axis)))
            case Join(axis=axis) if axis >= batch:
                parts = [self.rows(each, shape, core) for each in inputs]
                long = next(each for each in parts if not each.type.broadcastable[0])
                whole = [_full(each, [long.shape[0], *_lengths(each, range(1, each.ndim))], 1) for each in parts]
                return cast(TensorVariable, pt.concatenate(whole, axis=axis - batch + 1))
            case DimShuffle(new_order=order) if order[:batch] == tuple(range(batch)):
                rest = order[batch:]
                if len([i for i in rest if i != "x"]) != inputs[0].ndim - batch:
                    return None
                inner = self.rows(inputs[0], shape, inputs[0].ndim - batch)
                return cast(TensorVariable, inner.dimshuffle(0, *(i if i == "x" else i - batch + 1 for i in rest)))
            case Subtensor(idx_list=listed):
                index = list(indices_from_subtensor(inputs[1:], listed))
                index += [slice(None)] * (inputs[0].ndim - len(index))
                if index[:batch] == [slice(None)] * batch:
                    inner = self.rows(inputs[0], shape, inputs[0].ndim - batch)
                    return cast(TensorVariable, inner[(slice(None), *index[batch:])])
        return None


def _bare(variable: TensorVariable) -> TensorVariable:
    """Return a variable without views, such as a name in the model, and without checks of parameters."""
    while variable.owner is not None and isinstance(variable.owner.op, ViewOp | CheckAndRaise):
        variable = cast(TensorVariable, variable.owner.inputs[0])
    return variable


def _moved(
    operand: TensorVariable,
    like: TensorVariable,
    lengths: Sequence[Any],
    move: Callable[[TensorVariable], TensorVariable],
    ndim: int,
) -> TensorVariable:
    """Apply `move`, a selection or change of shape of the result `like` of an operation, to an operand."""
    if all(operand.type.broadcastable):
        return cast(TensorVariable, operand.dimshuffle().dimshuffle(*["x"] * ndim))
    if operand.type.broadcastable == like.type.broadcastable:
        return move(operand)
    return move(_full(operand, lengths, like.ndim))


def _lengths(variable: TensorVariable, axes: Sequence[int]) -> list[Any]:
    return [variable.shape[i] if variable.type.shape[i] is None else variable.type.shape[i] for i in axes]


def _full(variable: TensorVariable, lengths: Sequence[Any], axes: int) -> TensorVariable:
    """Return a variable broadcast to these lengths along its first axes."""
    if not any(variable.type.broadcastable[:axes]):
        return variable
    return cast(TensorVariable, pt.alloc(variable, *lengths))
