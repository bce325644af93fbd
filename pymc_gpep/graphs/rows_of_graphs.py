"""Graphs of values over the points of the data, rebuilt as graphs of the same values over other points.

The prior covariance of a model is a graph of the inputs X. Its two axes run over the points. For a block of this
matrix, the walk goes from the result to the data. At each operation, the axes of the result over rows and over columns
determine these axes of its inputs. The walk ends at X: it is replaced by the inputs of the rows, or of the columns. No
intermediate array has more points than the block. A part of the graph without an axis over points does not change. Such
a part must not be computed from data over points.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from functools import singledispatch
from typing import Any, Protocol, cast

import pytensor.tensor as pt
from pytensor.compile.ops import ViewOp
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import Op
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import Second
from pytensor.tensor.basic import Alloc, AllocDiag, Eye, Join, get_underlying_scalar_constant_value
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.exceptions import NotScalarConstantError
from pytensor.tensor.math import Dot
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor, indices_from_subtensor
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.graphs.alike_graphs import is_bitwise, reduced, whole


class Role(Enum):
    """The points that an axis of a variable runs over."""

    ROWS = 0
    COLUMNS = 1


ROWS, COLUMNS = Role.ROWS, Role.COLUMNS

type Roles = tuple[Role | None, ...]
"""Role of each axis of a variable; None for an axis that is not over points."""


class RowPoints(Protocol):
    """Replacements for data (n, ...) at the points of the rows, or of the columns."""

    def __call__(self, data: Variable, role: Role) -> TensorVariable:
        """Return the data at the points of this role."""

    def holds(self, variable: Variable) -> bool:
        """Return whether a variable is data over points."""


class CannotSplitError(Exception):
    """The graph cannot be rebuilt over other points. The message states why, for example "has one point only"."""

    operation = ""  # Name of an operation that cannot be rebuilt.


class MixedRowsError(CannotSplitError):
    """The graph contains a number that is computed from all points together.

    Parameters
    ----------
    source : Variable
        Data over points.
    number : Variable
        The number, or a function of it.
    """

    def __init__(self, source: Variable, number: Variable) -> None:
        super().__init__(f"uses a number that is computed from all points of {named(source)}")
        self.source, self.number = source, number


class Walk:
    """Function that rebuilds variables over other points.

    Parameters
    ----------
    points : RowPoints
    lengths : dict of Role to variable
        Numbers of rows and of columns.
    same : TensorVariable, shape (rows, columns)
        Matrix with 1 where row and column are the same point, else 0.
    stop : collection of Variable
        Random variables of the model. Their graphs are not read.
    """

    def __init__(
        self,
        points: RowPoints,
        lengths: Mapping[Role, TensorVariable],
        same: TensorVariable,
        stop: Sequence[Variable] = (),
    ) -> None:
        self._points = points
        self.lengths = lengths
        self.same = same
        self._stop = set(stop)
        self._made: dict[tuple[Variable, Roles], TensorVariable] = {}

    def __call__(self, variable: Variable, roles: Sequence[Role | None]) -> TensorVariable:
        """Return a graph of the variable, with the axes given by `roles` over other points.

        Raises
        ------
        CannotSplitError
            If the variable cannot be rebuilt.
        """
        key = variable, tuple(roles)
        if key not in self._made:
            self._made[key] = self._make(cast(TensorVariable, variable), key[1])
        return self._made[key]

    def _make(self, variable: TensorVariable, roles: Roles) -> TensorVariable:
        if not any(roles):
            return self._unchanged(variable)
        if variable in self._stop:
            raise CannotSplitError(f"depends on {variable.name!r}, a random variable with a value for each point")
        if any(role and one for role, one in zip(roles, variable.type.broadcastable, strict=True)):
            raise CannotSplitError("has one point only")
        if variable.owner is None:
            if roles[0] is None or any(roles[1:]):
                raise CannotSplitError(f"uses {named(variable)}, but not with points along the first axis")
            return self._points(variable, roles[0])
        made = through(variable.owner.op, variable.owner, roles, self)
        if made is None:
            error = CannotSplitError(
                f"uses the operation {(name := _operation(variable.owner.op))}, which cannot be read"
            )
            error.operation = name
            raise error
        return made

    def _unchanged(self, variable: TensorVariable) -> TensorVariable:
        """Return a variable that has no axis over points.

        It may be computed from the number of points, but not from data over points.
        """
        shapes = {v for v in ancestors([variable]) if v.owner is not None and isinstance(v.owner.op, Shape | Shape_i)}
        for source in ancestors([variable], blockers=self._stop | shapes):
            if self._points.holds(source):
                raise MixedRowsError(source, variable)
        return variable


class Leaves:
    """Replacements (`RowPoints`) for a first walk. They record the data that the walk finds."""

    def __init__(self) -> None:
        self.found: dict[Variable, None] = {}

    def __call__(self, data: Variable, role: Role) -> TensorVariable:
        """Return the data unchanged."""
        self.found[data] = None
        return cast(TensorVariable, data)

    def holds(self, variable: Variable) -> bool:
        """Return False: no variable counts as data over points."""
        return False


@singledispatch
def through(op: Op, node: Apply, roles: Roles, walk: Walk) -> TensorVariable | None:
    """Return the result of an operation over other points; None if the operation has no rule."""
    return None


@through.register
def _(op: ViewOp, node: Apply, roles: Roles, walk: Walk) -> TensorVariable:
    return walk(node.inputs[0], roles)


@through.register
def _(op: Elemwise, node: Apply, roles: Roles, walk: Walk) -> TensorVariable | None:
    if len(node.outputs) > 1:
        return None
    if isinstance(op.scalar_op, Second):
        return _filled(node, roles, walk)
    made = [walk(operand, _where_long(operand, roles)) for operand in node.inputs]
    if is_bitwise(node):
        made = [whole(each, operand.type.dtype) for each, operand in zip(made, node.inputs, strict=True)]
    return op(*made)


def _filled(node: Apply, roles: Roles, walk: Walk) -> TensorVariable:
    """Return the values of `Second(a, b)`: b broadcast to the shape of a."""
    shape_of, values = node.inputs
    made = walk(values, _where_long(values, roles))
    shape = [
        walk.lengths[role] if role else (shape_of if one else made).shape[axis]
        for axis, (role, one) in enumerate(zip(roles, values.type.broadcastable, strict=True))
    ]
    return pt.alloc(made, *shape)


@through.register
def _(op: Alloc, node: Apply, roles: Roles, walk: Walk) -> TensorVariable:
    value, *shape = node.inputs
    new = [walk.lengths[role] if role else size for role, size in zip(roles, shape, strict=True)]
    return pt.alloc(walk(value, _where_long(value, roles[len(roles) - value.type.ndim :])), *new)


@through.register
def _(op: DimShuffle, node: Apply, roles: Roles, walk: Walk) -> TensorVariable:
    (source,) = node.inputs
    inner: list[Role | None] = [None] * source.type.ndim
    for axis, role in zip(op.new_order, roles, strict=True):
        if axis != "x":
            inner[axis] = role
    return walk(source, inner).dimshuffle(op.new_order)


@through.register
def _(op: Dot, node: Apply, roles: Roles, walk: Walk) -> TensorVariable:
    left, right = node.inputs
    return op(walk(left, (roles[0], None)), walk(right, (None, roles[1])))


@through.register
def _(op: Blockwise, node: Apply, roles: Roles, walk: Walk) -> TensorVariable | None:
    core = len(op.outputs_sig[0])
    batch, own = roles[: len(roles) - core], roles[len(roles) - core :]
    inner: list[Roles] = [(None,) * len(signature) for signature in op.inputs_sig]
    if any(own):
        if not isinstance(op.core_op, Dot):
            return None
        inner = [(own[0], None), (None, own[1])]
    return op(
        *(walk(operand, (*_where_long(operand, batch), *of)) for operand, of in zip(node.inputs, inner, strict=True))
    )


@through.register
def _(op: CAReduce, node: Apply, roles: Roles, walk: Walk) -> TensorVariable:
    (source,) = node.inputs
    left = iter(roles)
    axes = range(source.type.ndim) if op.axis is None else op.axis
    return reduced(op, walk(source, [None if axis in axes else next(left) for axis in range(source.type.ndim)]))


@through.register
def _(op: Reshape, node: Apply, roles: Roles, walk: Walk) -> TensorVariable | None:
    """Rebuild a reshape of a vector to a column or a row, or back."""
    source = node.inputs[0]
    (before, after) = (_long(variable) for variable in (source, node.outputs[0]))
    if len(before) != 1 or len(after) != 1:
        return None
    inner: list[Role | None] = [None] * source.type.ndim
    inner[before[0]] = roles[after[0]]
    order: list[Any] = ["x"] * len(roles)
    order[after[0]] = before[0]
    return walk(source, inner).dimshuffle(order)


@through.register
def _(op: SpecifyShape, node: Apply, roles: Roles, walk: Walk) -> TensorVariable:
    return walk(node.inputs[0], roles)


@through.register
def _(op: Join, node: Apply, roles: Roles, walk: Walk) -> TensorVariable | None:
    return None if roles[op.axis] else op(*(walk(part, roles) for part in node.inputs))


@through.register(Subtensor)
@through.register(AdvancedSubtensor)
def _(op: Subtensor | AdvancedSubtensor, node: Apply, roles: Roles, walk: Walk) -> TensorVariable | None:
    """Rebuild a selection along axes that are not over points, or of entries of a table by indices over points."""
    source, *tensors = node.inputs
    indices = list(indices_from_subtensor(tensors, op.idx_list))
    arrays = [index for index in indices if isinstance(index, Variable) and index.type.ndim]
    if len(arrays) > 1:
        if len(arrays) != len(indices) or len(arrays) != source.type.ndim:
            return None
        width = max(index.type.ndim for index in arrays)
        if any(index.type.ndim != width for index in arrays):
            return None
        try:
            table = walk(source, [None] * source.type.ndim)
        except MixedRowsError:
            return None  # The table may have a different row of entries for each point.
        return table[tuple(whole(walk(index, _where_long(index, roles)), index.type.dtype) for index in arrays)]
    left = list(roles)
    inner: list[Role | None] = []
    new: list[Any] = []
    for index in [*indices, *[slice(None)] * (source.type.ndim - len(indices))]:
        if isinstance(index, slice):
            role = left.pop(0)
            if role and index != slice(None):
                return None
            inner.append(role)
            new.append(index)
        else:
            inner.append(None)
            taken = index.type.ndim if isinstance(index, Variable) else 0
            of_index, left = left[:taken], left[taken:]
            new.append(whole(walk(index, of_index), index.type.dtype) if taken else index)
    return walk(source, inner)[tuple(new)]


@through.register
def _(op: Eye, node: Apply, roles: Roles, walk: Walk) -> TensorVariable | None:
    return _where_same(roles, walk).astype(op.dtype) if _constant(node.inputs[2]) == 0 and all(roles) else None


@through.register
def _(op: AllocDiag, node: Apply, roles: Roles, walk: Walk) -> TensorVariable | None:
    if op.offset or (op.axis1, op.axis2) != (0, 1) or len(roles) != 2 or not all(roles):
        return None
    return walk(node.inputs[0], roles[:1])[:, None] * _where_same(roles, walk)


def _where_same(roles: Roles, walk: Walk) -> TensorVariable:
    if roles[0] is roles[1]:
        raise CannotSplitError("has a diagonal matrix within its rows")
    return walk.same if roles[0] is ROWS else walk.same.T


def _where_long(operand: Variable, roles: Sequence[Role | None]) -> Roles:
    """Return the roles of the first axes of an operand. Axes of length 1 have no role: they broadcast."""
    return tuple(None if one else role for role, one in zip(roles, operand.type.broadcastable, strict=False))


def _long(variable: Variable) -> list[int]:
    return [axis for axis, one in enumerate(variable.type.broadcastable) if not one]


def _constant(variable: Variable) -> float | None:
    try:
        return float(get_underlying_scalar_constant_value(variable))
    except NotScalarConstantError:
        return None


def _operation(op: Op) -> str:
    return type(getattr(op, "core_op", op)).__name__


def named(variable: Variable) -> str:
    """Return the name of data for a message."""
    if variable.name:
        return repr(variable.name)
    kind = "a constant" if isinstance(variable, Constant) else "a variable without a name"
    return f"{kind} of shape {variable.type.shape}"
