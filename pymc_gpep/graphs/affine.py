"""The proof that a variable of a graph is affine in other variables, operation by operation.

A derivative that looks constant proves nothing: `abs`, `switch` and saturated links have one almost everywhere.
"""

from collections.abc import Iterable, Mapping
from functools import singledispatch

from pytensor.compile.builders import OpFromGraph
from pytensor.compile.ops import ViewOp
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.graph.traversal import ancestors
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
from pytensor.tensor.subtensor import AdvancedIncSubtensor, AdvancedSubtensor, IncSubtensor, Subtensor


def is_elementwise(variable: Variable, scalar_op: type) -> bool:
    """Whether a variable is what an elementwise operation made, such as `pytensor.scalar.basic.Add`."""
    node = variable.owner
    return node is not None and isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, scalar_op)


type Sources = frozenset[Variable]

_NOTHING: Sources = frozenset()


class NotAffineError(Exception):
    """An operation is not affine in the sources.

    Attributes
    ----------
    node : Apply
        The operation.
    sides : list of frozenset of Variable
        It is affine once all sources but those of one of these are held fixed; with one side, once these are.
    """

    def __init__(self, node: Apply, sides: Iterable[Sources]) -> None:
        self.node = node
        self.sides = list(dict.fromkeys(sides))
        super().__init__(f"{node.op} is not affine in {[v.name for side in self.sides for v in side]}.")


class Affinity:
    """The variables behind others, and the proof that these are affine in them.

    Parameters
    ----------
    sources : frozenset of Variable
        The variables in which others are to be affine. A graph is not followed beyond one.
    known : mapping, optional
        Variables → the sources that they are known to depend on.
    """

    def __init__(self, sources: frozenset[Variable], known: Mapping[Variable, Sources] | None = None) -> None:
        self.sources = sources
        self._known: dict[Variable, Sources] = dict(known or {})

    def behind(self, variable: Variable) -> Sources:
        """Return the sources whose values, not only whose shapes, a variable depends on.

        Raises
        ------
        NotAffineError
            If it is not affine in them.
        """
        pending = [variable]
        while pending:
            last = pending[-1]
            if last in self._known:
                pending.pop()
            elif last in self.sources:
                self._known[last] = frozenset([last])
            elif last.owner is None:
                self._known[last] = _NOTHING
            elif missing := [v for v in last.owner.inputs if v not in self._known]:
                pending.extend(missing)
            else:
                given = [self._known[v] for v in last.owner.inputs]
                self._known[last] = _through(last.owner.op, last.owner, given) if any(given) else _NOTHING
        return self._known[variable]

    def reached(self, variables: Iterable[Variable]) -> Sources:
        """Return the sources behind any of some variables, affine or not."""
        return self.sources.intersection(ancestors(list(variables), blockers=self.sources))


def _union(given: Iterable[Sources]) -> Sources:
    return _NOTHING.union(*given)


def _linear_in(node: Apply, given: list[Sources], *places: int) -> Sources:
    """Return the sources of operations that are linear in some inputs together, with all others free of sources."""
    others = _union(each for i, each in enumerate(given) if i not in places)
    here = _union(given[i] for i in places)
    if others:
        raise NotAffineError(node, [here, others] if here and not here & others else [here | others])
    return here


def _one_factor(node: Apply, given: list[Sources]) -> Sources:
    """Return the sources of operations that are linear in each input: one alone may depend on sources."""
    sides = [each for each in given if each]
    if len(sides) < 2:
        return sides[0]
    if any(a & b for i, a in enumerate(sides) for b in sides[i + 1 :]):
        raise NotAffineError(node, [_union(sides)])
    raise NotAffineError(node, sides)


@singledispatch
def _through(op: Op, node: Apply, given: list[Sources]) -> Sources:
    """Return what an output depends on, from what each input does, some input of it on sources."""
    raise NotAffineError(node, [_union(given)])


@_through.register(Shape)
@_through.register(Shape_i)
def _(op: Op, node: Apply, given: list[Sources]) -> Sources:
    return _NOTHING


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
