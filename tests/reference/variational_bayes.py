"""Variational Bayes for the multinomial probit by dense algebra, as the fixed point of the paper's iteration.

Source: Girolami and Rogers, "Variational Bayesian multinomial probit regression with Gaussian process priors", Neural
Computation 18 (2006). Numbers of equations are numbers in this paper. Prior means are zero in the paper, and are
subtracted here. The expectations over u ~ N(0, 1) are Gauss-Legendre sums about the mode of the integrand.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_ndtr

from tests.reference.exact import log_likelihood

__all__ = ["VariationalBayes", "bound", "mean_utilities", "sampled_bound", "variational_bayes"]

Array = NDArray[np.float64]
Labels = NDArray[np.int64]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(80)
_HALF_WIDTH = 10.0
_PLAIN_STEPS = 30


@dataclass(frozen=True)
class VariationalBayes:
    """A fixed point.

    Attributes
    ----------
    bound : float
        Lower bound of the log evidence.
    mean : ndarray, shape (c, n)
        Means of the latent values.
    covariance : ndarray, shape (c, n, n)
        Their covariances, class by class.
    utilities : ndarray, shape (c, n)
        Means of the utilities.
    history : ndarray, shape (iterations,)
        The bound at each iteration.
    """

    bound: float
    mean: Array
    covariance: Array
    utilities: Array
    history: Array


def mean_utilities(f: Array, y: Labels) -> Array:
    """Means (c, n) of N(f_i, I) truncated to the cone where entry y_i is the largest, equations (4.3) and (4.4)."""
    c, n = f.shape
    d = f[y, range(n)] - f
    others = np.arange(c)[:, None] != y
    low, high = np.zeros(n), c + np.maximum(0.0, -d.min(0))
    for _ in range(30):
        middle = 0.5 * (low + high)
        x = middle + d
        ratio = np.exp(-0.5 * x * x - log_ndtr(x)) / np.sqrt(2.0 * np.pi)
        rising = (ratio * others).sum(0) > middle
        low, high = np.where(rising, middle, low), np.where(rising, high, middle)
    u = low[:, None] + _HALF_WIDTH * _NODES
    x = u + d[..., None]
    log_cdf = np.where(others[..., None], log_ndtr(x), 0.0)
    log_all = -0.5 * u * u + log_cdf.sum(0)
    top = log_all.max(1, keepdims=True)
    denominator = np.exp(log_all - top) @ _WEIGHTS
    utilities = f.copy()
    for k in range(c):
        # N_u(f_k - f_y, 1) replaces factor k
        without = log_all - log_cdf[k] - 0.5 * x[k] ** 2 - 0.5 * np.log(2.0 * np.pi)
        utilities[k] -= np.where(others[k], np.exp(without - top) @ _WEIGHTS / denominator, 0.0)
    utilities[y, range(n)] -= (utilities - f).sum(0)
    return utilities


def bound(K: Array, y: Labels, m: Array, mean: Array, covariance: Array) -> float:
    """E_q[log p(y, v, f) - log q(v) - log q(f)] at the best q(v), for q(f) with means (c, n) and covariances (c, n, n).

    It is sum_i log Z_i - tr S / 2 - KL(q(f) | p(f)).
    """
    total = log_likelihood(mean.T, y).sum()
    for k, (S, prior) in enumerate(zip(covariance, np.broadcast_to(K, covariance.shape), strict=True)):
        difference = mean[k] - m[k]
        divergence = np.trace(np.linalg.solve(prior, S)) + difference @ np.linalg.solve(prior, difference) - y.size
        divergence += np.linalg.slogdet(prior)[1] - np.linalg.slogdet(S)[1]
        total -= 0.5 * (np.trace(S) + divergence)
    return float(total)


def variational_bayes(
    K: ArrayLike, y: ArrayLike, m: ArrayLike, *, tolerance: float = 1e-12, max_iterations: int = 100
) -> VariationalBayes:
    """Iterate from the prior mean until a plain step changes no mean by more than `tolerance`.

    Plain steps come first. For large prior variances they are slow, and Newton's method finds their fixed point.

    Parameters
    ----------
    K : array_like, shape (n, n) or (c, n, n)
        Prior covariance, shared or per class.
    y : array_like of int, shape (n,)
        Labels 0..c-1.
    m : array_like, shape (c, n)
        Prior mean.
    tolerance : float
    max_iterations : int

    Returns
    -------
    VariationalBayes

    Raises
    ------
    ArithmeticError
        If it does not converge.
    """
    m, y = np.asarray(m, dtype=np.float64), np.asarray(y, dtype=np.int64)
    c, n = m.shape
    K = np.broadcast_to(np.asarray(K, dtype=np.float64), (c, n, n))
    covariance = np.stack([prior @ np.linalg.inv(prior + np.eye(n)) for prior in K])
    covariance = 0.5 * (covariance + covariance.transpose(0, 2, 1))
    mean = m.copy()
    history = []
    for iteration in range(max_iterations):
        history.append(bound(K, y, m, mean, covariance))
        step = m + np.einsum("kij,kj->ki", covariance, mean_utilities(mean, y) - m) - mean
        change = np.abs(step).max()
        if iteration >= _PLAIN_STEPS:
            step = _solve_for_fixed_point(mean, step, covariance, y)
        mean = mean + step
        if change < tolerance:
            value = bound(K, y, m, mean, covariance)
            return VariationalBayes(value, mean, covariance, mean_utilities(mean, y), np.array([*history, value]))
    raise ArithmeticError(f"the means still change by {change:.1e} after {max_iterations} iterations")


def _solve_for_fixed_point(mean: Array, step: Array, covariance: Array, y: Labels) -> Array:
    """Newton's step towards the fixed point, from a plain step and differences of the mean utilities."""
    c, n = mean.shape
    matrix = np.eye(c * n).reshape(c, n, c, n)
    size = 1e-5
    for a in range(c):
        shift = size * (np.arange(c) == a)[:, None]
        slope = (mean_utilities(mean + shift, y) - mean_utilities(mean - shift, y)) / (2.0 * size)
        for k in range(c):
            matrix[k, :, a] -= covariance[k] * slope[k]
    return np.linalg.solve(matrix.reshape(c * n, c * n), step.ravel()).reshape(c, n)


def sampled_bound(
    K: Array, y: Labels, m: Array, mean: Array, covariance: Array, *, draws: int, seed: int
) -> tuple[float, float]:
    """The bound by sampling f ~ q(f) and v ~ q(v) with rejection, and its standard error.

    All densities are computed directly: log N(v | f, I) + log N(f | m, K) - log q(v) - log q(f).
    """
    rng = np.random.default_rng(seed)
    c, n = mean.shape
    K = np.broadcast_to(K, (c, n, n))
    root = np.linalg.cholesky(covariance)
    noise = rng.standard_normal((draws, c, n))
    f = mean + np.einsum("kij,dkj->dki", root, noise)
    v = np.empty((draws, c, n))
    for i in range(n):
        kept = np.empty((0, c))
        while len(kept) < draws:
            proposed = mean[:, i] + rng.standard_normal((4 * draws, c))
            kept = np.concatenate([kept, proposed[proposed.argmax(1) == y[i]]])
        v[..., i] = kept[:draws]
    terms = -0.5 * ((v - f) ** 2).sum((1, 2)) + 0.5 * ((v - mean) ** 2).sum((1, 2))
    terms += log_likelihood(mean.T, y).sum() + 0.5 * (noise**2).sum((1, 2))
    for k in range(c):
        difference = f[:, k] - m[k]
        terms -= 0.5 * (difference * np.linalg.solve(K[k], difference.T).T).sum(1)
        terms += 0.5 * (np.linalg.slogdet(covariance[k])[1] - np.linalg.slogdet(K[k])[1])
    return float(terms.mean()), float(terms.std(ddof=1) / np.sqrt(draws))
