"""Tilted distributions of a softmax by brute force, and the closest coupled sites by SciPy's minimiser.

Sites have the precisions Π = diag π − ππᵀ/1ᵀπ (Seeger and Jordan 2004, section 4.3). Let A and Â be the covariances of
the cavity and of the tilted distribution. The divergence KL(tilted ‖ Gaussian) is smallest if −log|A⁻¹ + Π| + tr ÂΠ is
smallest. Differences of latent values are x = D f, with entries f_y − f_j for j ≠ y.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import logsumexp

from tests.reference.tilted import directions

__all__ = ["Moments", "cavity", "coupled_precision", "divergence", "nearest_site", "softmax_tilted"]

Array = NDArray[np.float64]


class Moments(NamedTuple):
    """Log normaliser, mean and covariance of a tilted density of the differences x."""

    log_normaliser: float
    mean: Array
    covariance: Array


def softmax_tilted(mean: Array, covariance: Array, *, points: int = 201, reach: float = 8.0) -> Moments:
    """N(x | mean, covariance) / (1 + Σ exp(−x_j)) by the trapezium rule in whitened coordinates."""
    d = mean.size
    root = np.linalg.cholesky(covariance)
    axis = np.linspace(-reach, reach, points)
    t = np.stack(np.meshgrid(*[axis] * d, indexing="ij"), axis=-1).reshape(-1, d)
    x = mean + t @ root.T
    log_weight = -0.5 * (t**2).sum(axis=1) - logsumexp(np.column_stack([np.zeros(len(x)), -x]), axis=1)
    log_weight += d * np.log((axis[1] - axis[0]) / np.sqrt(2.0 * np.pi))
    total = logsumexp(log_weight)
    weight = np.exp(log_weight - total)
    tilted_mean = weight @ x
    centred = x - tilted_mean
    return Moments(float(total), tilted_mean, (weight[:, None] * centred).T @ centred)


def coupled_precision(pi: Array, y: int) -> Array:
    """Precision matrix of a coupled site with π (c,), in terms of the differences x of latent values."""
    of_latents = np.diag(pi) - np.outer(pi, pi) / pi.sum()
    # x does not depend on a common shift of f: with f_y = 0, f_j = −x_j.
    others = np.delete(np.arange(pi.size), y)
    precision: Array = of_latents[np.ix_(others, others)]
    return precision


def divergence(pi: Array, y: int, covariance: Array, tilted: Array) -> float:
    """KL(N(·, tilted) ‖ N(·, (covariance⁻¹ + Π)⁻¹)) for equal means."""
    precision = np.linalg.inv(covariance) + coupled_precision(pi, y)
    both = precision @ tilted
    return float(0.5 * (np.trace(both) - np.linalg.slogdet(both)[1] - len(both)))


def nearest_site(y: int, covariance: Array, tilted: Array, *, starts: int = 20, seed: int = 0) -> tuple[Array, float]:
    """π (c,) with the smallest divergence from many random starts, and the divergence."""
    rng = np.random.default_rng(seed)
    c = len(tilted) + 1
    best, smallest = np.full(c, np.nan), np.inf
    for _ in range(starts):
        found = minimize(
            lambda t: divergence(np.exp(t), y, covariance, tilted),
            rng.normal(size=c) - np.log(np.trace(covariance) / c),
            method="BFGS",
            options={"gtol": 1e-7, "maxiter": 150},
        )
        if found.fun < smallest:
            best, smallest = np.exp(found.x), float(found.fun)
    return best, smallest


def cavity(seed: int, c: int, variance: float) -> tuple[Array, Array]:
    """Mean and covariance of the differences of some dependent classes."""
    rng = np.random.default_rng(seed)
    mixing = rng.normal(size=(c, c)) / np.sqrt(c)
    covariance = variance * (np.diag(rng.uniform(0.2, 1.0, c)) + 0.3 * mixing @ mixing.T)
    away = directions(0, c)
    return away.T @ (np.sqrt(variance) * 0.7 * rng.normal(size=c)), away.T @ covariance @ away
