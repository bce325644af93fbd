"""Stationary covariances in graphs: length scales are moved out of products, and the form is recognised.

Covariance functions of PyMC divide inputs by length scales and then compute distances. For a scalar length scale,
`scales_outside` divides distances instead. This saves an array of points × columns for each function, and for each
derivative with respect to a length scale.

PyMC clips squared distances at 0, since rounding may make them negative. The derivative of a clipped number is 0.
Between a point and itself, the terms of the derivative cancel if the clip is active in all terms, or in none. XLA
computes the distance again for each term. Then rounding may activate the clip in a part of the terms. Therefore the
derivative here ignores the clip. It is correct at any distance.

`stationary` recognises a covariance v φ(r²), r² = Σ_d s_d² (x_d − x'_d)², with φ in `PROFILES`, plus noise of each row.
The variance v, the scales s (d,) and the noise variance are graphs of the hyperparameters. For such a covariance, a
step over a batch uses closed formulas. Scales are read from the matrix product x xᵀ in the distances. The profile φ is
then found by comparison of values, at points with distances of all sizes and several values of the hyperparameters.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.gradient import disconnected_grad
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import graph_replace
from pytensor.graph.rewriting.basic import EquilibriumGraphRewriter, node_rewriter
from pytensor.graph.traversal import ancestors, graph_inputs
from pytensor.scalar.basic import Add, Cast, Clip, Mul, Sqr
from pytensor.tensor.basic import get_underlying_scalar_constant_value
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Dot, Sum
from pytensor.tensor.shape import SpecifyShape
from pytensor.tensor.subtensor import AdvancedSubtensor
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.graphs.affine import is_elementwise
from pymc_gpep.graphs.interpreted import graph_function
from pymc_gpep.solvers.step_algebra import PROFILES, Profile


def scales_outside(graphs: Sequence[TensorVariable]) -> list[TensorVariable]:
    """Return graphs with the same values, with numbers that multiply inputs moved out of sums over columns.

    Derivatives are also the same, but ignore the clip of squared distances.

    Parameters
    ----------
    graphs : sequence of TensorVariable
        Graphs of covariances and means. The number of columns of the inputs must be static.

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
    """Replace `x[:, [0, 1, ..., d - 1]]`, the columns that a covariance function selects, by x."""
    x, *indices = node.inputs
    if x.type.ndim != 2 or node.op.idx_list != (slice(None), 0) or not isinstance(indices[0], Constant):
        return None
    columns = x.type.shape[1]
    return [x] if columns is not None and np.array_equal(indices[0].data, np.arange(columns)) else None


@node_rewriter([Dot])
def _outside_of_products(fgraph: Any, node: Apply) -> list[Variable] | None:
    """Replace (s A)(t B) by (s t)(A B)."""
    parts = [_scaled(operand) for operand in node.inputs]
    scales = [scale for _, own in parts for scale in own]
    if not scales or node.outputs[0].type.ndim != 2:
        return None
    return [pt.mul(node.op(*(base for base, _ in parts)), *scales)]


@node_rewriter([Sum])
def _outside_of_squares(fgraph: Any, node: Apply) -> list[Variable] | None:
    """Replace Σ (s A)² by s² Σ A²."""
    (squares,) = node.inputs
    if not is_elementwise(squares, Sqr) or node.op.axis != (1,):
        return None
    base, scales = _scaled(squares.owner.inputs[0])
    if not scales:
        return None
    return [pt.mul(node.op(pt.sqr(base)), *(pt.sqr(scale[:, 0]) for scale in scales))]


@node_rewriter([Elemwise])
def _slope_without_clip(fgraph: Any, node: Apply) -> list[Variable] | None:
    """Replace the derivative of a clipped squared distance x² + x'² − 2 x·x' by the derivative without a clip."""
    if not isinstance(node.op.scalar_op, Clip):
        return None
    square, least, most = node.inputs
    if not (_is_number(least, 0.0) and _is_number(most, np.inf) and is_elementwise(square, Add)):
        return None
    if not any(_is_cross_term(term) for term in square.owner.inputs):
        return None
    return [square + disconnected_grad(pt.maximum(square, 0.0) - square)]


def _is_cross_term(term: Variable) -> bool:
    """Return whether a term is −2 x·x' times numbers."""
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
    """Return whether all elements of a variable are the constant `value`."""
    found = get_underlying_scalar_constant_value(variable, raise_not_constant=False)
    return not isinstance(found, Variable) and bool(found == value)


def _scaled(matrix: Variable) -> tuple[Variable, list[Variable]]:
    """Return a matrix as the product of a matrix and scalar factors of shape (1, 1)."""
    node = matrix.owner
    if node is not None and isinstance(node.op, DimShuffle) and node.op.new_order == (1, 0):
        base, scales = _scaled(node.inputs[0])
        return (base.T, scales) if scales else (matrix, [])
    if node is None or not is_elementwise(matrix, Mul) or matrix.type.ndim != 2:
        return matrix, []
    scales = [each for each in node.inputs if each.type.shape == (1, 1)]
    others = [each for each in node.inputs if each.type.shape != (1, 1)]
    return (pt.mul(*others) if len(others) > 1 else others[0], scales) if scales and others else (matrix, [])


_SPREADS = 0.01, 0.3, 1.0, 3.0  # Standard deviations of compared points, in units of length scales / √(2d).
_POINTS = 8  # Number of points with each spread.
# Values with a relative difference up to this number count as equal. PyMC adds 1e-12 to squared distances before roots.
_TOLERANCE = 3e-6


class Stationary(NamedTuple):
    """A covariance v φ(r²) plus noise. Variance, scales and noise are graphs of the hyperparameters."""

    profile: Profile
    scales: TensorVariable
    """Scales s, (d,)."""
    variance: TensorVariable
    """Variance v φ(0), a scalar."""
    noise: TensorVariable
    """Noise variance of a row, a scalar."""


def stationary(
    model: pm.Model,
    values: Sequence[Variable],
    graphs: Sequence[TensorVariable],
    z: TensorVariable,
    x: TensorVariable,
    points: Sequence[Sequence[Array]],
) -> Stationary | None:
    """Return the form of the covariance of a process with mean 0; None if the form is not recognised.

    Parameters
    ----------
    model : pm.Model
    values : sequence of Variable
        Symbols of the hyperparameters.
    graphs : sequence of TensorVariable
        Covariances (M, M) of z and (M, B) of z with x, variances (B,) and mean (1, B) at x.
    z, x : TensorVariable, shape (M, d) and (B, d), with static d
    points : sequence of sequence of array
        Values of the hyperparameters for the comparison, each in the order of `values`.
    """
    inducing, cross, own, mean = graphs
    columns = z.type.shape[1]
    scales = input_scales(cross, z, x)
    if scales is None or columns is None:
        return None
    middle = pt.zeros((1, columns))
    variance, of_row = graph_replace([inducing[0, 0], own[0]], {z: middle, x: middle}, strict=False)
    found = graph_function(model, [*values, z, x], [cross, own, mean, scales, variance, of_row])
    rng = np.random.default_rng(0)
    possible, noisy = list(PROFILES), False
    for point in points:
        numbers = found(*point, np.zeros((1, columns)), np.zeros((1, columns)))
        own_scales, v, kappa = np.asarray(numbers[3]), float(numbers[4]), float(numbers[5])
        used = own_scales > 0.0
        if not (np.isfinite(own_scales).all() and used.any() and np.isfinite(v) and v > 0.0):
            return None
        spread = np.repeat(_SPREADS, _POINTS)[:, None] / np.sqrt(2.0 * used.sum())
        z_at, x_at = (
            np.where(used, spread * rng.normal(size=(len(spread), columns)) / np.where(used, own_scales, 1.0), 0.3)
            for _ in range(2)
        )
        cross_at, own_at, mean_at, *_ = found(*point, z_at, x_at)
        if np.any(mean_at != 0.0) or not np.allclose(own_at, kappa, rtol=_TOLERANCE, atol=0.0):
            return None
        noisy = noisy or not np.isclose(kappa, v, rtol=_TOLERANCE, atol=0.0)
        squares = (((z_at[:, None] - x_at) * own_scales) ** 2).sum(axis=2)
        possible = [
            each for each in possible if np.allclose(cross_at, each.at(squares, v)[0], rtol=0.0, atol=_TOLERANCE * v)
        ]
    if not possible:
        return None
    if noisy:
        return Stationary(possible[0], scales, variance, of_row - variance)
    # Use the variance at a row: between inducing values, PyMC adds 1e-12 to distances.
    return Stationary(possible[0], scales, of_row, pt.zeros(()))


def input_scales(cross: TensorVariable, z: TensorVariable, x: TensorVariable) -> TensorVariable | None:
    """Return scales s (d,) of the inputs, from the only product of z and x in a covariance; None if unknown."""
    products = [each for each in ancestors([cross]) if each.owner is not None and isinstance(each.owner.op, Dot)]
    of_inputs = [each for each in products if z in ancestors([each]) and x in ancestors([each])]
    if len(of_inputs) != 1:
        return None
    sides = of_inputs[0].owner.inputs
    of_z = [side for side in sides if z in ancestors([side]) and x not in ancestors([side])]
    if len(of_z) != 1:
        return None
    columns = z.type.shape[1]
    taken = _columns_taken(of_z[0], z)
    if taken is None:
        return None
    (row,) = graph_replace([of_z[0]], {z: pt.ones((1, columns))}, strict=False)
    return pt.set_subtensor(pt.zeros(columns)[taken], row.ravel())


def _columns_taken(scaled: Variable, z: Variable) -> Array | None:
    """Return the columns of z in a matrix, if it is columns of z times a factor independent of z; else None."""
    if scaled is z:
        return np.arange(z.type.shape[1])
    node: Any = scaled.owner
    if node is None:
        return None
    if isinstance(node.op, AdvancedSubtensor):
        inner = _columns_taken(node.inputs[0], z)
        whole = len(node.inputs) == 2 and isinstance(node.inputs[1], Constant)
        if inner is None or not whole or node.op.idx_list != (slice(None), 0):
            return None
        return inner[np.asarray(node.inputs[1].data)]
    if isinstance(node.op, SpecifyShape) or is_elementwise(scaled, Cast):
        return _columns_taken(node.inputs[0], z)
    if isinstance(node.op, DimShuffle) and node.op.new_order == (1, 0):
        return _columns_taken(node.inputs[0], z)
    if not is_elementwise(scaled, Mul):
        return None
    own = [each for each in node.inputs if z in ancestors([each])]
    return _columns_taken(own[0], z) if len(own) == 1 else None
