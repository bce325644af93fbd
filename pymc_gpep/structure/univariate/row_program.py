"""Functions of vectors from graphs of elementwise operations, as calls of NumPy and little else.

An average calls a density some thirty times with few numbers, where PyTensor's care would take most of the time.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.tensor.elemwise import DimShuffle

from pymc_gpep.array_types import Array
from pymc_gpep.structure.interpreted import interpreted
from pymc_gpep.structure.ufunc_nodes import Ufunc

__all__ = ["compiled_rows"]

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
