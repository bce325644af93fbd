"""Recipes of normals: with any covariance, with a zero sum, and with Kronecker products."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import cast

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.distributions.continuous import FlatRV
from pymc.distributions.multivariate import KroneckerNormalRV, MatrixNormalRV, ZeroSumNormalRV
from pymc.pytensorf import resolve_shapes
from pytensor.tensor.basic import get_underlying_scalar_constant_value
from pytensor.tensor.exceptions import NotScalarConstantError
from pytensor.tensor.random.basic import MvNormalRV, UniformRV
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.graphs.interpreted import evaluate
from pymc_gpep.recipes.recipe import (
    Field,
    Recipe,
    Root,
    Shape,
    as_double,
    inverse_root,
    parameters,
    pattern_of,
    read_root,
    reads,
    shape_of,
    times,
    unbroadcast,
)
from pymc_gpep.recipes.sparse_normal import SparseNormalRV

type Indices = NDArray[np.int64]
type Entries = Callable[[Sequence[TensorVariable]], TensorVariable]

_SPARSE = 0.1  # A precision counts as sparse if at most this share of its entries is nonzero.
_HELD = 8  # Largest number of zero-sum constraints in a field.
_SMALL = 100  # A precision with fewer rows counts as sparse if its nonzero entries are few enough for this size.


@reads(FlatRV)
def read_flat(variable: TensorVariable, shape: Shape) -> Recipe:
    """Return the recipe of a flat variable: z contains the entries of the variable, with prior density 1."""
    size = prod(shape)
    return Recipe(size, (), (), lambda z, means, scales: z.reshape(shape), flat=tuple(range(size)))


class WideUniformRV(UniformRV):
    """Uniform variable with bounds that are ignored: the posterior is negligible beyond them."""


wide_uniform = WideUniformRV()


@reads(WideUniformRV)
def read_wide_uniform(variable: TensorVariable, shape: Shape) -> Recipe:
    """Return the recipe midpoint + width · z of a uniform variable, with density 1 for z from −½ to ½."""
    size = prod(shape)

    def make(z: TensorVariable, means: Sequence[TensorVariable], bounds: Sequence[TensorVariable]) -> TensorVariable:
        lower, upper = map(as_double, bounds)
        return cast(TensorVariable, 0.5 * (lower + upper) + (upper - lower) * z.reshape(shape))

    return Recipe(size, (), tuple(parameters(variable)), make, flat=tuple(range(size)), bounded=True)


@reads(MvNormalRV)
def read_mv_normal(variable: TensorVariable, shape: Shape) -> Recipe:
    """Return the recipe mean + R z of a normal, with a root R of its covariance, or of each covariance in a batch."""
    mean, cov = parameters(variable)
    root = read_root(cov)
    return Recipe(
        prod(shape),
        (unbroadcast(mean),),
        (root.scale,),
        lambda z, means, scales: means[0] + times(root.of(scales[0]), z.reshape(shape)),
        field=_by_precision(root, shape),
    )


def _by_precision(root: Root, shape: Shape) -> Field | None:
    """Return the field x = variable - mean, if the graph contains a sparse precision; else None."""
    if root.of is not inverse_root or root.scale.ndim != 2 or not shape:
        return None
    first, second = pattern_of(root.scale)
    if len(first) > _SPARSE * shape[-1] * max(shape[-1], _SMALL):
        return None
    return _field_of(shape, first, second, lambda scales: as_double(scales[0])[pt.constant(first), pt.constant(second)])


def _field_of(shape: Shape, first: Indices, second: Indices, entries_of: Entries) -> Field:
    """Return the field x = variable - mean, from the entries of a precision that is the same for the whole batch."""
    size = prod(shape)
    begin = np.arange(0, size, shape[-1])[:, None]

    def entries(scales: Sequence[TensorVariable]) -> TensorVariable:
        return cast(TensorVariable, pt.tile(entries_of(scales), len(begin)))

    return Field(
        lambda x, means, scales: means[0] + x.reshape(shape),
        (begin + first).ravel(),
        (begin + second).ravel(),
        entries,
        np.zeros((0, size)),
        np.zeros(0),
    )


@reads(SparseNormalRV)
def read_sparse_normal(variable: TensorVariable, shape: Shape) -> Recipe:
    """Return the recipe mean + R z of a sparse normal, with a root R of the covariance, and a field."""
    _, _, mean, entries, *places = parameters(variable)
    first, second = evaluate(places)

    def make(z: TensorVariable, means: Sequence[TensorVariable], scales: Sequence[TensorVariable]) -> TensorVariable:
        places = pt.constant(first), pt.constant(second)
        below = pt.zeros((shape[-1], shape[-1]))[places].set(as_double(scales[0]))
        root = inverse_root(below[places[::-1]].set(as_double(scales[0])))
        return cast(TensorVariable, means[0] + times(root, z.reshape(shape)))

    field = _field_of(shape, first, second, lambda scales: as_double(scales[0]))
    return Recipe(prod(shape), (unbroadcast(mean),), (entries,), make, field=field)


@reads(ZeroSumNormalRV)
def read_zero_sum(variable: TensorVariable, shape: Shape) -> Recipe:
    """Return the recipe of a zero-sum normal: independent normals minus their means along the zero-sum axes."""
    sigma = parameters(variable)[2]
    size, series = prod(shape), prod(shape[:-1])
    axes = range(-variable.owner.op.ndim_supp, 0)

    def make(z, means, scales):  # type: ignore[no-untyped-def]
        values = z.reshape(shape)
        for axis in axes:
            values = values - values.sum(axis=axis, keepdims=True) / shape[axis]
        return scales[0] * values

    field = None
    if len(axes) == 1 and series <= _HELD:
        each = np.repeat(np.eye(series), shape[-1], axis=1)
        field = replace(
            Field.plain(size, lambda x, means, scales: scales[0] * x.reshape(shape)),
            columns=each,
            widths=np.zeros(series),
            independent=False,
        )
    return Recipe(size, (), (sigma,), make, (sigma,), field)


def unprojected(variable: TensorVariable, recipe: Recipe) -> Recipe | None:
    """Return the recipe of a zero-sum normal without the subtraction of means, with the same standard normals z.

    None for other variables.
    """
    if not isinstance(variable.owner.op, ZeroSumNormalRV) or variable.owner.op.ndim_supp != 1:
        return None
    shape = shape_of(variable)
    return Recipe(recipe.size, recipe.means, recipe.scales, lambda z, means, scales: scales[0] * z.reshape(shape))


_SHORT = 30  # Largest number of rows of a Kronecker factor with a dense precision.
_ENTRIES = 2_000_000  # Largest number of entries in the Kronecker product of precisions.


@reads(KroneckerNormalRV)
def read_kronecker(variable: TensorVariable, shape: Shape) -> Recipe:
    """Return the recipe of a Kronecker normal: a root of each factor acts along one axis. Noise has further normals."""
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
    """Return a field with the Kronecker product of the factors' precisions; None if it has too many entries.

    A factor that is defined by its covariance has a dense precision, and must be short.
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
            found = (found[:, None] * precision[tuple(map(pt.constant, places))]).ravel()
        return cast(
            TensorVariable, pt.concatenate([pt.tile(found[pt.constant(kept)], len(begin)), pt.ones(len(noise))])
        )

    rows, columns = (np.r_[(begin + each[kept]).ravel(), noise] for each in (first, second))
    whole = size * (1 + noisy)
    return Field(make, rows, columns, entries, np.zeros((0, whole)), np.zeros(0), (shape,) * (1 + noisy))


@reads(MatrixNormalRV)
def read_matrix_normal(variable: TensorVariable, shape: Shape) -> Recipe | None:
    """Return the recipe mu + R Z Cᵀ of a matrix normal, with roots R and C. A batch has no density in PyMC."""
    if len(shape) != 2:
        return None
    mu, row_root, column_root = parameters(variable)

    def make(z: TensorVariable, means: Sequence[TensorVariable], scales: Sequence[TensorVariable]) -> TensorVariable:
        rows, columns = (pt.tril(as_double(scale)) for scale in scales)  # PyMC's density uses only the lower triangle.
        return cast(TensorVariable, means[0] + rows @ (z.reshape(shape) @ columns.mT))

    diagonals = tuple(cast(TensorVariable, pt.diagonal(root)) for root in (row_root, column_root))
    return Recipe(prod(shape), (unbroadcast(mu),), (row_root, column_root), make, diagonals)


def _is_zero(variable: TensorVariable) -> bool:
    try:
        return bool(np.all(get_underlying_scalar_constant_value(variable) == 0))
    except NotScalarConstantError:
        return False
