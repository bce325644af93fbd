"""Tilted distributions of one point by brute force: N(f | μ, Σ) p(y | f) over grids and product rules.

Under the cavity N(μ, Σ), the variables g_j = f_y − f_j + u, j ≠ y, u ~ N(0, 1), are N(Bᵀμ, BᵀΣB + 11ᵀ). Column
j of B is the contrast f_y − f_j. The likelihood is E_u ∏ Φ(g_j).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

__all__ = [
    "Tilted",
    "cavity_of_g",
    "directions",
    "full_product_rule",
    "independent_tilted",
    "of_latents",
    "product_rule",
    "trapezium",
]

Array = NDArray[np.float64]


class Tilted(NamedTuple):
    """Log normaliser, mean (d,) and covariance (d, d)."""

    log_normaliser: float
    mean: Array
    covariance: Array


def _weighted(log_weight: Array, points: Array) -> Tilted:
    top = log_weight.max()
    weight = np.exp(log_weight - top)
    total = weight.sum()
    mean = weight @ points / total
    centred = points - mean
    return Tilted(float(top + np.log(total)), mean, (weight[:, None] * centred).T @ centred / total)


def _grid(axis: Array, dimensions: int) -> Array:
    return np.stack(np.meshgrid(*[axis] * dimensions, indexing="ij"), axis=-1).reshape(-1, dimensions)


def directions(y: int, c: int) -> Array:
    """Matrix B (c, c − 1) of the differences."""
    return np.delete(np.eye(c)[[y]].T - np.eye(c), y, axis=1)


def cavity_of_g(mean: Array, covariance: Array, y: int) -> tuple[Array, Array]:
    """Mean and covariance of g under the cavity of f."""
    B = directions(y, mean.size)
    return B.T @ mean, B.T @ covariance @ B + 1.0


def trapezium(mu: Array, C: Array) -> Tilted:
    """Moments of g by the trapezium rule in whitened coordinates, to 1e-13."""
    values, vectors = np.linalg.eigh(C)
    step = 2.0 * np.pi / np.sqrt(2.0 * (1.0 + values[-1]) * 30.0)
    count = int(8.0 / step) + 1
    x = _grid(step * np.arange(-count, count + 1), mu.size)
    g = mu + x @ (vectors * np.sqrt(np.maximum(values, 0.0))).T
    return _weighted(-0.5 * (x**2).sum(1) + log_ndtr(g).sum(1) + mu.size * np.log(step / np.sqrt(2 * np.pi)), g)


def _hermite(order: int, dimensions: int) -> tuple[Array, Array]:
    nodes, weights = np.polynomial.hermite_e.hermegauss(order)
    log_weights = _grid(np.log(weights / np.sqrt(2.0 * np.pi)), dimensions).sum(1)
    return _grid(nodes, dimensions), log_weights


def product_rule(mu: Array, C: Array, order: int) -> Tilted:
    """Moments of g by the Gauss–Hermite product rule on N(μ, C): Q5 and Q10 of the nested EP paper (section 3.3)."""
    x, log_weights = _hermite(order, mu.size)
    g = mu + x @ np.linalg.cholesky(C).T
    return _weighted(log_weights + log_ndtr(g).sum(1), g)


def full_product_rule(mean: Array, covariance: Array, y: int, order: int = 10) -> Tilted:
    """Moments of f by the Gauss–Hermite rule in the c + 1 dimensions of f and u: QF10 of the nested EP paper."""
    c = mean.size
    x, log_weights = _hermite(order, c + 1)
    f = mean + x[:, :c] @ np.linalg.cholesky(covariance).T
    return _weighted(log_weights + log_ndtr(f @ directions(y, c) + x[:, c:]).sum(1), f)


def of_latents(mean: Array, covariance: Array, y: int, tilted: Tilted) -> Tilted:
    """Moments of f from moments of g: given g, f has its distribution under the cavity."""
    B = directions(y, mean.size)
    mu, C = cavity_of_g(mean, covariance, y)
    gain = np.linalg.solve(C, B.T @ covariance).T
    return Tilted(
        tilted.log_normaliser,
        mean + gain @ (tilted.mean - mu),
        covariance + gain @ (tilted.covariance - C) @ gain.T,
    )


def independent_tilted(mean: Array, variance: Array, y: int) -> Tilted:
    """Moments of f under an independent cavity, by the trapezium rule over the utility t of class y.

    Given t the classes are independent. The covariance has its diagonal only.
    """
    tau = np.sqrt(1.0 + variance[y])
    others = np.delete(np.arange(mean.size), y)
    sigma = np.sqrt(1.0 + variance[others])
    step = 2.0 * np.pi / np.sqrt(2.0 * (1.0 + (tau / sigma) @ (tau / sigma)) * 35.0)
    x = step * np.arange(-int(40.0 / step), int(40.0 / step) + 1)
    z = (mean[y] + tau * x[:, None] - mean[others]) / sigma
    log_phi = log_ndtr(z)
    log_weight = -0.5 * x**2 + log_phi.sum(1) + np.log(step / np.sqrt(2.0 * np.pi))
    first, second = np.empty((x.size, mean.size)), np.empty((x.size, mean.size))
    first[:, y] = mean[y] + variance[y] / tau * x
    second[:, y] = variance[y] / tau**2
    hazard = np.exp(-0.5 * z**2 - 0.5 * np.log(2.0 * np.pi) - log_phi)
    first[:, others] = mean[others] - variance[others] / sigma * hazard
    second[:, others] = variance[others] - variance[others] ** 2 / sigma**2 * hazard * (hazard + z)
    weight = np.exp(log_weight - log_weight.max())
    total = weight.sum()
    weight /= total
    average = weight @ first
    spread = weight @ (second + (first - average) ** 2)
    return Tilted(float(log_weight.max() + np.log(total)), average, np.diag(spread))
