"""Graphs that do not depend on the numbers of the data."""

from collections.abc import Sequence
from typing import Any

import pytensor
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorConstant
from scipy.sparse import issparse

__all__ = ["arrays_as_shared"]

_FEW = 16  # numbers that may as well be part of the code, as shapes and axes have to be


def arrays_as_shared(outputs: Sequence[Variable]) -> list[Any]:
    """Replace arrays that are constants of a graph by shared variables with the same values.

    A function that was rewritten or compiled with a constant serves no other data, and takes longer to make than a fit.
    Without the arrays it serves the next data set of this shape: a fold, a bootstrap sample. Sparse matrices stay
    constants.
    """
    constants = [v for v in ancestors(outputs) if isinstance(v, TensorConstant) and not issparse(v.data)]
    arrays = [v for v in constants if v.ndim and v.data.size > _FEW]
    # Of a shape that is not known, so that little of the code depends on it, but for axes that broadcast.
    shared = {
        v: pytensor.shared(v.data, name="array", shape=tuple(1 if s == 1 else None for s in v.data.shape), borrow=True)
        for v in arrays
    }
    return list(graph_replace(outputs, shared, strict=False))
