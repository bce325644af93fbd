"""Recipes of normals, multivariate normals, and normals that sum to zero."""

from math import prod

import numpy as np
from pymc.distributions.multivariate import ZeroSumNormalRV
from pytensor.graph.basic import Constant
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.random.basic import MvNormalRV, NormalRV
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.structure.errors import StructureError, describe
from pymc_gpep.structure.recipes.recipe import Recipe, Shape, parameters, reads, shape_of, unbroadcast
from pymc_gpep.structure.recipes.roots import read_root, times

__all__ = ["read_mv_normal", "read_normal", "read_zero_sum", "unprojected"]


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
    )


@reads(ZeroSumNormalRV)
def read_zero_sum(variable: TensorVariable, shape: Shape) -> Recipe:
    """A normal less its means along the axes, which is the projection on arrays that sum to zero along each."""
    sigma = parameters(variable)[2]
    axes = range(-variable.owner.op.ndim_supp, 0)

    def make(z, means, scales):  # type: ignore[no-untyped-def]
        values = z.reshape(shape)
        for axis in axes:
            values = values - values.sum(axis=axis, keepdims=True) / shape[axis]
        return scales[0] * values

    return Recipe(prod(shape), (), (sigma,), make, (sigma,))


def unprojected(variable: TensorVariable, recipe: Recipe) -> Recipe | None:
    """Return the recipe of a normal that sums to zero along its last axis without that, by the same standard normals.

    None for other variables.
    """
    if not isinstance(variable.owner.op, ZeroSumNormalRV) or variable.owner.op.ndim_supp != 1:
        return None
    shape = shape_of(variable)
    return Recipe(recipe.size, recipe.means, recipe.scales, lambda z, means, scales: scales[0] * z.reshape(shape))
