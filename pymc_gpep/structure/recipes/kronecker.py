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

from pymc_gpep.structure.interpreted import evaluate
from pymc_gpep.structure.recipes.recipe import Field, Recipe, Shape, as_double, parameters, reads, unbroadcast
from pymc_gpep.structure.recipes.roots import Root, inverse_root, pattern_of, read_root, times

_SHORT = 30  # rows, up to which a factor may be by its covariance
_ENTRIES = 2_000_000  # of a product, at most


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

    field = _kronecker_field(roots, lengths, shape, noisy)
    return Recipe(size * (1 + noisy), (mu,), (sigma, *(root.scale for root in roots)), make, field=field)


def _kronecker_field(roots: Sequence[Root], lengths: Sequence[int], shape: Shape, noisy: bool) -> Field | None:
    """The variable less its mean and noise, by the product of the precisions of the factors, if it has few entries.

    A factor by its precision has the entries of that, and a short one by its covariance has all.
    """
    shown = [root.of is inverse_root for root in roots]
    if any(not sparse and length > _SHORT for sparse, length in zip(shown, lengths, strict=True)):
        return None
    first = second = np.zeros(1, np.int64)
    own = []
    for root, sparse, length in zip(roots, shown, lengths, strict=True):
        below = pattern_of(root.scale) if sparse else np.tril_indices(length)
        apart = below[0] != below[1]
        rows, columns = np.r_[below[0], below[1][apart]], np.r_[below[1], below[0][apart]]
        if len(first) * len(rows) > _ENTRIES:
            return None
        first, second = ((a[:, None] * length + b).ravel() for a, b in ((first, rows), (second, columns)))
        own.append((rows, columns))
    size, count = prod(shape), prod(lengths)
    kept = first >= second
    begin = np.arange(0, size, count)[:, None]
    noise = np.arange(size, size * (1 + noisy))

    def make(x: TensorVariable, means: Sequence[TensorVariable], scales: Sequence[TensorVariable]) -> TensorVariable:
        made = means[0] + x[:size].reshape(shape)
        return cast(TensorVariable, made + scales[0] * x[size:].reshape(shape) if noisy else made)

    def entries(scales: Sequence[TensorVariable]) -> TensorVariable:
        found = pt.ones(1)
        for root, sparse, places, scale in zip(roots, shown, own, scales[1:], strict=True):
            factor = root.of(scale)
            precision = as_double(scale) if sparse else pt.linalg.inv(factor @ factor.mT)
            found = (found[:, None] * precision[places]).ravel()
        return cast(TensorVariable, pt.concatenate([pt.tile(found[kept], len(begin)), pt.ones(len(noise))]))

    rows, columns = (np.r_[(begin + each[kept]).ravel(), noise] for each in (first, second))
    whole = size * (1 + noisy)
    return Field(make, rows, columns, entries, np.zeros((0, whole)), np.zeros(0), (shape,) * (1 + noisy))


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
