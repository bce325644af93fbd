"""Rewrites of graphs where NumPy works them off, one operation after the other.

Each operation is a pass over an array, or several; products of matrices are not passed over twice for one sum.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.rewriting.basic import GraphRewriter, dfs_rewriter, node_rewriter
from pytensor.scalar.basic import AND, GE, LE, Add, Clip, Mul
from pytensor.tensor.blas import BatchedDot
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.math import Dot

from pymc_gpep.structure.elementwise import is_elementwise
from pymc_gpep.structure.ufunc_nodes import by_ufuncs

_MOST_OPERANDS = 31  # of a function of NumPy, besides the result


@node_rewriter([Elemwise])
def _clip_by_ufuncs(fgraph: Any, node: Apply) -> list[Variable] | None:
    """Clip by minimum and maximum: NumPy has a function for arrays for these, and a Python call a number for `Clip`.

    An infinite bound, as distances have it, bounds nothing and takes no pass over the array.
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
    """Rewrite x ≥ a and x ≤ ∞, which the derivative of `Clip` asks, as x ≥ a. It is false where x is NaN as well."""
    if not isinstance(node.op.scalar_op, AND):
        return None
    for this, other in (node.inputs, node.inputs[::-1]):
        if _compares(this, LE, np.inf) and _compares(other, GE) and this.owner.inputs[0] is other.owner.inputs[0]:
            return [other]
    return None


@node_rewriter([Elemwise])
def _products_in_one(fgraph: Any, node: Apply) -> list[Variable] | None:
    """A C + B C as (A + B) C."""
    if not isinstance(node.op.scalar_op, Add):
        return None
    products: dict[tuple[Any, Variable], list[Variable]] = defaultdict(list)
    rest = []
    for term in node.inputs:
        own = term.owner
        if own is not None and isinstance(own.op, Dot | BatchedDot) and len(fgraph.clients[term]) == 1:
            products[own.op, own.inputs[1]].append(own.inputs[0])
        else:
            rest.append(term)
    if all(len(left) == 1 for left in products.values()):
        return None
    return [pt.add(*(op(pt.add(*left), right) for (op, right), left in products.items()), *rest)]


@node_rewriter([Elemwise])
def _rows_in_one(fgraph: Any, node: Apply) -> list[Variable] | None:
    """a C + b C as (a + b) C, a and b numbers for whole rows of C."""
    if not isinstance(node.op.scalar_op, Add) or node.outputs[0].type.ndim < 2:
        return None
    multiples: dict[tuple[Variable, ...], list[Variable]] = defaultdict(list)
    rest = []
    for term in node.inputs:
        if is_elementwise(term, Mul) and len(fgraph.clients[term]) == 1:
            operands = term.owner.inputs
            narrow = [each for each in operands if each.type.broadcastable[-1]]
            wide = tuple(each for each in operands if not each.type.broadcastable[-1])
            if narrow and wide:
                multiples[wide].append(_of_all(pt.mul, narrow))
                continue
        rest.append(term)
    if all(len(factors) == 1 for factors in multiples.values()):
        return None
    return [pt.add(*(pt.mul(_of_all(pt.add, own), *wide) for wide, own in multiples.items()), *rest)]


@node_rewriter([Elemwise])
def _small_operands_first(fgraph: Any, node: Apply) -> list[Variable] | None:
    """Sums and products of several arrays: first of those that are alike in shape, and smaller than the result.

    Never of more than NumPy's functions take.
    """
    if not isinstance(node.op.scalar_op, Add | Mul) or len(node.inputs) < 3:
        return None
    alike: dict[tuple[bool, ...], list[Variable]] = defaultdict(list)
    for operand in node.inputs:
        alike[operand.type.broadcastable].append(operand)
    whole = alike.pop(node.outputs[0].type.broadcastable, [])
    parts = [_of_all(node.op, own) for _, own in sorted(alike.items(), reverse=True)]
    if len(parts) + len(whole) == len(node.inputs) <= _MOST_OPERANDS:
        return None
    return [_of_all(node.op, parts + whole)]


def _of_all(op: Any, operands: Sequence[Variable]) -> Variable:
    """A sum or product of operands, of so many at a time as NumPy's functions take."""
    while len(operands) > 1:
        operands = [
            op(*few) if len(few) > 1 else few[0]
            for few in (operands[i : i + _MOST_OPERANDS] for i in range(0, len(operands), _MOST_OPERANDS))
        ]
    return operands[0]


def _is_constant(variable: Variable, value: float) -> bool:
    return isinstance(variable, Constant) and bool(np.all(np.asarray(variable.data) == value))


def _compares(variable: Variable, how: type, bound: float | None = None) -> bool:
    """Whether a variable is a comparison of this kind, with a constant bound if one is given."""
    return is_elementwise(variable, how) and (bound is None or _is_constant(variable.owner.inputs[1], bound))


# One by one: two in one rewriter cannot be pickled.
NUMPY_REWRITES: list[tuple[GraphRewriter, float]] = [
    (dfs_rewriter(each), 49.0 + 0.1 * place)
    for place, each in enumerate(
        (
            _clip_by_ufuncs,
            _in_bounds_without_infinity,
            _products_in_one,
            _rows_in_one,
            _small_operands_first,
            by_ufuncs,
        )
    )
]
