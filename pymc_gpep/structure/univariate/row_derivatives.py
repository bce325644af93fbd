"""Derivatives of graphs with a number for each row: PyTensor's, and differences where it has none that are fast.

PyTensor's derivatives of incomplete gamma and beta functions in their shapes are loops over a series for each number,
and have no derivatives themselves.

Graphs of elementwise operations become functions of vectors: calls of NumPy and little else. An average calls a density
some thirty times with few numbers, where PyTensor's care would take most of the time.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, cast

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.gradient import NullTypeGradError
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.graph.utils import MethodNotDefined
from pytensor.scalar.loop import ScalarLoop
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.structure.interpreted import interpreted
from pymc_gpep.structure.ufunc_nodes import Ufunc

type _Step = tuple[Callable[..., Any], list[int], int]


def compiled_rows(inputs: Sequence[Variable], outputs: Sequence[Variable]) -> Callable[..., list[Array]]:
    """Return a function of arrays of the right types, which NumPy does not warn in."""
    function = interpreted(inputs, outputs)
    function.trust_input = True
    graph = function.maker.fgraph
    nodes = graph.toposort()
    if not all(isinstance(node.op, Ufunc | DimShuffle) for node in nodes):

        def whole(*values: Any) -> list[Array]:
            with np.errstate(all="ignore"):
                return cast(list[Array], function(*values))

        return whole
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
        with np.errstate(all="ignore"):
            for call, operands, place in steps:
                held[place] = call(*[held[i] for i in operands])
        return [held[place] for place in wanted]

    return stepwise


def _call(node: Apply) -> Callable[..., Any]:
    if isinstance(node.op, Ufunc):
        return node.op.function(len(node.inputs), node.outputs[0].dtype)
    order = node.op.new_order
    kept = [i for i in order if i != "x"]
    axes = [*kept, *(i for i in range(node.inputs[0].type.ndim) if i not in kept)]

    def shuffled(value: Any) -> Any:
        return value.transpose(axes).reshape([1 if i == "x" else value.shape[i] for i in order])

    return shuffled


_STEP = 0.02  # of a latent value, whose scale is that of a logarithm or a logit where a shape depends on it
_SIDE = 4  # steps to either side
_PART = 1e-4  # of a parameter: the step where it varies


def row_derivatives(value: TensorVariable, by: TensorVariable, count: int) -> list[TensorVariable]:
    """Return a graph (n,) and its derivatives in a vector (n,), `count` graphs; row i of one depends on row i only."""
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
    """Return derivatives in a parameter (n,) of a graph and of its derivatives in `by`, as many as there are orders."""
    exact = [_exact(order, row) for order in orders]
    if all(each is not None for each in exact):
        return cast(list[TensorVariable], exact)
    step = _PART * pt.maximum(pt.abs(row), _PART)
    around = [_shifted(orders[0], row, step * j) for j in range(-2, 3)]
    return row_derivatives(_sum(_weights(2, 1), around) / step, by, len(orders))


def _exact(value: TensorVariable, by: TensorVariable) -> TensorVariable | None:
    """Return PyTensor's derivative, if there is one without loops."""
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
    """Weights (2 side + 1,) of the numbers at −side … side that make a derivative."""
    powers = np.vander(np.arange(-side, side + 1.0), increasing=True).T
    wanted = np.zeros(2 * side + 1)
    wanted[order] = float(np.prod(np.arange(1, order + 1)))
    return np.asarray(np.round(np.linalg.solve(powers, wanted), 14))
