"""Laplace approximations by dense algebra on all cn latent values, for a likelihood with three derivatives.

A likelihood is a function of latent values (n, c) and labels (n,) that returns log p (n,), and its derivatives (n, c),
(n, c, c) and (n, c, c, c).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, log_softmax
from scipy.special import softmax as probabilities

__all__ = ["DenseLaplace", "laplace", "multinomial_probit", "softmax"]

Array = NDArray[np.float64]
Labels = NDArray[np.int64]
Likelihood = Callable[[Array, Labels], tuple[Array, Array, Array, Array]]


class DenseLaplace(NamedTuple):
    """Result of Laplace's approximation.

    Attributes
    ----------
    evidence : float
    gradient : ndarray, shape (c, n, n)
        d evidence / d K_k for each class, symmetric.
    gradient_mean : ndarray, shape (c, n)
        d evidence / d prior mean.
    weights, mean : ndarray, shape (c, n)
        K⁻¹ (mode − prior mean), mode.
    covariance : ndarray, shape (c, n, c, n)
    curvature : ndarray, shape (n, c, c)
        Minus the second derivative of log p at each point.
    """

    evidence: float
    gradient: Array
    gradient_mean: Array
    weights: Array
    mean: Array
    covariance: Array
    curvature: Array


def softmax(f: Array, y: Labels) -> tuple[Array, Array, Array, Array]:
    """log p = f_y − log Σ exp f_k, and its derivatives term by term."""
    n, c = f.shape
    eye = np.eye(c)
    p = probabilities(f, axis=1)
    first = eye[y] - p
    dp = np.einsum("ik,kl->ikl", p, eye) - p[:, :, None] * p[:, None, :]
    second = -dp
    # ∂/∂f_m of p_k δ_kl − p_k p_l
    third = -(np.einsum("ikm,kl->iklm", dp, eye) - np.einsum("ikm,il->iklm", dp, p) - np.einsum("ilm,ik->iklm", dp, p))
    return log_softmax(f, axis=1)[range(n), y], first, second, third


def multinomial_probit(f: Array, y: Labels) -> tuple[Array, Array, Array, Array]:
    """log p = log E_u ∏_{j≠y} Φ(u + f_y − f_j) by Gauss-Legendre quadrature, and cumulants for derivatives."""
    n, c = f.shape
    values, first = np.empty(n), np.empty((n, c))
    second, third = np.empty((n, c, c)), np.empty((n, c, c, c))
    nodes, weights = np.polynomial.legendre.leggauss(400)
    for i in range(n):
        others = np.delete(np.arange(c), y[i])
        d = f[i, y[i]] - f[i, others]
        u = 0.5 * max(0.0, -d.min()) + (10.0 + 0.5 * max(0.0, -d.min())) * nodes
        z = u[:, None] + d
        log_weight = np.log(weights * (10.0 + 0.5 * max(0.0, -d.min()))) - 0.5 * u**2 - 0.5 * np.log(2 * np.pi)
        log_weight += log_ndtr(z).sum(1)
        values[i] = np.logaddexp.reduce(log_weight)
        w = np.exp(log_weight - values[i])
        h = np.exp(-0.5 * z**2 - 0.5 * np.log(2 * np.pi) - log_ndtr(z))
        h1 = -h * (z + h)
        h2 = -h1 * (z + h) - h * (1 + h1)
        e, e1 = h - w @ h, h1 - w @ h1
        eye = np.eye(c - 1)
        g1 = w @ h
        g2 = np.einsum("u,uj,uk->jk", w, e, e) + np.diag(w @ h1)
        mixed = np.einsum("u,uj,uk,jl->jkl", w, e1, e, eye)  # Cov(slope of hazard j = l, hazard k)
        g3 = np.einsum("u,uj,uk,ul->jkl", w, e, e, e) + np.einsum("j,jk,jl->jkl", w @ h2, eye, eye)
        g3 += mixed + mixed.transpose(0, 2, 1) + mixed.transpose(1, 0, 2)
        t = np.insert(-eye, y[i], 1.0, axis=1)  # maps f to the differences f_y − f_j
        first[i] = g1 @ t
        second[i] = t.T @ g2 @ t
        third[i] = np.einsum("jkl,ja,kb,ld->abd", g3, t, t, t)
    return values, first, second, third


def _blocks(of_points: Array) -> Array:
    """Matrix (cn, cn), classes first, that couples the classes of each point by blocks (n, c, c)."""
    n, c, _ = of_points.shape
    matrix = np.zeros((c, n, c, n))
    matrix[:, range(n), :, range(n)] = of_points
    return matrix.reshape(c * n, c * n)


def laplace(k: Array, y: Labels, m: Array, likelihood: Likelihood = softmax) -> DenseLaplace:
    """Laplace's approximation by Newton's method with halved steps, from b = 0 to the limit of rounding.

    Parameters
    ----------
    k : ndarray, shape (n, n) or (c, n, n)
        Prior covariance.
    y : ndarray of int, shape (n,)
        Labels.
    m : ndarray, shape (c, n)
        Prior mean.
    likelihood : callable
    """
    c, n = m.shape
    prior = np.zeros((c, n, c, n))
    for a, block in enumerate(np.broadcast_to(k, (c, n, n))):
        prior[a, :, a] = block
    prior = prior.reshape(c * n, c * n)
    eye = np.eye(c * n)

    def posterior(b):
        f = (m.ravel() + prior @ b).reshape(c, n)
        value, first, second, third = likelihood(f.T, y)
        return value.sum() - 0.5 * b @ prior @ b, f, first.T.ravel(), -second, third

    b = np.zeros(c * n)
    value, f, first, curvature, third = posterior(b)
    smallest = np.inf
    for _ in range(200):
        step = np.linalg.solve(eye + _blocks(curvature) @ prior, first - b)
        length = 1.0
        while posterior(b + length * step)[0] < value - 1e-9 * (1 + abs(value)) and length > 1e-9:
            length *= 0.5
        b = b + length * step
        value, f, first, curvature, third = posterior(b)
        residual = np.abs(first - b).max()
        if residual < 1e-9 and residual > 0.5 * smallest:
            break
        smallest = min(smallest, residual)

    stretched = eye + _blocks(curvature) @ prior
    m_matrix = np.linalg.solve(stretched, _blocks(curvature))
    covariance = (prior - prior @ m_matrix @ prior).reshape(c, n, c, n)
    own = covariance[:, range(n), :, range(n)]
    slope = 0.5 * np.einsum("ikl,ikla->ai", own, third).ravel()
    implicit = np.linalg.solve(stretched, slope).reshape(c, n)
    weights = b.reshape(c, n)
    own_m = m_matrix.reshape(c, n, c, n)[range(c), :, range(c)]
    both = np.einsum("ai,aj->aij", implicit, weights)
    return DenseLaplace(
        evidence=value - 0.5 * np.linalg.slogdet(stretched)[1],
        gradient=0.5 * (np.einsum("ai,aj->aij", weights, weights) - own_m + both + both.transpose(0, 2, 1)),
        gradient_mean=weights + implicit,
        weights=weights,
        mean=f,
        covariance=covariance,
        curvature=curvature,
    )
