"""A Gaussian posterior with coupled sites by dense elimination in numbers of 60 digits: slow, with no special cases.

The sites have precision Π_i = diag(π_i) − π_iπ_iᵀ / 1ᵀπ_i at every point and location ν. Nothing but the definitions
is used: b = (I + ΠK)⁻¹ ν, M = (I + ΠK)⁻¹ Π, mean = K b, covariance = K − K M K.
"""

from typing import NamedTuple

import mpmath
import numpy as np

__all__ = ["DensePosterior", "dense_posterior"]

_DIGITS = 60
_exact = np.vectorize(mpmath.mpf, otypes=[object])


class DensePosterior(NamedTuple):
    """Arrays of mpmath numbers: b and mean (c, n), covariance and M (c, n, c, n), and log|I + KΠ|."""

    weights: np.ndarray
    mean: np.ndarray
    covariance: np.ndarray
    m_matrix: np.ndarray
    log_determinant: mpmath.mpf


def _solve(a, b):
    """a⁻¹ b and log|a| by Gaussian elimination with row pivoting."""
    a, b = a.copy(), b.copy()
    log_determinant = mpmath.mpf(0)
    for j in range(len(a)):
        pivot = j + int(np.argmax(np.abs(a[j:, j])))
        a[[j, pivot]], b[[j, pivot]] = a[[pivot, j]], b[[pivot, j]]
        log_determinant += mpmath.log(abs(a[j, j]))
        factors = a[j + 1 :, j, None] / a[j, j]
        a[j + 1 :] -= factors * a[j]
        b[j + 1 :] -= factors * b[j]
    for j in reversed(range(len(a))):
        b[j] = (b[j] - a[j, j + 1 :] @ b[j + 1 :]) / a[j, j]
    return b, log_determinant


def dense_posterior(k, pi, nu) -> DensePosterior:
    """Posterior for prior covariances `k` (1 or c, n, n) and sites `pi`, `nu` (c, n), all taken as exact numbers."""
    c, n = pi.shape
    with mpmath.workdps(_DIGITS):
        pi, nu = _exact(pi), _exact(nu)
        prior = np.full((c, n, c, n), mpmath.mpf(0))
        sites = prior.copy()
        points = np.arange(n)
        for a, block in enumerate(np.broadcast_to(k, (c, n, n))):
            prior[a, :, a] = _exact(block)
            sites[a, points, a, points] = pi[a]
            for e in range(c):
                sites[a, points, e, points] -= pi[a] * pi[e] / pi.sum(0)
        prior, sites = prior.reshape(c * n, c * n), sites.reshape(c * n, c * n)
        solution, log_determinant = _solve(
            sites @ prior + np.eye(c * n, dtype=int), np.column_stack([sites, nu.reshape(-1)])
        )
        m_matrix, weights = solution[:, :-1], solution[:, -1]
        covariance = prior - prior @ m_matrix @ prior
        shape = (c, n, c, n)
        return DensePosterior(
            weights.reshape(c, n),
            (prior @ weights).reshape(c, n),
            covariance.reshape(shape),
            m_matrix.reshape(shape),
            log_determinant,
        )
