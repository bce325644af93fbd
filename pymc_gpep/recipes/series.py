"""Recipes of random walks and autoregressive processes."""

from collections.abc import Sequence
from math import prod
from typing import cast

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.continuous import FlatRV
from pymc.distributions.timeseries import AutoRegressiveRV, RandomWalkRV
from pytensor.tensor.random.basic import NormalRV
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.graphs.interpreted import evaluate
from pymc_gpep.recipes.recipe import (
    Field,
    Make,
    Recipe,
    Shape,
    as_double,
    is_random,
    parameters,
    reads,
    recipe_of,
    solved,
    times,
)


@reads(RandomWalkRV)
def read_random_walk(variable: TensorVariable, shape: Shape) -> Recipe | None:
    """Return the recipe of a random walk: running sums of a start and of innovations, both Gaussian.

    In PyMC, time is the first axis of start and innovations. In the walk, time is the last axis.
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
        _walk_field(variable, shape, make),
        first.flat + tuple(first.size + place for place in others.flat),
    )


def _walk_field(variable: TensorVariable, shape: Shape, make: Make) -> Field | None:
    """Return a field of the start and the walk minus the start, for normal steps; None for other steps.

    The start is a separate part. Steps with a common scale are divided by this scale. Otherwise small steps would have
    a large precision, and smaller precisions would be lost to rounding.
    """
    start, innovations, _ = parameters(variable)
    *series, length = shape
    if variable.owner.op.ndim_supp != 1 or length < 2:
        return None
    flat = isinstance(start.owner.op, FlatRV)
    if not (flat or type(start.owner.op) is NormalRV) or type(innovations.owner.op) is not NormalRV:
        return None
    sigma = parameters(innovations)[1]
    alike = sigma.ndim <= len(series) or bool(sigma.type.broadcastable[0])
    size, count, steps, place = prod(shape), prod(series), (*series, length - 1), 0 if flat else 1
    every = count + np.arange(size - count).reshape(steps)
    later, before = every[..., 1:].ravel(), every[..., :-1].ravel()

    def spread(scale: TensorVariable) -> TensorVariable:
        """Return the scale of the steps with the time axis moved to the end."""
        return cast(TensorVariable, pt.moveaxis(pt.broadcast_to(as_double(scale), (length - 1, *series)), 0, -1))

    def of(x: TensorVariable, means: Sequence[TensorVariable], scales: Sequence[TensorVariable]) -> TensorVariable:
        begun = make(pt.concatenate([x[:count], pt.zeros(size - count)]), means, scales)
        walked = x[count:].reshape(steps) * (spread(scales[place]) if alike else 1.0)
        return cast(TensorVariable, begun + pt.concatenate([pt.zeros((*series, 1)), walked], axis=-1))

    def entries(scales: Sequence[TensorVariable]) -> TensorVariable:
        step = pt.ones(steps) if alike else spread(scales[place]) ** -2
        between = step[..., 1:].ravel()
        return cast(TensorVariable, pt.concatenate([pt.ones(starts.size), step.ravel(), between, -between]))

    starts = np.arange(0 if flat else count)
    first = np.concatenate([starts, every.ravel(), before, later])
    second = np.concatenate([starts, every.ravel(), before, before])
    return Field(of, first, second, entries, np.zeros((0, size)), np.zeros(0), ((count,), steps))


@reads(AutoRegressiveRV)
def read_autoregressive(variable: TensorVariable, shape: Shape) -> Recipe | None:
    """Return the recipe A⁻¹ e of an autoregression: e = A · series has the start and the innovations."""
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
            places = pt.constant(later), pt.constant(later - lag)
            matrix = matrix[(..., *places)].set(-as_double(rho[..., lag - 1, None]))
        innovations = pt.concatenate([first.make(z[: first.size], means, of_start), noise], axis=-1)
        return times(solved(matrix), innovations)

    scales, positive = (rho, sigma, *first.scales), (sigma, *first.positive)
    field = None if constant else _series_field(start, order, shape)
    return Recipe(first.size + prod(series) * len(later), first.means, scales, make, positive, field, first.flat)


def _series_field(start: TensorVariable, order: int, shape: Shape) -> Field | None:
    """Return the field x = series / sigma of an autoregression, if its start is normal with mean 0; else None."""
    *series, length = shape
    if not isinstance(start.owner.op, NormalRV) or is_random(mean := parameters(start)[0]):
        return None
    if np.any(evaluate([mean])[0] != 0.0) or length <= order:
        return None
    size, lags = prod(shape), np.arange(order + 1)
    begin = np.arange(prod(series))[:, None] * length
    early, late = (begin + np.arange(order)).ravel(), begin + np.arange(order, length)
    pairs = [(a, b) for a in lags for b in lags if a <= b]

    def entries(scales: Sequence[TensorVariable]) -> TensorVariable:
        rho, sigma, of_start = (as_double(scale) for scale in scales)
        taken = pt.concatenate([pt.ones_like(rho[..., :1]), -rho], axis=-1)
        whole = pt.zeros((*series, length - order))
        found = [pt.broadcast_to((sigma[..., None] / of_start) ** 2, (*series, order)).ravel()]
        found += [(whole + (taken[..., a] * taken[..., b])[..., None]).ravel() for a, b in pairs]
        return cast(TensorVariable, pt.concatenate(found))

    def of(x: TensorVariable, means: Sequence[TensorVariable], scales: Sequence[TensorVariable]) -> TensorVariable:
        return cast(TensorVariable, as_double(scales[1])[..., None] * x.reshape(shape))

    first = np.concatenate([early, *((late - a).ravel() for a, _ in pairs)])
    second = np.concatenate([early, *((late - b).ravel() for _, b in pairs)])
    return Field(of, first, second, entries, np.zeros((0, size)), np.zeros(0))
