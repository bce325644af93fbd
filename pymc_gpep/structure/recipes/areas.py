"""Recipes of conditional autoregressions over areas."""

from collections.abc import Sequence
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

from pymc_gpep.structure.assembly import evaluate
from pymc_gpep.structure.recipes.recipe import Recipe, Shape, as_double, as_matrix, is_random, parameters, reads
from pymc_gpep.structure.recipes.roots import inverse_root, times

__all__ = ["is_connected", "neighbours", "read_car", "read_icar"]


@reads(CARRV)
def read_car(variable: TensorVariable, shape: Shape) -> Recipe:
    """The inverse root of the precision, tau (D - alpha W), where D has the numbers of neighbours.

    PyMC's density is that of this Gaussian times a constant, which depends on W alone.
    """
    mu, weights, alpha, tau, _ = parameters(variable)
    if isinstance(weights.type, SparseTensorType):
        weights = cast(TensorVariable, dense_from_sparse(weights))

    def make(z: TensorVariable, means: Sequence[TensorVariable], scales: Sequence[TensorVariable]) -> TensorVariable:
        weights, alpha, tau = (as_double(scale) for scale in scales)
        root = inverse_root(pt.diag(weights.sum(axis=0)) - alpha.reshape(()) * weights)
        return cast(TensorVariable, means[0] + times(root, z.reshape(shape)) / pt.sqrt(tau.reshape(())))

    positive = (tau, cast(TensorVariable, 1.0 - abs(alpha)))
    return Recipe(prod(shape), (mu,), (as_matrix(weights), alpha, tau), make, positive)


@reads(ICARRV)
def read_icar(variable: TensorVariable, shape: Shape) -> Recipe | None:
    """The root of the pseudo-inverse of D - W, and the mean of all areas, which PyMC holds near zero.

    PyMC's density is that of this Gaussian times a constant, as long as sigma is one: it lacks the power of sigma.
    """
    sigma, sd_of_mean = parameters(variable)[1:]
    if len(shape) != 1 or is_random(sigma):
        return None
    root = _intrinsic_root(neighbours(variable))
    if root is None:
        return None

    def make(z: TensorVariable, means: Sequence[TensorVariable], scales: Sequence[TensorVariable]) -> TensorVariable:
        sigma, sd_of_mean = scales
        return cast(TensorVariable, sigma * times(pt.constant(root), z[:-1]) + sd_of_mean * z[-1])

    return Recipe(shape[0], (), (sigma, sd_of_mean), make, (sd_of_mean,))


def neighbours(variable: TensorVariable) -> NDArray[np.float64]:
    """Return the matrix of an intrinsic autoregression that tells which areas are neighbours."""
    return np.asarray(evaluate([parameters(variable)[0]])[0], float)


def is_connected(weights: NDArray[np.float64]) -> bool:
    """Whether each area can be reached from each other one by way of neighbours."""
    reached = np.arange(len(weights)) == 0
    new = reached
    while new.any():
        new = (weights[new] != 0).any(axis=0) & ~reached
        reached = reached | new
    return bool(reached.all())


def _intrinsic_root(weights: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """Return a root of the pseudo-inverse of D - W, (n, n - 1), or None where areas are not connected.

    The last area is held at zero, where D - W without its row and column has a Cholesky factor. Taking the mean of all
    areas off then makes a generalised inverse the pseudo-inverse.
    """
    if not is_connected(weights):
        return None
    laplacian = np.diag(weights.sum(axis=0)) - weights
    n = len(weights)
    lower = cholesky(laplacian[:-1, :-1], lower=True)
    root = np.vstack([solve_triangular(lower, np.eye(n - 1), lower=True).T, np.zeros((1, n - 1))])
    return root - root.mean(axis=0)
