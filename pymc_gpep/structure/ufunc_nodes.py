"""Elementwise operations of graphs as calls of NumPy's functions, without what PyTensor does around each call.

A graph of a model has hundreds of operations on a few numbers, where PyTensor's own care takes ten times as long as
NumPy. Shapes that are known need not be compared here. No operation writes into an array that is there.
"""

import math
from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.graph.rewriting.basic import node_rewriter
from pytensor.scalar.basic import Add, Cast, Mul, Sub
from pytensor.scalar.math import Log1mexp, PolyGamma, Softplus, TriGamma
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.utils import import_func_from_string
from scipy.special import polygamma

from pymc_gpep.structure.private_names import check_broadcast


class Ufunc(Op):
    """An elementwise operation that is one function of NumPy, or a sum or product of several operands.

    Parameters
    ----------
    elemwise : Elemwise
        With such a function, and not in place.
    """

    __props__ = ("elemwise",)

    def __init__(self, elemwise: Elemwise) -> None:
        self.elemwise = elemwise

    def __str__(self) -> str:
        return str(self.elemwise)

    def make_node(self, *inputs: Variable) -> Apply:
        """As of the elementwise operation."""
        made = self.elemwise.make_node(*inputs)
        return Apply(self, made.inputs, [made.outputs[0].type()])

    def function(self, operands: int, dtype: str) -> Callable[..., Any]:
        """Functions that compute arrays of a type from so many others."""
        called = _called(self.elemwise, operands)
        if isinstance(called, np.ufunc) and dtype in ("float64", "bool"):
            return called
        return lambda *values: np.asarray(called(*values), dtype)

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        """Once."""
        with np.errstate(all="ignore"):
            found = _called(self.elemwise, len(inputs))(*inputs)
        output_storage[0][0] = np.asarray(found, node.outputs[0].dtype)

    def make_py_thunk(
        self, node: Apply, storage_map: Any, compute_map: Any, no_recycling: Any, debug: bool = False
    ) -> Any:
        """A function without arguments, as PyTensor's virtual machine calls it."""
        function, dtype = _called(self.elemwise, len(node.inputs)), np.dtype(node.outputs[0].dtype)
        cells, out = [storage_map[each] for each in node.inputs], storage_map[node.outputs[0]]
        done = [False] if compute_map is None else compute_map[node.outputs[0]]
        # PyTensor broadcasts no axis that has length 1 without saying so, and only an unknown length can be 1.
        unknown = [cell for cell, each in zip(cells, node.inputs, strict=True) if None in each.type.shape]
        unknown = unknown if len(cells) > 1 else []

        def thunk() -> None:
            values = [cell[0] for cell in cells]
            for cell in unknown:
                if 1 in cell[0].shape:
                    check_broadcast(node, values)
                    break
            with np.errstate(all="ignore"):
                out[0] = np.asarray(function(*values), dtype)
            done[0] = True

        thunk.inputs, thunk.outputs, thunk.lazy = cells, [out], False  # type: ignore[attr-defined]
        return thunk


@node_rewriter([Elemwise])
def by_ufuncs(fgraph: Any, node: Apply) -> list[Variable] | None:
    """An elementwise operation as a function of NumPy, where it is one and the types of numbers are those of NumPy."""
    op = node.op
    if op.inplace_pattern or len(node.outputs) != 1 or not _has_function(op, len(node.inputs)):
        return None
    # Where one operand has double precision NumPy takes all to it, as PyTensor does.
    types = {each.dtype for each in node.inputs}
    truths = types == {"bool"} and not isinstance(op.scalar_op, Add | Sub)
    cast = isinstance(op.scalar_op, Cast)
    if not (truths or cast or "float64" in types) or any(each.startswith("complex") for each in types):
        return None
    return [Ufunc(op)(*node.inputs)]


def _has_function(op: Elemwise, operands: int) -> bool:
    """Whether there is a function of NumPy's kind, which returns an array of its own."""
    if isinstance(op.scalar_op, Cast) or type(op.scalar_op) in _SPECIAL:
        return True
    name, most, results = op.nfunc_spec or ("", 0, 0)
    if results != 1 or not (operands == most or (isinstance(op.scalar_op, Add | Mul) and operands > most)):
        return False
    function = import_func_from_string(name)
    return isinstance(function, np.ufunc) or function is np.where


def _log_one_minus_exp(x: Any) -> Any:
    return np.where(x < -math.log(2.0), np.log1p(-np.exp(x)), np.log(-np.expm1(x)))


_SHIFT = 10
_BERNOULLI = (1.0 / 6.0, -1.0 / 30.0, 1.0 / 42.0, -1.0 / 30.0, 5.0 / 66.0, -691.0 / 2730.0)


def _trigamma(x: Any) -> Any:
    """ψ′, for positive numbers by the recurrence and the asymptotic series at x + 10, error 1e-15 of itself."""
    if not np.all(x > 0.0):
        return polygamma(1, x)
    ahead = sum((1.0 / np.square(x + k) for k in range(_SHIFT)), start=np.zeros(np.shape(x)))
    z = 1.0 / (x + _SHIFT)
    square = z * z
    series = reduce(lambda total, b: total * square + b, reversed(_BERNOULLI), 0.0 * z)
    return ahead + z + 0.5 * square + z * square * series


_SPECIAL: dict[type, Callable[..., Any]] = {
    Log1mexp: _log_one_minus_exp,
    PolyGamma: polygamma,
    Softplus: lambda x: np.logaddexp(0.0, x),
    TriGamma: _trigamma,
}
"""Operations for which PyTensor would call Python for each number."""


def _called(op: Elemwise, operands: int) -> Callable[..., Any]:
    if isinstance(op.scalar_op, Cast):
        return partial(np.asarray, dtype=op.scalar_op.o_type.dtype)
    if (special := _SPECIAL.get(type(op.scalar_op))) is not None:
        return special
    function = import_func_from_string(op.nfunc_spec[0])
    return function if operands == op.nfunc_spec[1] else lambda *values: reduce(function, values)
