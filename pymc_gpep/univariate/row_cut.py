"""Graphs with one number for each row: proof that rows are independent, division into parts, and derivatives.

The graph is read from its result back to the arrays that vary, such as latent values and observations. A part of the
graph that does not depend on these arrays becomes an input with one number for each row.

For incomplete gamma and beta functions, PyTensor's derivatives in the shapes are loops over a series for each number.
These loops cannot be differentiated again. `row_derivatives` replaces them by finite differences.

`compiled_rows` turns a graph of elementwise operations into a sequence of NumPy calls. An average over latent values
calls a density about thirty times with few numbers, so that PyTensor's checks would take most of the time.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cache, reduce
from typing import Any, cast

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.ops import ViewOp
from pytensor.compile.rewriting import inline_ofg_node
from pytensor.gradient import NullTypeGradError
from pytensor.graph.basic import Apply, Constant, Variable, equal_computations
from pytensor.graph.replace import clone_replace
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors, explicit_graph_inputs
from pytensor.graph.utils import MethodNotDefined
from pytensor.raise_op import CheckAndRaise
from pytensor.scalar.basic import Switch
from pytensor.scalar.loop import ScalarLoop
from pytensor.scalar.math import Log1mexp
from pytensor.tensor.basic import Alloc, Join, MakeVector, ScalarFromTensor, TensorFromScalar
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.math import All
from pytensor.tensor.shape import Shape, Shape_i, SpecifyShape
from pytensor.tensor.special import LogSumExp
from pytensor.tensor.subtensor import Subtensor, get_idx_list
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.graphs.interpreted import Ufunc, interpreted

_MOST = 64  # Largest number of entries that a part has in each row, such as weights of a mixture.


class RowsMixedError(Exception):
    """An operation makes a row depend on other rows, or may do so.

    Attributes
    ----------
    node : Apply
        The operation.
    """

    def __init__(self, node: Apply) -> None:
        self.node = node
        super().__init__(f"{node.op} is not elementwise.")


class RowCut:
    """Graphs divided into parts that depend on moving arrays, and parts that become inputs.

    Parameters
    ----------
    moving : dict of TensorVariable to TensorVariable
        Arrays of the graph that vary, with one number for each row, or one for all rows → vectors that replace them.
    length_of : callable
        Function that returns the length of an axis of a part. The length must be the same for all data.

    Attributes
    ----------
    parts : list of TensorVariable
        Parts that became inputs: a number for all rows, or a vector with one number for each row.
    inputs : list of TensorVariable
        Vectors that replace the parts.
    conditions : list of TensorVariable
        Conditions of PyMC that do not depend on moving arrays. Each is a condition on all rows together.
    """

    def __init__(
        self,
        moving: dict[TensorVariable, TensorVariable],
        length_of: Callable[[TensorVariable, int], int],
        prefix: str = "part",
    ) -> None:
        self.parts: list[TensorVariable] = []
        self.inputs: list[TensorVariable] = []
        self.conditions: list[TensorVariable] = []
        self._truths: list[TensorVariable] = []
        self._length_of, self._prefix = length_of, prefix
        self._moving = frozenset(moving)
        self._depends: dict[Variable, bool] = {}
        # Variable of the graph → its replacement, and the axis of rows. If all rows share the variable, the axis is
        # None, and the replacement has an additional first axis of rows.
        self._made: dict[Variable, tuple[TensorVariable, int | None]] = {
            old: (new, 0 if old.ndim else None) for old, new in moving.items()
        }

    def through(self, output: TensorVariable) -> TensorVariable:
        """Return the vector that replaces the variable `output`, which has one number for each row.

        Raises
        ------
        RowsMixedError
            If rows depend on each other.
        """
        made, axis = self._of(output) if self.depends(output) else self._alone(output)
        made = _at_rows(made, axis, 0)
        if made.ndim > 1:
            raise RowsMixedError(output.owner)
        return made

    def allowed(self) -> TensorVariable | None:
        """Return a mask of the rows that satisfy all conditions found so far; None if no condition was found."""
        if self.conditions:
            self._truths.append(pt.gt(self._input(reduce(pt.and_, self.conditions)), 0.5))
            self.conditions = []
        return reduce(pt.and_, self._truths) if self._truths else None

    def depends(self, variable: Variable) -> bool:
        """Return whether the values of a variable depend on moving arrays. A dependence of its shape does not count."""
        pending = [variable]
        while pending:
            each = pending[-1]
            if each in self._depends:
                pending.pop()
            elif each in self._moving:
                self._depends[pending.pop()] = True
            elif each.owner is None or isinstance(each.owner.op, Shape | Shape_i):
                self._depends[pending.pop()] = False
            elif unknown := [v for v in each.owner.inputs if v not in self._depends]:
                pending += unknown
            else:
                self._depends[pending.pop()] = any(self._depends[v] for v in each.owner.inputs)
        return self._depends[variable]

    def _of(self, variable: Variable) -> tuple[TensorVariable, int | None]:
        if variable not in self._made:
            self._made[variable] = self._rebuilt(variable)
        return self._made[variable]

    def _rebuilt(self, variable: Variable) -> tuple[TensorVariable, int | None]:
        node = variable.owner
        assert node is not None
        first, *others = node.inputs
        match node.op:
            case Elemwise():
                return self._elemwise(node)
            case DimShuffle():
                return self._dimshuffle(node)
            case CheckAndRaise():
                for condition in _single(others):
                    self._note(condition)
                return self._of(first) if self.depends(first) else self._alone(first)
            case SpecifyShape() | ViewOp():
                return self._of(first)
            case LogSumExp(axis=(along,)) if self.depends(first):
                return self._log_sum(node, along)
            case OpFromGraph():
                return self._of(inline_ofg_node(node)[node.outputs.index(variable)])
            case CAReduce() if self.depends(first):
                return self._reduced(node)
            case Join():
                return self._joined(node)
            case MakeVector():
                return pt.stack(self._parts_of(node.inputs, None, node), axis=-1), None
            case Subtensor() if self.depends(first):
                return self._selected(node)
            case Alloc() if self.depends(first):
                return self._spread(node)
        raise RowsMixedError(node)

    def _alone(self, variable: Variable) -> tuple[TensorVariable, int | None]:
        axis = 0 if variable.type.ndim else None
        (made,) = self._parts_of([variable], axis, None)
        return made, axis

    def _axis(self, node: Apply, inputs: Iterable[Variable]) -> int | None:
        """Return the axis of rows, which is the same in all moving inputs."""
        given = list(inputs)
        moving = [each for each in given if self.depends(each)]
        axes = {self._of(each)[1] for each in moving} - {None}
        if len(axes) > 1:
            raise RowsMixedError(node)
        if axes:
            return axes.pop()
        # Moving inputs have one number for all rows. Other inputs may have an axis with one number for each row.
        rows = [
            i
            for i in range(node.outputs[0].type.ndim)
            if not all(each.type.broadcastable[i] for each in given if not self.depends(each))
            and all(self._of(each)[0].type.broadcastable[i + 1] for each in moving)
        ]
        return rows[0] if rows else None

    def _elemwise(self, node: Apply) -> tuple[TensorVariable, int | None]:
        if isinstance(node.op.scalar_op, Log1mexp) and (own := _opposite(node.inputs[0])) is not None:
            return self._of(own) if self.depends(own) else self._alone(own)
        axis = self._axis(node, node.inputs)
        made = node.op(*self._parts_of(node.inputs, axis, node))
        if isinstance(made, list):
            raise RowsMixedError(node)
        return made, axis

    def _dimshuffle(self, node: Apply) -> tuple[TensorVariable, int | None]:
        value, axis = self._of(node.inputs[0])
        order = node.op.new_order
        if axis is None:
            return value.dimshuffle(0, *["x" if i == "x" else i + 1 for i in order]), None
        if axis in order:
            return value.dimshuffle(*order), order.index(axis)
        # The variable has one number for all rows.
        return value.dimshuffle(axis, *order), None

    def _reduced(self, node: Apply) -> tuple[TensorVariable, int | None]:
        value, axis = self._of(node.inputs[0])
        own = node.op.axis
        over = list(range(node.inputs[0].type.ndim) if own is None else own)
        if axis is None:
            return node.op.clone(axis=tuple(i + 1 for i in over))(value) if over else value, None
        if axis in over:
            raise RowsMixedError(node)
        return node.op(value), axis - sum(each < axis for each in over)

    def _joined(self, node: Apply) -> tuple[TensorVariable, int | None]:
        axis = self._axis(node, node.inputs)
        along = node.op.axis % node.inputs[0].type.ndim
        if along == axis:
            raise RowsMixedError(node)
        made = self._parts_of(node.inputs, axis, node)
        (one, *_) = [each for each, old in zip(made, node.inputs, strict=True) if self.depends(old)]
        place = 0 if axis is None else axis
        whole = [
            each if self.depends(old) else _repeated(each, place, one)
            for each, old in zip(made, node.inputs, strict=True)
        ]
        return pt.join(along + (axis is None), *whole), axis

    def _selected(self, node: Apply) -> tuple[TensorVariable, int | None]:
        value, axis = self._of(node.inputs[0])
        index = list(get_idx_list(node.inputs, node.op.idx_list))
        index += [slice(None)] * (node.inputs[0].type.ndim - len(index))
        if axis is None:
            return value[(slice(None), *index)], None
        if index[axis] != slice(None):
            raise RowsMixedError(node)
        return value[tuple(index)], axis - sum(not isinstance(each, slice) for each in index[:axis])

    def _spread(self, node: Apply) -> tuple[TensorVariable, int | None]:
        source, *shape = node.inputs
        value, axis = self._of(source)
        ahead = ["x"] * (len(shape) - source.type.ndim)
        if axis is None:
            if len(shape) > 1:
                raise RowsMixedError(node)
            return value.dimshuffle(0, *ahead, *range(1, value.ndim)), None
        value = value.dimshuffle(*ahead, *range(value.ndim))
        place = axis + len(ahead)
        lengths: list[Any] = [
            None if i == place else self._length_of(node.outputs[0], i) if static is None else static
            for i, static in enumerate(node.outputs[0].type.shape)
        ]
        if all(each in (None, 1) for each in lengths):
            return value, place
        lengths[place] = value.shape[place]
        return pt.alloc(value, *lengths), place

    def _log_sum(self, node: Apply, along: int) -> tuple[TensorVariable, int | None]:
        """Rebuild a log-sum-exp as a sequence of two-term sums, whose derivatives are stable and short."""
        value, axis = self._of(node.inputs[0])
        ahead = along + (axis is None)
        if along == axis:
            raise RowsMixedError(node)
        static = value.type.shape[ahead]
        count = self._length_of(node.inputs[0], along) if static is None else static
        if count > _MOST:
            raise RowsMixedError(node)
        terms = [_entry(value, ahead, j) for j in range(count)]

        def two(a: TensorVariable, b: TensorVariable) -> TensorVariable:
            return pt.switch(pt.eq(a, -np.inf), b, a + pt.softplus(b - a))

        return reduce(two, terms), None if axis is None else axis - (along < axis)

    def _note(self, condition: Variable) -> None:
        """Store a condition that valid rows satisfy."""
        if not self.depends(condition):
            self.conditions.append(cast(TensorVariable, condition).all())
            return
        truth, own = self._of(condition)
        place = 0 if own is None else own
        over = [i for i in range(truth.ndim) if i != place]
        self._truths.append(truth.all(axis=over) if over else truth)

    def _parts_of(self, inputs: Sequence[Variable], axis: int | None, node: Apply | None) -> list[TensorVariable]:
        return [
            _at_rows(*self._of(each), axis)
            if self.depends(each)
            else self._part(cast(TensorVariable, each), axis, node)
            for each in inputs
        ]

    def _part(self, variable: TensorVariable, axis: int | None, node: Apply | None) -> TensorVariable:
        """Return the input that replaces a part of the graph, which does not depend on moving arrays."""
        alike = all(variable.type.broadcastable)
        if (alike or axis is None) and all(isinstance(each, Constant) for each in explicit_graph_inputs([variable])):
            return variable if axis is not None else variable.dimshuffle("x", *range(variable.ndim))
        if axis is None and not alike:
            assert node is not None
            raise RowsMixedError(node)
        if axis is None:
            made = self._input(variable.dimshuffle() if variable.ndim else variable)
            return _as(variable, made.dimshuffle(0, *["x"] * variable.ndim))
        others = [i for i in range(variable.ndim) if i != axis]
        if all(variable.type.broadcastable[i] for i in others):
            made = self._input(_without_axes(variable, axis))
            return _as(variable, made.dimshuffle(*[0 if i == axis else "x" for i in range(variable.ndim)]))
        lengths = {i: variable.type.shape[i] or self._length_of(variable, i) for i in others}
        several = [i for i, length in lengths.items() if length != 1]
        if len(several) > 1 or np.prod(list(lengths.values())) > _MOST:
            assert node is not None
            raise RowsMixedError(node)
        if not several:
            flat = variable[tuple(slice(None) if i == axis else 0 for i in range(variable.ndim))]
            return _as(variable, self._input(flat).dimshuffle(*[0 if i == axis else "x" for i in range(variable.ndim)]))
        (along,) = several
        index = [
            tuple({axis: slice(None), along: j}.get(i, 0) for i in range(variable.ndim)) for j in range(lengths[along])
        ]
        each = [self._input(variable[at]) for at in index]
        stacked = pt.stack(each, axis=-1)
        order = [0 if i == axis else 1 if i == along else "x" for i in range(variable.ndim)]
        return _as(variable, stacked.dimshuffle(*order))

    def _input(self, part: TensorVariable) -> TensorVariable:
        """Return the input that replaces a number or vector. Equal expressions have the same input."""
        part = _bare(part)
        for known, made in zip(self.parts, self.inputs, strict=True):
            if part is known or equal_computations([part], [known]):
                return made
        made = pt.dvector(f"{self._prefix}_{len(self.parts)}")
        self.parts.append(part)
        self.inputs.append(made)
        return made


def _opposite(value: Variable) -> TensorVariable | None:
    """Return x if `value` is log(1 − exp(x)), else None: log(1 − exp(value)) is exactly x."""
    node = value.owner
    match None if node is None else getattr(node.op, "scalar_op", None):
        case Log1mexp():
            return cast(TensorVariable, node.inputs[0])
        case Switch():
            condition, *branches = cast(list[TensorVariable], node.inputs)
            made = [_opposite(each) for each in branches]
            if any(each is not None for each in made):
                kept = [pt.log1mexp(each) if own is None else own for each, own in zip(branches, made, strict=True)]
                return cast(TensorVariable, pt.switch(condition, *kept))
    return None


def _entry(value: TensorVariable, axis: int, j: int) -> TensorVariable:
    """Return entry j along an axis, selected as deep in the graph as possible."""
    node = value.owner
    match None if node is None else node.op:
        case Elemwise() if len(node.outputs) == 1:
            made = node.op(*(_entry(each, axis, 0 if each.type.broadcastable[axis] else j) for each in node.inputs))
            return cast(TensorVariable, made)
        case Join(axis=along) if along == axis and all(each.type.broadcastable[axis] for each in node.inputs):
            return _entry(node.inputs[j], axis, 0)
        case DimShuffle(new_order=order):
            own = order[axis]
            left = [each for i, each in enumerate(order) if i != axis]
            if own == "x":
                return cast(TensorVariable, node.inputs[0].dimshuffle(*left))
            inner = _entry(node.inputs[0], own, j)
            return inner.dimshuffle(*[each if each == "x" else each - (each > own) for each in left])
    return value[tuple(j if i == axis else slice(None) for i in range(value.ndim))]


def _at_rows(made: TensorVariable, axis: int | None, wanted: int | None) -> TensorVariable:
    """Return a variable with its additional first axis of rows moved to the axis `wanted`."""
    if axis is not None or wanted is None or made.ndim == 1:
        return made
    if not made.type.broadcastable[wanted + 1]:
        raise RowsMixedError(made.owner)
    return made.dimshuffle(*[0 if i == wanted else i + 1 for i in range(made.ndim - 1)])


def _repeated(made: TensorVariable, place: int, like: TensorVariable) -> TensorVariable:
    """Return a variable repeated to as many rows as `like` has."""
    if not made.type.broadcastable[place]:
        return made
    return pt.alloc(made, *[like.shape[i] if i == place else made.shape[i] for i in range(made.ndim)])


def _as(variable: TensorVariable, made: TensorVariable) -> TensorVariable:
    """Return an input in the dtype of the variable that it replaces, floating-point or boolean."""
    return pt.gt(made, 0.5) if variable.dtype == "bool" else made


def _without_axes(variable: TensorVariable, axis: int) -> TensorVariable:
    return variable.dimshuffle(axis) if variable.ndim > 1 else variable


def _bare(part: TensorVariable) -> TensorVariable:
    """Return a number or vector without the axes that were added to it."""
    while part.owner is not None and isinstance(part.owner.op, DimShuffle):
        inner = part.owner.inputs[0]
        kept = [each for each in part.owner.op.new_order if each != "x"]
        if inner.type.ndim > 1 and kept != [0]:
            break
        if inner.type.ndim > 1:
            break
        part = cast(TensorVariable, inner)
    return part


def _single(conditions: Iterable[Variable]) -> list[Variable]:
    """Return conditions on all rows as conditions on each row."""
    found: list[Variable] = []
    pending = list(conditions)
    while pending:
        each = pending.pop()
        node = each.owner
        op = None if node is None else node.op
        single = isinstance(op, DimShuffle) and each.type.ndim == 0
        if isinstance(op, All | MakeVector | Join | ScalarFromTensor | TensorFromScalar) or single:
            pending += each.owner.inputs
        elif not isinstance(each, Constant):
            found.append(each)
    return found


type _Step = tuple[Callable[..., Any], list[int], int]


class RowFunction:
    """Function of arrays, without NumPy's warnings.

    Parameters
    ----------
    function : callable
        Function of arrays that returns a list of arrays.
    broadcasts : bool
        Whether inputs may have more axes than in the graph, with lengths that NumPy's rules of broadcasting allow.
    """

    def __init__(self, function: Callable[..., list[Array]], broadcasts: bool) -> None:
        self._function, self.broadcasts = function, broadcasts

    def __call__(self, *values: Any) -> list[Array]:
        with np.errstate(all="ignore"):
            return self._function(*values)


def compiled_rows(inputs: Sequence[Variable], outputs: Sequence[Variable]) -> RowFunction:
    """Return a function that computes `outputs` from arrays in the dtypes of `inputs`."""
    function = interpreted(inputs, outputs)
    function.trust_input = True
    graph = function.maker.fgraph
    nodes = graph.toposort()
    if not all(isinstance(node.op, Ufunc | DimShuffle) for node in nodes):
        return RowFunction(function, False)
    places: dict[Variable, int] = {}
    for variable in [*graph.inputs, *(v for node in nodes for v in (*node.inputs, *node.outputs)), *graph.outputs]:
        places.setdefault(variable, len(places))
    begun: list[Any] = [variable.data if isinstance(variable, Constant) else None for variable in places]
    steps: list[_Step] = [(_call(node), [places[v] for v in node.inputs], places[node.outputs[0]]) for node in nodes]
    wanted = [places[v] for v in graph.outputs]
    given = [places[v] for v in graph.inputs[: len(inputs)]]

    def stepwise(*values: Any) -> list[Array]:
        held = begun.copy()
        for place, value in zip(given, values, strict=True):
            held[place] = value
        for call, operands, place in steps:
            held[place] = call(*[held[i] for i in operands])
        return [held[place] for place in wanted]

    return RowFunction(stepwise, not any(isinstance(node.op, DimShuffle) for node in nodes))


def _call(node: Apply) -> Callable[..., Any]:
    if isinstance(node.op, Ufunc):
        return node.op.function(len(node.inputs), node.outputs[0].dtype)
    order = node.op.new_order
    kept = [i for i in order if i != "x"]
    axes = [*kept, *(i for i in range(node.inputs[0].type.ndim) if i not in kept)]

    def shuffled(value: Any) -> Any:
        return value.transpose(axes).reshape([1 if i == "x" else value.shape[i] for i in order])

    return shuffled


_STEP = 0.02  # Finite-difference step of a latent value, on the scale of a logarithm or a logit.
_SIDE = 4  # Number of finite-difference steps on each side.
_PART = 1e-4  # Relative finite-difference step of a parameter.


def stable(output: TensorVariable) -> TensorVariable:
    """Return a graph with the same values and finite derivatives: log(1 − sigmoid(x)) becomes −softplus(x)."""
    copy = clone_replace(output, {})
    return cast(TensorVariable, rewrite_graph(copy, include=("canonicalize", "stabilize"), clone=False))


def row_derivatives(value: TensorVariable, by: TensorVariable, count: int) -> list[TensorVariable]:
    """Return `value` (n,) and its first count − 1 derivatives in `by` (n,). Row i depends on row i of `by` alone."""
    found = [value.astype("float64")]
    while len(found) < count and (slope := _exact(found[-1], by)) is not None:
        found.append(slope)
    last = len(found) - 1
    if len(found) == count:
        return found
    around = [_shifted(found[last], by, _STEP * j) for j in range(-_SIDE, _SIDE + 1)]
    for order in range(1, count - last):
        found.append(_sum(_weights(_SIDE, order) / _STEP**order, around))
    return found


def row_slopes(orders: list[TensorVariable], row: TensorVariable, by: TensorVariable) -> list[TensorVariable]:
    """Return derivatives in a parameter `row` (n,) of `orders`, a graph and its derivatives in `by`."""
    exact = [_exact(order, row) for order in orders]
    if all(each is not None for each in exact):
        return cast(list[TensorVariable], exact)
    step = _PART * pt.maximum(pt.abs(row), _PART)
    around = [_shifted(orders[0], row, step * j) for j in range(-2, 3)]
    return row_derivatives(_sum(_weights(2, 1), around) / step, by, len(orders))


def _exact(value: TensorVariable, by: TensorVariable) -> TensorVariable | None:
    """Return PyTensor's derivative; None if it does not exist, or contains loops."""
    try:
        found = pytensor.grad(value.sum(), by, disconnected_inputs="ignore")
    except (MethodNotDefined, NotImplementedError, NullTypeGradError):
        return None
    ops = (each.owner.op for each in ancestors([found]) if each.owner)
    if any(isinstance(op, Elemwise) and isinstance(op.scalar_op, ScalarLoop) for op in ops):
        return None
    return cast(TensorVariable, found.astype("float64"))


def _shifted(value: TensorVariable, by: TensorVariable, step: TensorVariable | float) -> TensorVariable:
    return cast(TensorVariable, clone_replace(value, {by: by + step}))


def _sum(weights: Array, terms: list[TensorVariable]) -> TensorVariable:
    return cast(TensorVariable, sum(w * term for w, term in zip(weights, terms, strict=True) if w))


@cache
def _weights(side: int, order: int) -> Array:
    """Return weights (2 side + 1,) that combine values at −side … side into the derivative of this order."""
    powers = np.vander(np.arange(-side, side + 1.0), increasing=True).T
    wanted = np.zeros(2 * side + 1)
    wanted[order] = float(np.prod(np.arange(1, order + 1)))
    return np.asarray(np.round(np.linalg.solve(powers, wanted), 14))
