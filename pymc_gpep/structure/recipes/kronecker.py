"""Recipes of distributions whose covariance is a Kronecker product."""

from collections.abc import Sequence
from math import prod
from typing import cast

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.multivariate import KroneckerNormalRV, MatrixNormalRV
from pymc.pytensorf import resolve_shapes
from pytensor.tensor.basic import get_underlying_scalar_constant_value
from pytensor.tensor.exceptions import NotScalarConstantError
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.structure.assembly import evaluate
from pymc_gpep.structure.recipes.recipe import Recipe, Shape, as_double, parameters, reads, unbroadcast
from pymc_gpep.structure.recipes.roots import read_root, times

__all__ = ["read_kronecker", "read_matrix_normal"]


@reads(KroneckerNormalRV)
def read_kronecker(variable: TensorVariable, shape: Shape) -> Recipe:
    """Roots of the factors, applied along one axis each; noise has standard normals of its own."""
    _, _, mu, sigma, *covs = parameters(variable)
    roots = [read_root(cov) for cov in covs]
    lengths = [int(each[-1]) for each in evaluate(resolve_shapes([cov.shape for cov in covs]))]
    size = prod(shape)
    noisy = not _is_zero(sigma)

    def make(z: TensorVariable, means: Sequence[TensorVariable], scales: Sequence[TensorVariable]) -> TensorVariable:
        values = z[:size].reshape((*shape[:-1], *lengths))
        for axis, (root, scale) in enumerate(zip(roots, scales[1:], strict=True), start=len(shape) - 1):
            values = pt.moveaxis(times(root.of(scale), pt.moveaxis(values, axis, -1)), -1, axis)
        made = means[0] + values.reshape(shape)
        return cast(TensorVariable, made + scales[0] * z[size:].reshape(shape) if noisy else made)

    return Recipe(size * (1 + noisy), (mu,), (sigma, *(root.scale for root in roots)), make)


@reads(MatrixNormalRV)
def read_matrix_normal(variable: TensorVariable, shape: Shape) -> Recipe | None:
    """Both roots, one on each side; PyMC has no density of several matrices."""
    if len(shape) != 2:
        return None
    mu, row_root, column_root = parameters(variable)

    def make(z: TensorVariable, means: Sequence[TensorVariable], scales: Sequence[TensorVariable]) -> TensorVariable:
        rows, columns = (pt.tril(as_double(scale)) for scale in scales)  # PyMC's density looks at no more of them
        return cast(TensorVariable, means[0] + rows @ (z.reshape(shape) @ columns.mT))

    diagonals = tuple(cast(TensorVariable, pt.diagonal(root)) for root in (row_root, column_root))
    return Recipe(prod(shape), (unbroadcast(mu),), (row_root, column_root), make, diagonals)


def _is_zero(variable: TensorVariable) -> bool:
    try:
        return bool(np.all(get_underlying_scalar_constant_value(variable) == 0))
    except NotScalarConstantError:
        return False
