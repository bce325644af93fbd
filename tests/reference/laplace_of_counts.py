"""Laplace's method for counts by dense algebra in whitened coordinates, started at the log counts."""

import numpy as np
from scipy import special

__all__ = ["laplace_of_counts"]


def laplace_of_counts(k, offset, y):
    """Mode (n,) and log evidence for f ~ N(0, k), y ~ Poisson(exp(f + offset)), by Newton's method with halving."""
    lower = np.linalg.cholesky(k)
    z = np.linalg.solve(lower, np.log(y + 0.5) - offset)

    def log_posterior(z):
        log_rate = lower @ z + offset
        return y @ log_rate - np.exp(log_rate).sum() - 0.5 * z @ z

    for _ in range(500):
        rate = np.exp(lower @ z + offset)
        hessian = np.eye(len(y)) + lower.T @ (rate[:, None] * lower)
        step = np.linalg.solve(hessian, lower.T @ (y - rate) - z)
        length = 1.0
        before = log_posterior(z)
        while not log_posterior(z + length * step) >= before - 1e-9 * abs(before):
            length *= 0.5
        z += length * step
        if np.abs(step).max() < 1e-10:
            break
    evidence = log_posterior(z) - special.gammaln(y + 1.0).sum() - 0.5 * np.linalg.slogdet(hessian)[1]
    return lower @ z, evidence
