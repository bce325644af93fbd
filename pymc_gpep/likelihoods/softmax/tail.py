"""Log probability of a softmax's label far into the tail, the Gaussian latent values integrated out."""

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, log_softmax, logsumexp

from pymc_gpep.array_types import Array

__all__ = ["log_tail"]


_DRAWS, _DEGREES, _SEED = 8192, 5.0, 20_160_601  # the same input has the same answer
_NEWTON_STEPS = 100


def log_tail(mean: Array, cov: Array, y: NDArray[np.int64]) -> Array:
    """log E[softmax(f)_y] (m,) of f ~ N(mean, cov), (m, c) and (m, c, c), for labels y (m,).

    By importance sampling from a Student t distribution about the mode, in coordinates of unit prior covariance.
    """
    return np.array([_log_tail_at(*point) for point in zip(mean, cov, y, strict=True)])


def _log_tail_at(mean: Array, cov: Array, y: int) -> float:
    c = len(mean)
    values, vectors = np.linalg.eigh(cov)
    root = vectors * np.sqrt(np.maximum(values, 0.0))

    def log_joint(z: Array) -> Array:
        joint: Array = log_softmax(mean + z @ root.T, axis=-1)[..., y] - 0.5 * (z**2).sum(-1)
        return joint

    z = np.zeros(c)
    height = log_joint(z)
    for _ in range(_NEWTON_STEPS):
        p = np.exp(log_softmax(mean + root @ z))
        slope = root[y] - p @ root - z
        precision = np.eye(c) + root.T @ (p[:, None] * root) - np.outer(p @ root, p @ root)
        step = np.linalg.solve(precision, slope)
        while (higher := log_joint(z + step)) < height and np.abs(step).max() > 1e-12:
            step /= 2
        if not higher > height:
            break
        z, height = z + step, higher
    rng = np.random.default_rng(_SEED)
    scale = np.linalg.inv(np.linalg.cholesky(precision))  # the covariance at the mode is scaleᵀ scale
    noise = rng.standard_normal((_DRAWS, c)) / np.sqrt(rng.chisquare(_DEGREES, (_DRAWS, 1)) / _DEGREES)
    half = 0.5 * (_DEGREES + c)
    log_density = gammaln(half) - gammaln(0.5 * _DEGREES) - 0.5 * c * np.log(0.5 * _DEGREES)
    log_density -= half * np.log1p((noise**2).sum(-1) / _DEGREES) + np.log(np.abs(scale.diagonal())).sum()
    # Factors 2π of both densities are left out.
    return float(logsumexp(log_joint(z + noise @ scale) - log_density) - np.log(_DRAWS))
