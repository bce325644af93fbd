"""Derivatives of graphs with a number for each row: PyTensor's, and differences where it has none that are fast.

PyTensor's derivatives of incomplete gamma and beta functions in their shapes are loops over a series for each number,
and have no derivatives themselves.
"""

from functools import cache
from typing import cast

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.gradient import NullTypeGradError
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.graph.utils import MethodNotDefined
from pytensor.scalar.loop import ScalarLoop
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array

__all__ = ["row_derivatives", "row_slopes"]

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
