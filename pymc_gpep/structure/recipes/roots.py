"""Square roots of covariances, as PyMC's graphs give them.

A root is any square matrix R with R Rᵀ equal to the covariance. It is computed from parameters alone, so that a
standard normal enters by a matrix product and nothing else.
"""

from collections.abc import Callable
from typing import NamedTuple, cast

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.pytensorf import get_symbolic_rv_shapes, resolve_shapes
from pytensor.graph.op import Op
from pytensor.graph.traversal import ancestors
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.linalg.inverse import MatrixInverse
from pytensor.tensor.math import Dot
from pytensor.tensor.random.op import RNGConsumerOp
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.structure.interpreted import evaluate
from pymc_gpep.structure.recipes.recipe import as_double, as_matrix

_SEED = 1


class Root(NamedTuple):
    """A parameter of a distribution, and the function that makes a root of the covariance from it."""

    scale: TensorVariable
    of: Callable[[TensorVariable], TensorVariable]


def read_root(cov: TensorVariable) -> Root:
    """Return how to make a root of a covariance.

    A factor that the graph shows, L of L Lᵀ, is taken as it is, and a precision that it shows is not inverted.
    """
    cov = as_matrix(cov)
    node = cov.owner
    op = None if node is None else _core(node.op)
    if isinstance(op, Dot):
        factor, other = cast(list[TensorVariable], node.inputs)
        if _are_transposed(factor, other) and _is_square(factor):
            return Root(factor, as_double)
    if isinstance(op, MatrixInverse):
        return Root(as_matrix(cast(TensorVariable, node.inputs[0])), inverse_root)
    return Root(cov, lower_root)


def lower_root(cov: TensorVariable) -> TensorVariable:
    """Return the root of a covariance, by its Cholesky factor."""
    return cast(TensorVariable, pt.linalg.cholesky(as_double(cov)))


def inverse_root(precision: TensorVariable) -> TensorVariable:
    """Return the root of the inverse of a precision, L⁻ᵀ of L Lᵀ."""
    lower = pt.linalg.cholesky(as_double(precision))
    return cast(TensorVariable, solved(lower).mT)


def solved(lower: TensorVariable) -> TensorVariable:
    """Return the inverse of lower triangular matrices, (..., n, n)."""
    return cast(TensorVariable, pt.linalg.solve_triangular(lower, pt.eye(lower.shape[-1]), lower=True, b_ndim=2))


def pattern_of(precision: TensorVariable) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return rows and columns of the entries of the lower triangle that a precision has at random hyperparameters."""
    random = [v for v in ancestors([precision]) if v.owner is not None and isinstance(v.owner.op, RNGConsumerOp)]
    given = [cast(TensorVariable, v) for v in random if not isinstance(v.type, RandomType)]
    rng = np.random.default_rng(_SEED)
    shapes = evaluate(get_symbolic_rv_shapes(given)) if given else []
    there = False
    for _ in range(2):
        values = {v: rng.uniform(0.2, 0.8, size=tuple(shape)) for v, shape in zip(given, shapes, strict=True)}
        (found,) = evaluate([precision], {v: value.astype(v.dtype) for v, value in values.items()})
        there = there | (found != 0.0)
    return np.nonzero(np.tril(there))


def times(root: TensorVariable, vectors: TensorVariable) -> TensorVariable:
    """Return the products of matrices (..., n, m) with vectors (..., m)."""
    if root.ndim == 2:
        return cast(TensorVariable, pt.matmul(vectors, root.mT))
    return cast(TensorVariable, pt.matmul(root, vectors[..., None])[..., 0])


def _core(op: Op) -> Op:
    return cast(Op, op.core_op) if isinstance(op, Blockwise) else op


def _are_transposed(one: TensorVariable, other: TensorVariable) -> bool:
    return _is_transpose(one, other) or _is_transpose(other, one)


def _is_transpose(variable: TensorVariable, of: TensorVariable) -> bool:
    node = variable.owner
    if node is None or not isinstance(node.op, DimShuffle) or node.inputs[0] is not of:
        return False
    *batch, last, first = node.op.new_order
    return [*batch, first, last] == list(range(of.ndim))


def _is_square(matrix: TensorVariable) -> bool:
    """Whether a matrix is square; a factor with more columns than rows has more standard normals than numbers."""
    if getattr(matrix.tag, "lower_triangular", False):
        return True
    rows, columns = matrix.type.shape[-2:]
    if rows is None or columns is None:
        rows, columns = evaluate(resolve_shapes([matrix.shape]))[0][-2:]
    return bool(rows == columns)
