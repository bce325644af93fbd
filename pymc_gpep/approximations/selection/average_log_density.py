"""The log density of observations averaged over normal latent values that may be correlated, with derivatives.

For one function it is exact. Several functions enter by their differences from the one observed, x = μ + L s with s
standard normal. The average is over a fixed rule of nodes, and derivatives are those of the rule, through the Cholesky
factor L.
"""

from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.likelihoods.likelihood import Likelihood, LogDensity, log_density_with_slope
from pymc_gpep.likelihoods.local_computations import AverageLogDensity, BlockCurvature, CoupledCurvature, RoughDensity

_MOST = 81  # nodes of a product rule
_FINEST, _COARSEST = 20, 3  # nodes in each of its dimensions
_SPHERE = 64  # about as many where that has no room
_SEED = 20_040_661
_ROUNDING = 1e-13  # of a covariance that is singular


class RowAverages(NamedTuple):
    """Averages over B rows."""

    value: float
    """Σ E log p(y_i | f_i)."""
    slope: Array
    """Derivatives in the means, (c, B)."""
    curvature: Array
    """Derivatives in the covariances, symmetric, (B, c, c)."""


def has_averages(likelihood: Likelihood) -> bool:
    """Whether there are any."""
    return any(likelihood.offers(kind) for kind in (AverageLogDensity, BlockCurvature, CoupledCurvature))


def average_log_density(likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> RowAverages:
    """Average over N(mean_i, cov_i), from means (c, B) and covariances (B, c, c)."""
    if likelihood.offers(AverageLogDensity):
        found = np.empty((3, len(labels)))
        given = np.ascontiguousarray(mean[0]), np.ascontiguousarray(cov[:, 0, 0]), labels, likelihood.parameters
        likelihood.computation(AverageLogDensity).terms(*given, found)
        return RowAverages(float(found[0].sum()), found[1][None], found[2][:, None, None])
    return _by_nodes(_log_density(likelihood), labels, mean, cov)


def _log_density(likelihood: Likelihood) -> LogDensity:
    """Log density of several functions with its slope, to a few digits where a likelihood offers that."""
    if likelihood.offers(RoughDensity):
        return likelihood.computation(RoughDensity).log_density
    found = log_density_with_slope(likelihood)
    assert found is not None, likelihood
    return found


def _by_nodes(log_density: LogDensity, labels: NDArray[np.int64], mean: Array, cov: Array) -> RowAverages:
    c, rows = mean.shape
    d = c - 1
    away = _differences(c)[labels]  # (B, d, c)
    centre = np.einsum("bdc,cb->bd", away, mean)
    spread = away @ cov @ away.swapaxes(1, 2)
    every = range(d)
    spread[:, every, every] += _ROUNDING * (np.abs(spread).max(axis=(1, 2)) + 1e-300)[:, None]
    lower = np.linalg.cholesky(spread)
    points, weights = _rule(d)
    slope, of_lower = np.zeros((rows, d)), np.zeros((rows, d, d))
    f, gradient = np.zeros((c, rows)), np.empty((c, rows))
    others = np.argsort(away.sum(axis=1) > 0, axis=1, kind="stable")[:, :d].T  # all functions but the observed
    column = np.arange(rows)
    value = 0.0
    for point, weight in zip(points, weights, strict=True):
        f[others, column] = -(centre + lower @ point).T
        value += weight * log_density(f, labels, gradient)
        pull = -weight * gradient[others, column].T
        slope += pull
        of_lower += pull[:, :, None] * point
    # Through the Cholesky factor: ½ L⁻ᵀ (Φ + Φᵀ) L⁻¹, Φ the lower triangle of Lᵀ L̄ with half its diagonal.
    inner = np.tril(lower.swapaxes(1, 2) @ of_lower)
    inner[:, every, every] *= 0.5
    half = np.linalg.solve(lower.swapaxes(1, 2), inner + inner.swapaxes(1, 2))
    of_spread = 0.5 * np.linalg.solve(lower.swapaxes(1, 2), half.swapaxes(1, 2))
    return RowAverages(float(value), np.einsum("bdc,bd->cb", away, slope), away.swapaxes(1, 2) @ of_spread @ away)


@lru_cache(maxsize=8)
def _differences(c: int) -> Array:
    """Return the differences of the function of each label from all others, (c, c − 1, c)."""
    return np.stack([np.delete(np.eye(c)[y] - np.eye(c), y, axis=0) for y in range(c)])


@lru_cache(maxsize=8)
def _rule(d: int) -> tuple[Array, Array]:
    """Points (N, d) and weights (N,) for N(0, I)."""
    order = min(int(_MOST ** (1.0 / d) + 1e-9), _FINEST)
    if order < _COARSEST:
        # Opposite points of the sphere of radius √d, on axes that are turned: all cubic functions are averaged exactly.
        rng = np.random.default_rng(_SEED)
        axes = [np.linalg.qr(rng.standard_normal((d, d)))[0] for _ in range(max(_SPHERE // (2 * d), 1))]
        points = np.sqrt(d) * np.concatenate([side * each for each in axes for side in (1.0, -1.0)])
        return points, np.full(len(points), 1.0 / len(points))
    nodes, weights = np.polynomial.hermite_e.hermegauss(order)
    weights = weights / weights.sum()
    return np.array(list(product(nodes, repeat=d))), np.array([np.prod(each) for each in product(weights, repeat=d)])
