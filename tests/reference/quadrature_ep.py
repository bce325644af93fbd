"""Dense EP with coupled sites by quadrature: section 3.3 of the nested EP paper, by plain damped updates.

The paper is Riihimäki, Jylänki and Vehtari (2013). Sites are exp(ξᵀg − gᵀΛg / 2), g_j = f_y − f_j + u. The cavity of g
is N(μ_g, Σ_g), and the tilted moments are μ̂_g and Σ̂_g. The precision Λ is Σ̂_g⁻¹ − Σ_g⁻¹, full or its diagonal, and
ξ = (Λ + Σ_g⁻¹) μ̂_g − Σ_g⁻¹ μ_g (equations 19 and 21). The site of f is the site of g with u integrated out, up to a
constant. The evidence is equation (28).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tests.reference.dense_nested_ep import block_diagonal
from tests.reference.tilted import Tilted, cavity_of_g, directions

__all__ = ["QuadratureEP", "quadrature_ep"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class QuadratureEP:
    """A fixed point, or the result of a limited number of sweeps.

    Attributes
    ----------
    evidence : float
    mean : ndarray, shape (c, n)
    covariance : ndarray, shape (n, c, c)
    precision : ndarray, shape (n, c − 1, c − 1)
        Λ.
    location : ndarray, shape (n, c − 1)
        ξ.
    cavity_mean, cavity_covariance : ndarray, shapes (n, c) and (n, c, c)
    """

    evidence: float
    mean: Array
    covariance: Array
    precision: Array
    location: Array
    cavity_mean: Array
    cavity_covariance: Array


def _site(Lambda: Array, xi: Array, y: int) -> tuple[Array, Array]:
    """Precision and location of the site of f."""
    B = directions(y, xi.size + 1)
    row = Lambda.sum(axis=1)
    shrunk = Lambda - np.outer(row, row) / (1.0 + row.sum())
    return B @ shrunk @ B.T, B @ (xi - row * xi.sum() / (1.0 + row.sum()))


def quadrature_ep(
    K: ArrayLike,
    y: ArrayLike,
    m: ArrayLike,
    tilted: Callable[[Array, Array], Tilted],
    *,
    full: bool = False,
    damping: float = 0.7,
    tolerance: float = 1e-12,
    max_sweeps: int = 500,
    sweeps: int | None = None,
) -> QuadratureEP:
    """Iterate to a fixed point, or for a number of sweeps.

    Parameters
    ----------
    K : array_like, shape (n, n) or (c, n, n)
    y : array_like of int, shape (n,)
    m : array_like, shape (c, n)
    tilted : callable
        Moments of g from its mean and covariance under the cavity.
    full : bool
        Whether all of Λ is kept.
    damping, tolerance, max_sweeps
        Step, largest change of a site in units of its marginal, and limit.
    sweeps : int, optional
        Stop after so many updates, converged or not.

    Raises
    ------
    ArithmeticError
        If the changes stay above the tolerance.
    """
    m, y = np.asarray(m, dtype=np.float64), np.asarray(y)
    c, n = m.shape
    prior, prior_mean = block_diagonal(np.asarray(K, dtype=np.float64), c), m.reshape(c * n)
    Lambda, xi = np.zeros((n, c - 1, c - 1)), np.zeros((n, c - 1))
    where = np.arange(c)[None, :] * n + np.arange(n)[:, None]
    done = 0
    while True:
        Pi, nu = np.zeros((c * n, c * n)), np.zeros(c * n)
        for i in range(n):
            Pi[np.ix_(where[i], where[i])], nu[where[i]] = _site(Lambda[i], xi[i], int(y[i]))
        shifted = nu - Pi @ prior_mean
        b = np.linalg.solve(np.eye(c * n) + Pi @ prior, shifted)
        mean = prior_mean + prior @ b
        covariance = prior - prior @ np.linalg.solve(np.eye(c * n) + Pi @ prior, Pi @ prior)
        evidence = nu @ prior_mean - 0.5 * prior_mean @ Pi @ prior_mean + 0.5 * shifted @ (mean - prior_mean)
        evidence -= 0.5 * np.linalg.slogdet(np.eye(c * n) + Pi @ prior)[1]
        cavity_mean, cavity_covariance = np.empty((n, c)), np.empty((n, c, c))
        new_Lambda, new_xi = Lambda.copy(), xi.copy()
        change = 0.0
        for i in range(n):
            block = np.ix_(where[i], where[i])
            own, own_mean = covariance[block], mean[where[i]]
            cavity_covariance[i] = np.linalg.inv(np.linalg.inv(own) - Pi[block])
            cavity_mean[i] = cavity_covariance[i] @ (np.linalg.solve(own, own_mean) - nu[where[i]])
            mu, C = cavity_of_g(cavity_mean[i], cavity_covariance[i], int(y[i]))
            found = tilted(mu, C)
            new_Lambda[i] = np.linalg.inv(found.covariance) - np.linalg.inv(C)
            if not full:
                new_Lambda[i] = np.diag(np.diag(new_Lambda[i]))
            new_xi[i] = new_Lambda[i] @ found.mean + np.linalg.solve(C, found.mean - mu)
            deviation = np.sqrt(np.diag(np.linalg.inv(np.linalg.inv(C) + Lambda[i])))
            change = max(change, np.max(np.abs(new_Lambda[i] - Lambda[i]) * np.outer(deviation, deviation)))
            change = max(change, np.max(np.abs(new_xi[i] - xi[i]) * deviation))
            # minus log ∫ N(f | cavity) site
            evidence += found.log_normaliser
            evidence -= 0.5 * (np.linalg.slogdet(own)[1] - np.linalg.slogdet(cavity_covariance[i])[1])
            evidence -= 0.5 * own_mean @ np.linalg.solve(own, own_mean)
            evidence += 0.5 * cavity_mean[i] @ np.linalg.solve(cavity_covariance[i], cavity_mean[i])
        if change < tolerance or done == sweeps:
            break
        if done == max_sweeps:
            raise ArithmeticError(f"no fixed point in {max_sweeps} sweeps: the last change is {change:.2e}")
        Lambda, xi = Lambda + damping * (new_Lambda - Lambda), xi + damping * (new_xi - xi)
        done += 1
    blocks = np.einsum("aibi->iab", covariance.reshape(c, n, c, n))
    return QuadratureEP(float(evidence), mean.reshape(c, n), blocks, Lambda, xi, cavity_mean, cavity_covariance)
