"""Graphs that depend neither on the numbers of the data nor on how many rows these have."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pytensor
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import io_toposort
from pytensor.scalar.basic import ScalarConstant
from pytensor.tensor.basic import Alloc, Eye, MakeVector, TensorFromScalar
from pytensor.tensor.shape import SpecifyShape
from pytensor.tensor.type import TensorType
from pytensor.tensor.variable import TensorConstant
from scipy.sparse import issparse

_FEW = 16  # numbers that may as well be part of the code, as axes have to be


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
        if data.ndim and data.size > _FEW:
            shape = _without_lengths(variable.type).shape
            return now.setdefault(variable, pytensor.shared(data, name="array", shape=shape, borrow=True))
        return length(data) if is_length and not data.ndim and data.dtype.kind in "iu" and data > _FEW else variable

    for node in io_toposort([], outputs):
        if isinstance(node.op, TensorFromScalar) and isinstance(number := node.inputs[0], ScalarConstant):
            if number.type.dtype == "int64" and number.data > _FEW:  # a slope has such lengths
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
    return kind.clone(shape=tuple(None if s is not None and s > _FEW else s for s in kind.shape))
