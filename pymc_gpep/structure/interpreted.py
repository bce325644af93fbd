"""PyTensor graphs that are evaluated a few dozen times: their operations one after the other, in plain Python.

Machine code for a graph takes ten seconds or more to make, once for each model and shape. A fit evaluates a few arrays
of n × n numbers some dozens of times, where it would save a millisecond a time. What a sampler of PyMC calls thousands
of times is compiled, as PyMC does it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.rewriting.basic import dfs_rewriter, node_rewriter
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.link.vm import VMLinker
from pytensor.scalar.basic import AND, GE, LE, Clip
from pytensor.tensor.elemwise import Elemwise

__all__ = ["INTERPRETED", "GraphFunction", "graph_function"]


@node_rewriter([Elemwise])
def _clip_by_ufuncs(fgraph: Any, node: Apply) -> list[Variable] | None:
    """Clip by minimum and maximum: NumPy has a function for arrays for these, and a Python call a number for `Clip`.

    A bound that is infinite, as distances have it, is none, and takes no pass over the array.
    """
    if not isinstance(node.op.scalar_op, Clip):
        return None
    x, low, high = node.inputs
    if not _is_constant(low, -np.inf):
        x = pt.maximum(x, low)
    if not _is_constant(high, np.inf):
        x = pt.minimum(x, high)
    return [x.astype(node.outputs[0].dtype)]


@node_rewriter([Elemwise])
def _in_bounds_without_infinity(fgraph: Any, node: Apply) -> list[Variable] | None:
    """x ≥ a and x ≤ ∞, which the derivative of `Clip` asks, as x ≥ a: it is false where x is NaN as well."""
    if not isinstance(node.op.scalar_op, AND):
        return None
    for this, other in (node.inputs, node.inputs[::-1]):
        if _compares(this, LE, np.inf) and _compares(other, GE) and this.owner.inputs[0] is other.owner.inputs[0]:
            return [other]
    return None


def _is_constant(variable: Variable, value: float) -> bool:
    return isinstance(variable, Constant) and bool(np.all(np.asarray(variable.data) == value))


def _compares(variable: Variable, how: type, bound: float | None = None) -> bool:
    """Whether a variable is a comparison of this kind, with a constant bound if one is given."""
    node = variable.owner
    if node is None or not isinstance(node.op, Elemwise) or not isinstance(node.op.scalar_op, how):
        return False
    return bound is None or _is_constant(node.inputs[1], bound)


INTERPRETED = Mode(
    VMLinker(use_cloop=False, c_thunks=False),
    # All that makes graphs stable and small, so that values are those of compiled ones up to rounding. Fused operations
    # would gain nothing here, and an operation in place is one that makes an array and copies it.
    RewriteDatabaseQuery(include=["fast_run", "py_only"], exclude=["fusion", "BlasOpt", "inplace"]),
).register(
    # One by one: two in one rewriter cannot be pickled.
    (dfs_rewriter(_clip_by_ufuncs), 49.0),
    (dfs_rewriter(_in_bounds_without_infinity), 49.1),
)


class GraphFunction:
    """A function of a model's graph; a class, so that it can be pickled.

    NumPy would warn of what overflows at hyperparameters far out; compiled code says nothing, and neither does this.
    """

    def __init__(self, function: Any) -> None:
        self._function = function

    def copy(self) -> "GraphFunction":
        """The same function for another thread: one keeps the values of an evaluation."""
        return GraphFunction(self._function.copy())

    def __call__(self, *values: Any) -> Any:
        with np.errstate(all="ignore"):
            return self._function(*values)


def graph_function(
    model: pm.Model, inputs: Sequence[Variable], outputs: Any, *, trust_input: bool = False, **kwargs: Any
) -> GraphFunction:
    """Make a function of variables of a model's graph.

    Parameters
    ----------
    model : pm.Model
    inputs : sequence of Variable
        Its arguments; some may be of no use.
    outputs : sequence of Variable or Variable
    trust_input : bool
        Whether arguments have the right types, and need not be looked at.
    **kwargs
        For `pytensor.function`. Without a `mode` the graph is interpreted.
    """
    settings = {"mode": INTERPRETED, "on_unused_input": "ignore"} | kwargs
    function = model.compile_fn(outputs, inputs=inputs, point_fn=False, **settings)
    function.trust_input = trust_input
    return GraphFunction(function)
