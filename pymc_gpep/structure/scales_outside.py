"""Covariance graphs with their length scales outside of products of inputs.

Covariance functions of PyMC divide inputs by length scales and then take distances. Where a length scale is one number,
the distances of the inputs themselves can be divided instead. Arrays of points × columns are then not made anew for
each function, and the derivative in a length scale needs no such array.

Squared distances are clipped at 0, where rounding has them below. The derivative of a clipped number is 0 there. Terms
of a squared distance must agree on that, or they no longer cancel between a point and itself. XLA computes the distance
anew for each term, and may round it to either side of 0. So the derivative leaves the clip out, which is right for any
distance.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import disconnected_grad
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import EquilibriumGraphRewriter, node_rewriter
from pytensor.graph.traversal import graph_inputs
from pytensor.scalar.basic import Add, Clip, Mul, Sqr
from pytensor.tensor.basic import get_underlying_scalar_constant_value
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Dot, Sum
from pytensor.tensor.subtensor import AdvancedSubtensor
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.structure.elementwise import is_elementwise


def scales_outside(graphs: Sequence[TensorVariable]) -> list[TensorVariable]:
    """Return graphs of the same values, with numbers that multiply inputs taken out of sums over columns.

    Their derivatives are the same as well, and leave the clip of squared distances out.

    Parameters
    ----------
    graphs : sequence of TensorVariable
        Graphs of covariances and means, in which the number of columns of inputs is known.

    Returns
    -------
    list of TensorVariable
        Graphs in terms of the same variables.
    """
    inputs = [leaf for leaf in graph_inputs(graphs) if not isinstance(leaf, Constant)]
    fgraph = FunctionGraph(inputs, list(graphs), clone=True, copy_inputs=False)
    rewrites = [_all_columns, _outside_of_products, _outside_of_squares, _slope_without_clip]
    EquilibriumGraphRewriter(rewrites, max_use_ratio=100).rewrite(fgraph)
    return list(fgraph.outputs)


@node_rewriter([AdvancedSubtensor])
def _all_columns(fgraph: Any, node: Apply) -> list[Variable] | None:
    """`x[:, [0, 1, ..., d - 1]]`, which is how a covariance function takes its columns, as x."""
    x, *indices = node.inputs
    if x.type.ndim != 2 or node.op.idx_list != (slice(None), 0) or not isinstance(indices[0], Constant):
        return None
    columns = x.type.shape[1]
    return [x] if columns is not None and np.array_equal(indices[0].data, np.arange(columns)) else None


@node_rewriter([Dot])
def _outside_of_products(fgraph: Any, node: Apply) -> list[Variable] | None:
    """(s A)(t B) as (s t)(A B)."""
    parts = [_scaled(operand) for operand in node.inputs]
    scales = [scale for _, own in parts for scale in own]
    if not scales or node.outputs[0].type.ndim != 2:
        return None
    return [pt.mul(node.op(*(base for base, _ in parts)), *scales)]


@node_rewriter([Sum])
def _outside_of_squares(fgraph: Any, node: Apply) -> list[Variable] | None:
    """Σ (s A)² as s² Σ A²."""
    (squares,) = node.inputs
    if not is_elementwise(squares, Sqr) or node.op.axis != (1,):
        return None
    base, scales = _scaled(squares.owner.inputs[0])
    if not scales:
        return None
    return [pt.mul(node.op(pt.sqr(base)), *(pt.sqr(scale[:, 0]) for scale in scales))]


@node_rewriter([Elemwise])
def _slope_without_clip(fgraph: Any, node: Apply) -> list[Variable] | None:
    """A squared distance r² + r'² − 2 x·x' that is clipped at 0, with the derivative of one that is not."""
    if not isinstance(node.op.scalar_op, Clip):
        return None
    square, least, most = node.inputs
    if not (_is_number(least, 0.0) and _is_number(most, np.inf) and is_elementwise(square, Add)):
        return None
    if not any(_is_cross_term(term) for term in square.owner.inputs):
        return None
    return [square + disconnected_grad(pt.maximum(square, 0.0) - square)]


def _is_cross_term(term: Variable) -> bool:
    """Whether a term is −2 x·x', times other numbers."""
    factors, left = [], [term]
    while left:
        each = left.pop()
        if is_elementwise(each, Mul):
            left.extend(each.owner.inputs)
        else:
            factors.append(each)
    products = [each for each in factors if each.owner is not None and isinstance(each.owner.op, Dot)]
    return bool(products) and any(_is_number(each, -2.0) for each in factors)


def _is_number(variable: Variable, value: float) -> bool:
    """Whether a variable is one number everywhere, this one."""
    found = get_underlying_scalar_constant_value(variable, raise_not_constant=False)
    return not isinstance(found, Variable) and bool(found == value)


def _scaled(matrix: Variable) -> tuple[Variable, list[Variable]]:
    """A matrix as another one times numbers, each (1, 1)."""
    node = matrix.owner
    if node is not None and isinstance(node.op, DimShuffle) and node.op.new_order == (1, 0):
        base, scales = _scaled(node.inputs[0])
        return (base.T, scales) if scales else (matrix, [])
    if node is None or not is_elementwise(matrix, Mul) or matrix.type.ndim != 2:
        return matrix, []
    scales = [each for each in node.inputs if each.type.shape == (1, 1)]
    others = [each for each in node.inputs if each.type.shape != (1, 1)]
    return (pt.mul(*others) if len(others) > 1 else others[0], scales) if scales and others else (matrix, [])
