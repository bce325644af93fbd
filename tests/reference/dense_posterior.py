"""Gaussian posteriors by dense algebra, without special cases or regard to speed.

Sites are exp(νᵀf − ½ fᵀΠf), and the prior is N(m, K). Let b = (I + ΠK)⁻¹ (ν − Πm) and M = (I + ΠK)⁻¹ Π. The posterior
has the mean m + K b and the covariance K − K M K. `dense_gaussian` is for sites of any form. `dense_posterior` is for
coupled sites and m = 0, and computes with 60 digits.
"""

from typing import NamedTuple

import mpmath
import numpy as np

__all__ = ["DenseGaussian", "DensePosterior", "block_diagonal", "dense_gaussian", "dense_posterior", "site_blocks"]

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
    """Posterior for prior covariances `k` (1 or c, n, n) and sites `pi`, `nu` (c, n), taken as exact numbers."""
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


class DenseGaussian(NamedTuple):
    """Vectors and matrices over c functions at n points, function by function (cn), and log ∫ p(f) sites(f) df."""

    prior: np.ndarray
    precision: np.ndarray
    weights: np.ndarray
    mean: np.ndarray
    covariance: np.ndarray
    m_matrix: np.ndarray
    log_normaliser: float


def site_blocks(form: str, precision: np.ndarray) -> np.ndarray:
    """Π_i (n, c, c) of sites of a form, "coupled", "independent", "block" or "signed", from the definitions."""
    if form in ("block", "signed"):
        return precision
    blocks = np.einsum("ai,ab->iab", precision, np.eye(len(precision)))
    if form == "coupled":
        blocks = blocks - np.einsum("ai,bi->iab", precision, precision / precision.sum(0))
    return blocks


def block_diagonal(k: np.ndarray, c: int) -> np.ndarray:
    """The covariance (cn, cl) of c independent functions, from matrices (1 or c, n, l)."""
    full = np.zeros((c, k.shape[1], c, k.shape[2]))
    for a in range(c):
        full[a, :, a] = k[a % len(k)]
    return full.reshape(c * k.shape[1], c * k.shape[2])


def dense_gaussian(k: np.ndarray, mean: np.ndarray, blocks: np.ndarray, nu: np.ndarray) -> DenseGaussian:
    """The posterior of a prior `k` (1 or c, n, n), `mean` (c, n) and sites `blocks` (n, c, c), `nu` (c, n)."""
    c, n = mean.shape
    prior, precision = block_diagonal(k, c), np.zeros((c, n, c, n))
    precision[:, range(n), :, range(n)] = blocks
    precision = precision.reshape(c * n, c * n)
    m, pull = mean.ravel(), nu.ravel() - precision @ mean.ravel()
    solution = np.linalg.solve(np.eye(c * n) + precision @ prior, np.column_stack([precision, pull]))
    m_matrix, weights = solution[:, :-1], solution[:, -1]
    log_normaliser = nu.ravel() @ m - 0.5 * m @ precision @ m + 0.5 * pull @ prior @ weights
    log_normaliser -= 0.5 * np.linalg.slogdet(np.eye(c * n) + precision @ prior)[1]
    covariance = prior - prior @ m_matrix @ prior
    return DenseGaussian(prior, precision, weights, m + prior @ weights, covariance, m_matrix, float(log_normaliser))
