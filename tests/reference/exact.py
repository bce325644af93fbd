"""Evidence and posterior moments of tiny problems by quadrature, without other approximations.

The likelihood depends only on the differences d_ij = f_{y_i, i} − f_{j, i} for classes j ≠ y_i. Their prior is
d ~ N(A m, A K Aᵀ) with n(c − 1) entries, where A maps latent values to differences. Given d, latent values are Gaussian
and do not depend on the labels.

* Evidence by an orthant: y is observed if every d_ij + e_{y_i, i} − e_{j, i} is positive, for e ~ N(0, I). So the
  evidence is an orthant probability of N(A m, A (K + I) Aᵀ).
* Evidence and moments by sums: the trapezoid rule in the whitened differences. For a Gaussian times an entire
  function, its error decreases faster than any power of the step.
* Larger problems: importance sampling from a Gaussian that the caller supplies.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_ndtr, ndtr
from scipy.stats import multivariate_normal

from tests.reference.stored import stored

__all__ = [
    "ExactPosterior",
    "ImportanceEstimate",
    "class_probabilities",
    "importance_evidence",
    "log_likelihood",
    "orthant_evidence",
    "quadrature_posterior",
]

Array = NDArray[np.float64]


class ExactPosterior(NamedTuple):
    """Posterior by quadrature.

    Attributes
    ----------
    evidence : float
        Log marginal likelihood.
    mean : ndarray, shape (c, n)
        Posterior mean of the latent values.
    covariance : ndarray, shape (cn, cn)
        Posterior covariance, classes first.
    """

    evidence: float
    mean: Array
    covariance: Array


class ImportanceEstimate(NamedTuple):
    """An importance-sampling estimate.

    Attributes
    ----------
    evidence : float
        Log of the average weight.
    error : float
        Standard error of `evidence` (delta method).
    effective_size : float
        Effective number of draws, (sum w)^2 / sum w^2.
    """

    evidence: float
    error: float
    effective_size: float


def log_likelihood(f: ArrayLike, y: ArrayLike, *, nodes: int = 64) -> Array:
    """log p(y | f) = log E_u prod_{j != y} Phi(u + f_y - f_j), by Gauss-Legendre over u about the integrand's mode.

    The log integrand has a curvature of at most -1, so an interval of 9 on either side of the mode suffices.

    Parameters
    ----------
    f : array_like, shape (..., c)
        Latent values, classes last.
    y : array_like of int, broadcastable to the leading shape of `f`
        Labels.
    nodes : int
        Quadrature nodes.

    Returns
    -------
    ndarray, the leading shape of `f`
    """
    f = np.asarray(f, dtype=np.float64)
    y = np.broadcast_to(np.asarray(y, dtype=np.int64), f.shape[:-1])
    d = np.take_along_axis(f, y[..., None], axis=-1) - f
    wrong = np.arange(f.shape[-1]) != y[..., None]

    # bisection on the slope of -u^2/2 + sum log Phi(u + d); it is positive at 0 and negative at `high`
    low = np.zeros(f.shape[:-1])
    high = f.shape[-1] + np.maximum(0.0, -d.min(axis=-1))
    for _ in range(24):
        middle = 0.5 * (low + high)
        x = middle[..., None] + d
        hazard = np.exp(-0.5 * x * x - 0.5 * np.log(2.0 * np.pi) - log_ndtr(x))
        rising = (hazard * wrong).sum(axis=-1) > middle
        low, high = np.where(rising, middle, low), np.where(rising, high, middle)

    abscissae, weights = np.polynomial.legendre.leggauss(nodes)
    u = low[..., None] + 9.0 * abscissae
    log_integrand = -0.5 * u * u - 0.5 * np.log(2.0 * np.pi)
    for j in range(f.shape[-1]):
        log_integrand += np.where(wrong[..., j, None], log_ndtr(u + d[..., j, None]), 0.0)
    top = log_integrand.max(axis=-1)
    return top + np.log(9.0 * np.exp(log_integrand - top[..., None]) @ weights)


def _likelihood(d: Array) -> Array:
    """p(y | f) from the differences d (p, c - 1), on a fixed Gauss-Legendre grid: fast, with small absolute errors."""
    abscissae, weights = np.polynomial.legendre.leggauss(40)
    total = np.zeros(len(d))
    for u, w in zip(9.0 * abscissae, 9.0 * weights, strict=True):
        total += w * np.exp(-0.5 * u * u) / np.sqrt(2.0 * np.pi) * ndtr(u + d).prod(axis=1)
    return total


def _differences(y: NDArray[np.int64], c: int) -> Array:
    """Matrix A that maps stacked latent values (cn,) to the differences (n(c - 1),), point by point."""
    n = y.size
    rows = []
    for i in range(n):
        for j in range(c):
            if j != y[i]:
                row = np.zeros(c * n)
                row[y[i] * n + i], row[j * n + i] = 1.0, -1.0
                rows.append(row)
    return np.array(rows)


def _unpack(
    K: ArrayLike, y: ArrayLike, m: ArrayLike | None, c: int | None
) -> tuple[Array, NDArray[np.int64], Array, int]:
    """Return stacked prior covariance and mean, labels, and the number of classes."""
    K, y = np.asarray(K, dtype=np.float64), np.asarray(y, dtype=np.int64)
    n = y.size
    if c is None:
        c = np.shape(m)[0] if m is not None else K.shape[0] if K.ndim == 3 else int(y.max()) + 1
    prior = np.zeros((c, n, c, n))
    prior[np.arange(c), :, np.arange(c), :] = K
    mean = np.zeros(c * n) if m is None else np.asarray(m, dtype=np.float64).reshape(c * n)
    return prior.reshape(c * n, c * n), y, mean, c


@stored
def _log_orthant(mean: Array, covariance: Array, seed: int, maxpts: int) -> float:
    """log P(z > 0) for z ~ N(mean, covariance), by SciPy's randomised integration."""
    distribution = multivariate_normal(
        mean=np.zeros(mean.size), cov=covariance, maxpts=maxpts, abseps=1e-10, releps=1e-10, seed=seed
    )
    return float(np.log(distribution.cdf(mean)))


def orthant_evidence(
    K: ArrayLike,
    y: ArrayLike,
    m: ArrayLike | None = None,
    *,
    c: int | None = None,
    seed: int = 0,
    maxpts: int = 2_000_000,
) -> float:
    """Log evidence as an orthant probability of dimension n(c - 1).

    Parameters
    ----------
    K : array_like, shape (n, n) or (c, n, n)
        Prior covariance, shared or per class.
    y : array_like of int, shape (n,)
        Labels 0..c-1.
    m : array_like, shape (c, n), optional
        Prior mean, zero by default.
    c : int, optional
        Number of classes. By default it follows from `m`, `K` or the largest label.
    seed, maxpts : int
        Seed and budget of SciPy's integration.

    Returns
    -------
    float
    """
    prior, labels, mean, c = _unpack(K, y, m, c)
    A = _differences(labels, c)
    return _log_orthant(A @ mean, A @ (prior + np.eye(mean.size)) @ A.T, seed, maxpts)


def class_probabilities(mean: ArrayLike, covariance: ArrayLike, *, seed: int = 0) -> Array:
    """P(y = k) for latent values f ~ N(mean, covariance) at one point.

    Parameters
    ----------
    mean, covariance : array_like, shapes (c,) and (c, c)
        Moments of f.
    seed : int
        Seed of SciPy's integration (used from c = 4 on).

    Returns
    -------
    ndarray, shape (c,)
        They sum to one up to the integration error.
    """
    mean, covariance = np.asarray(mean, dtype=np.float64), np.asarray(covariance, dtype=np.float64)
    c = mean.size
    logs = []
    for k in range(c):
        A = _differences(np.array([k]), c)
        logs.append(_log_orthant(A @ mean, A @ (covariance + np.eye(c)) @ A.T, seed, 2_000_000))
    return np.exp(np.array(logs))


def quadrature_posterior(
    K: ArrayLike,
    y: ArrayLike,
    m: ArrayLike | None = None,
    *,
    c: int | None = None,
    tolerance: float = 1e-10,
    max_points: int = 3_000_000,
) -> ExactPosterior:
    """Evidence, posterior mean and covariance by the trapezium rule in the whitened differences.

    Parameters
    ----------
    K, y, m, c
        As in `orthant_evidence`.
    tolerance : float
        Intended relative error of the evidence, which determines the step and the range.
    max_points : int
        Largest number of points of the grid.

    Returns
    -------
    ExactPosterior

    Raises
    ------
    ValueError
        If the grid would have more than `max_points` points.
    """
    prior, labels, mean, c = _unpack(K, y, m, c)
    n = labels.size
    A = _differences(labels, c)
    size = A.shape[0]
    prior_mean, prior_covariance = A @ mean, A @ prior @ A.T
    values, vectors = np.linalg.eigh(prior_covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))

    # Along the axis of eigenvalue l the integrand is phi(x) times a sigmoid of width 1/sqrt(l). Its Fourier transform
    # at frequency w falls like exp(-w^2 / (2 (1 + l))). The error of the trapezium rule is its value at 2 pi / step.
    log_tolerance = -np.log(tolerance)
    steps = 2.0 * np.pi / np.sqrt(2.0 * (1.0 + values) * log_tolerance)
    counts = 2 * np.ceil(np.sqrt(2.0 * log_tolerance) / steps).astype(int) + 1
    if np.prod(counts.astype(float)) > max_points:
        raise ValueError(f"the grid needs {counts.tolist()} points per axis, more than max_points={max_points} in all")
    axes = [step * (np.arange(count) - count // 2) for step, count in zip(steps, counts, strict=True)]
    x = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, size)
    d = prior_mean + x @ root.T
    weight = np.exp(-0.5 * (x**2).sum(axis=1)) * np.prod(steps / np.sqrt(2.0 * np.pi))
    for i in range(n):
        weight *= _likelihood(d[:, i * (c - 1) : (i + 1) * (c - 1)])
    total = weight.sum()
    weight /= total

    d_mean = weight @ d
    d_covariance = (weight[:, None] * (d - d_mean)).T @ (d - d_mean)
    gain = np.linalg.solve(prior_covariance, A @ prior).T
    posterior_mean = mean + gain @ (d_mean - prior_mean)
    posterior_covariance = prior + gain @ (d_covariance - prior_covariance) @ gain.T
    return ExactPosterior(float(np.log(total)), posterior_mean.reshape(c, n), posterior_covariance)


def importance_evidence(
    K: ArrayLike,
    y: ArrayLike,
    proposal_mean: ArrayLike,
    proposal_covariance: ArrayLike,
    m: ArrayLike | None = None,
    *,
    draws: int = 10_000,
    seed: int = 0,
) -> ImportanceEstimate:
    """Log evidence by importance sampling of the latent values.

    Parameters
    ----------
    K, y, m
        As in `orthant_evidence`; K must be positive definite.
    proposal_mean : array_like, shape (c, n)
        Mean of the Gaussian proposal, whose length is the number of classes.
    proposal_covariance : array_like, shape (cn, cn)
        Covariance of the proposal, classes first. It should be a little wider than the posterior.
    draws, seed : int
        Number of draws, and the seed.

    Returns
    -------
    ImportanceEstimate
    """
    centre = np.asarray(proposal_mean, dtype=np.float64)
    c, n = centre.shape
    prior, labels, mean, c = _unpack(K, y, m, c)
    rng = np.random.default_rng(seed)
    root = np.linalg.cholesky(np.asarray(proposal_covariance, dtype=np.float64))
    prior_root = np.linalg.cholesky(prior)
    noise = rng.standard_normal((draws, c * n))
    f = centre.reshape(-1) + noise @ root.T
    whitened = np.linalg.solve(prior_root, (f - mean).T)
    log_weight = 0.5 * (noise**2).sum(axis=1) - 0.5 * (whitened**2).sum(axis=0)
    log_weight += np.log(np.diag(root)).sum() - np.log(np.diag(prior_root)).sum()
    log_weight += log_likelihood(np.swapaxes(f.reshape(draws, c, n), 1, 2), labels).sum(axis=1)
    top = log_weight.max()
    weight = np.exp(log_weight - top)
    average = weight.mean()
    return ImportanceEstimate(
        evidence=float(top + np.log(average)),
        error=float(weight.std(ddof=1) / (average * np.sqrt(draws))),
        effective_size=float(weight.sum() ** 2 / (weight**2).sum()),
    )
