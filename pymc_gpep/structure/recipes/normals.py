"""Recipes of normals, multivariate normals, and normals that sum to zero."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import cast

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.distributions.multivariate import ZeroSumNormalRV
from pytensor.graph.basic import Constant
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.random.basic import MvNormalRV, NormalRV
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.structure.errors import StructureError, describe
from pymc_gpep.structure.interpreted import evaluate
from pymc_gpep.structure.recipes.recipe import Field, Recipe, Shape, as_double, parameters, reads, shape_of, unbroadcast
from pymc_gpep.structure.recipes.roots import Root, inverse_root, pattern_of, read_root, times
from pymc_gpep.structure.sparse_normal import SparseNormalRV

type Indices = NDArray[np.int64]
type Entries = Callable[[Sequence[TensorVariable]], TensorVariable]

_SPARSE = 0.1  # of the entries of a precision, at most
_HELD = 8  # sums that are held at zero, at most
_SMALL = 100  # rows, below which it may have more


@reads(NormalRV)
def read_normal(variable: TensorVariable, shape: Shape) -> Recipe:
    """Mean and scale as they are; the standard normals have the shape of the variable, and broadcast both."""
    mu, sigma = parameters(variable)
    given = sigma
    while given.owner is not None and isinstance(given.owner.op, DimShuffle):
        given = given.owner.inputs[0]
    if isinstance(given, Constant) and (wrong := [each for each in np.ravel(given.data) if not each >= 0]):
        raise StructureError(f"{describe(variable)} has the standard deviation {wrong[0]}, which must be at least 0.")
    return Recipe(
        prod(shape), (mu,), (sigma,), lambda z, means, scales: means[0] + scales[0] * z.reshape(shape), (sigma,)
    )


@reads(MvNormalRV)
def read_mv_normal(variable: TensorVariable, shape: Shape) -> Recipe:
    """A root of the covariance, of each covariance of a batch, times standard normals."""
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
    """The variable less its mean, by a precision that the graph shows, with few entries; None of any other."""
    if root.of is not inverse_root or root.scale.ndim != 2 or not shape:
        return None
    first, second = pattern_of(root.scale)
    if len(first) > _SPARSE * shape[-1] * max(shape[-1], _SMALL):
        return None
    return _field_of(shape, first, second, lambda scales: as_double(scales[0])[first, second])


def _field_of(shape: Shape, first: Indices, second: Indices, entries_of: Entries) -> Field:
    """The variable less its mean, by the entries of a precision that all of a batch have."""
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
    """A root of the inverse of the precision times standard normals, or the precision as it is."""
    _, _, mean, entries, *places = parameters(variable)
    first, second = evaluate(places)

    def make(z: TensorVariable, means: Sequence[TensorVariable], scales: Sequence[TensorVariable]) -> TensorVariable:
        below = pt.zeros((shape[-1], shape[-1]))[first, second].set(as_double(scales[0]))
        root = inverse_root(below[second, first].set(as_double(scales[0])))
        return cast(TensorVariable, means[0] + times(root, z.reshape(shape)))

    field = _field_of(shape, first, second, lambda scales: as_double(scales[0]))
    return Recipe(prod(shape), (unbroadcast(mean),), (entries,), make, field=field)


@reads(ZeroSumNormalRV)
def read_zero_sum(variable: TensorVariable, shape: Shape) -> Recipe:
    """A normal less its means along the axes, which is the projection on arrays that sum to zero along each."""
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
        )
    return Recipe(size, (), (sigma,), make, (sigma,), field)


def unprojected(variable: TensorVariable, recipe: Recipe) -> Recipe | None:
    """Return the recipe of a normal that sums to zero along its last axis without that, by the same standard normals.

    None for other variables.
    """
    if not isinstance(variable.owner.op, ZeroSumNormalRV) or variable.owner.op.ndim_supp != 1:
        return None
    shape = shape_of(variable)
    return Recipe(recipe.size, recipe.means, recipe.scales, lambda z, means, scales: scales[0] * z.reshape(shape))
