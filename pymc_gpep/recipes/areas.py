"""Recipes of conditional autoregressions over areas."""

from collections.abc import Sequence
from functools import cache
from math import prod
from typing import cast

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.distributions.multivariate import CARRV, ICARRV
from pytensor.sparse.basic import dense_from_sparse
from pytensor.sparse.type import SparseTensorType
from pytensor.tensor.variable import TensorVariable
from scipy.linalg import cholesky, solve_triangular
from scipy.sparse import csr_array, tril
from scipy.sparse.csgraph import connected_components

from pymc_gpep.graphs.interpreted import evaluate
from pymc_gpep.recipes.recipe import (
    Field,
    Recipe,
    Shape,
    as_double,
    as_matrix,
    inverse_root,
    is_random,
    parameters,
    reads,
    times,
)


@reads(CARRV)
def read_car(variable: TensorVariable, shape: Shape) -> Recipe:
    """Return the recipe mu + R z of a `pm.CAR`, with R Rᵀ = (tau (D - alpha W))⁻¹ and column sums D of W.

    PyMC's density is the density of this Gaussian times a constant that depends on W alone.
    """
    mu, weights, alpha, tau, _ = parameters(variable)
    dense = weights
    if isinstance(weights.type, SparseTensorType):
        dense = cast(TensorVariable, dense_from_sparse(weights))

    def make(z: TensorVariable, means: Sequence[TensorVariable], scales: Sequence[TensorVariable]) -> TensorVariable:
        weights, alpha, tau = (as_double(scale) for scale in scales)
        root = inverse_root(pt.diag(weights.sum(axis=0)) - alpha.reshape(()) * weights)
        return cast(TensorVariable, means[0] + times(root, z.reshape(shape)) / pt.sqrt(tau.reshape(())))

    positive = (tau, cast(TensorVariable, 1.0 - abs(alpha)))
    scales = as_matrix(dense), alpha, tau
    return Recipe(prod(shape), (mu,), scales, make, positive, _car_field(weights, shape))


def _car_field(weights: TensorVariable, shape: Shape) -> Field | None:
    """Return the field x = √tau (variable - mu) of a `pm.CAR`, with precision D - alpha W; None if W is random."""
    if is_random(weights) or weights.ndim != 2:
        return None
    w = csr_array(_value(weights), dtype=float)
    below, size = tril(w, -1).tocoo(), prod(shape)
    degrees, blocks = np.asarray(w.sum(axis=0)).ravel(), size // shape[-1]
    begin = shape[-1] * np.arange(blocks)[:, None]
    every = np.arange(size)

    def make(x: TensorVariable, means: Sequence[TensorVariable], scales: Sequence[TensorVariable]) -> TensorVariable:
        return cast(TensorVariable, means[0] + x.reshape(shape) / pt.sqrt(as_double(scales[2]).reshape(())))

    def entries(scales: Sequence[TensorVariable]) -> TensorVariable:
        beside = -as_double(scales[1]).reshape(()) * np.tile(below.data, blocks)
        return cast(TensorVariable, pt.concatenate([np.tile(degrees, blocks), beside]))

    first, second = (np.r_[every, (begin + each).ravel()] for each in (below.row, below.col))
    return Field(make, first, second, entries, np.zeros((0, size)), np.zeros(0))


@reads(ICARRV)
def read_icar(variable: TensorVariable, shape: Shape) -> Recipe | None:
    """Return the recipe sigma R z + sd_of_mean z₀ of a `pm.ICAR`, with R Rᵀ = (D - W)⁺. z₀ is for the mean of areas.

    For sigma = 1, PyMC's density is the density of this Gaussian times a constant. PyMC leaves out a power of sigma.
    """
    sigma, sd_of_mean = parameters(variable)[1:]
    if len(shape) != 1 or is_random(sigma):
        return None
    weights = neighbours(variable)
    if not is_connected(weights):
        return None

    @cache
    def root() -> NDArray[np.float64]:
        return _intrinsic_root(weights.toarray())

    def make(z: TensorVariable, means: Sequence[TensorVariable], scales: Sequence[TensorVariable]) -> TensorVariable:
        sigma, sd_of_mean = scales
        return cast(TensorVariable, sigma * times(pt.constant(root()), z[:-1]) + sd_of_mean * z[-1])

    field = None if is_random(sd_of_mean) else _icar_field(weights, sigma, sd_of_mean)
    return Recipe(shape[0], (), (sigma, sd_of_mean), make, (sd_of_mean,), field)


def _icar_field(weights: csr_array, sigma: TensorVariable, sd_of_mean: TensorVariable) -> Field:
    """Return the field x = variable / sigma of a `pm.ICAR`, with Q equal to D - W plus a ridge at one area.

    The term V W⁻¹ Vᵀ of the field removes the ridge, and adds the precision of the sum of all areas.
    """
    n, below = weights.shape[0], tril(weights, -1).tocoo()
    degrees = np.asarray(weights.sum(axis=0)).ravel()
    held = int(degrees.argmax())
    strength = max(degrees[held], 1.0)
    known = np.r_[degrees + strength * (np.arange(n) == held), -below.data]
    scale, narrow = (float(_value(each)) for each in (sigma, sd_of_mean))
    first, second = (np.r_[np.arange(n), each] for each in (below.row, below.col))
    columns = np.stack([np.ones(n), np.arange(n) == held])
    return Field(
        lambda x, means, scales: scales[0] * x,
        first,
        second,
        lambda scales: pt.constant(known),
        columns,
        np.array([(n * narrow / scale) ** 2, -1.0 / strength]),
    )


def neighbours(variable: TensorVariable) -> csr_array:
    """Return the adjacency matrix of an intrinsic autoregression."""
    return csr_array(_value(parameters(variable)[0])).astype(float)


def is_connected(weights: csr_array) -> bool:
    """Return whether any two areas are connected through neighbours."""
    return bool(connected_components(weights, directed=False)[0] == 1)


def _value(variable: TensorVariable) -> NDArray[np.float64]:
    """Return the value of a variable, which may be a sparse matrix."""
    (found,) = evaluate([variable])
    return found.item() if found.dtype == object else found


def _intrinsic_root(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a root of the pseudo-inverse of D - W, (n, n - 1).

    Without the last area, D - W has a Cholesky factor. The inverse of this factor is a root of a generalised inverse.
    After subtraction of the mean of all areas it is a root of the pseudo-inverse.
    """
    laplacian = np.diag(weights.sum(axis=0)) - weights
    n = len(weights)
    lower = cholesky(laplacian[:-1, :-1], lower=True)
    root = np.vstack([solve_triangular(lower, np.eye(n - 1), lower=True).T, np.zeros((1, n - 1))])
    return root - root.mean(axis=0)
