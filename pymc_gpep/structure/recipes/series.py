"""Recipes of random walks and autoregressive processes."""

from collections.abc import Sequence
from math import prod
from typing import cast

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.timeseries import AutoRegressiveRV, RandomWalkRV
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.structure.recipes.recipe import Recipe, Shape, as_double, parameters, reads, recipe_of
from pymc_gpep.structure.recipes.roots import solved, times

__all__ = ["read_autoregressive", "read_random_walk"]


@reads(RandomWalkRV)
def read_random_walk(variable: TensorVariable, shape: Shape) -> Recipe | None:
    """The running sum of a start and of innovations, whatever Gaussian variables these are.

    PyMC keeps time in front for both of them, and for the walk behind the axes of other series.
    """
    start, innovations, _ = parameters(variable)
    time = len(shape) - variable.owner.op.ndim_supp
    series, within = shape[:time], shape[time + 1 :]
    first = recipe_of(start, (1, *series, *within))
    others = recipe_of(innovations, (shape[time] - 1, *series, *within))
    if first is None or others is None:
        return None

    def make(z: TensorVariable, means: Sequence[TensorVariable], scales: Sequence[TensorVariable]) -> TensorVariable:
        parts = [
            first.make(z[: first.size], means[: len(first.means)], scales[: len(first.scales)]),
            others.make(z[first.size :], means[len(first.means) :], scales[len(first.scales) :]),
        ]
        steps = pt.concatenate([pt.moveaxis(part, 0, time) for part in parts], axis=time)
        return cast(TensorVariable, pt.cumsum(steps, axis=time))

    return Recipe(
        first.size + others.size,
        first.means + others.means,
        first.scales + others.scales,
        make,
        first.positive + others.positive,
    )


@reads(AutoRegressiveRV)
def read_autoregressive(variable: TensorVariable, shape: Shape) -> Recipe | None:
    """The start and the innovations, times the inverse of the matrix that takes innovations out of the series."""
    rho, sigma, start, *_ = parameters(variable)
    op = variable.owner.op
    order, constant = op.ar_order, op.constant_term
    *series, length = shape
    first = recipe_of(start, (*series, order))
    if first is None:
        return None
    later = np.arange(order, length)

    def make(z: TensorVariable, means: Sequence[TensorVariable], scales: Sequence[TensorVariable]) -> TensorVariable:
        rho, sigma, *of_start = scales
        noise = sigma[..., None] * z[first.size :].reshape((*series, len(later)))
        if constant:
            noise = noise + rho[..., :1]
            rho = rho[..., 1:]
        matrix = pt.zeros((*(rho.shape[axis] for axis in range(rho.ndim - 1)), 1, 1)) + pt.eye(length)
        for lag in range(1, order + 1):
            matrix = matrix[..., later, later - lag].set(-as_double(rho[..., lag - 1, None]))
        innovations = pt.concatenate([first.make(z[: first.size], means, of_start), noise], axis=-1)
        return times(solved(matrix), innovations)

    scales, positive = (rho, sigma, *first.scales), (sigma, *first.positive)
    return Recipe(first.size + prod(series) * len(later), first.means, scales, make, positive)
