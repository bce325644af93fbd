"""Nested EP with inducing values, by one dense Gaussian of all variables.

Function k has inducing values uᵏ ~ N(0, K_k). At input x_i its projection is υᵀuᵏ with υ = K_k⁻¹ k_i, where k_i are the
prior covariances with uᵏ. Its latent value is m_iᵏ plus the projection plus a residual e ~ N(0, r), r = κ_i − k_iᵀυ,
with the prior variance κ_i (FITC). So the utility has noise of variance s = 1 + r around the projection. Class y has
the largest utility. With t_i ~ N(0, s_y), the noise of class y, the factors of a point are

    ∏_{j≠y} Φ(g_j / √s_j),   g_j = mʸ − mʲ + υʸᵀuʸ − υʲᵀuʲ + t_i.

All uᵏ and t_i form one vector of cM + n numbers with a normal prior. Each g_j is an affine function of this vector, and
its factor has a scalar site exp(β g − α g² / 2). A cavity is the whole Gaussian without the natural parameters of one
site. Tilted moments have a closed form (Rasmussen and Williams 2006, section 3.9). All sites are updated at once, with
damping. The evidence is log ∫ prior · sites + Σ (log Ẑ − log ∫ cavity · site), with the normalisers Ẑ of the tilted
distributions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

__all__ = ["SparseNestedEP", "sparse_nested_ep"]

Array = NDArray[np.float64]


class SparseNestedEP(NamedTuple):
    """A fixed point."""

    evidence: float
    mean: Array
    """Mean of the inducing values minus the prior mean, (c, M)."""
    cov: Array
    """Covariance of the inducing values, (cM, cM)."""
    change: float
    """Largest change of a natural parameter in the last sweep."""


def _log_normaliser(precision: Array, location: Array) -> float:
    """log ∫ exp(hᵀw − ½ wᵀP w) dw without the powers of 2π."""
    return 0.5 * float(location @ np.linalg.solve(precision, location) - np.linalg.slogdet(precision)[1])


def sparse_nested_ep(
    inducing: Array, cross: Array, variance: Array, prior_mean: Array, y: Array, sweeps: int = 500
) -> SparseNestedEP:
    """Iterate EP to a fixed point.

    Parameters
    ----------
    inducing : ndarray, shape (c, M, M)
        K_k.
    cross : ndarray, shape (c, M, n)
        k_i.
    variance : ndarray, shape (c, n)
        κ_i.
    prior_mean : ndarray, shape (c, n)
    y : ndarray of int, shape (n,)
    """
    c, m, n = cross.shape
    projection = np.linalg.solve(inducing, cross)
    noise = 1.0 + variance - (cross * projection).sum(axis=1)
    prior = np.zeros((c * m + n, c * m + n))
    for k in range(c):
        prior[k * m : (k + 1) * m, k * m : (k + 1) * m] = np.linalg.inv(inducing[k])
    prior[range(c * m, c * m + n), range(c * m, c * m + n)] = 1.0 / noise[y, range(n)]
    directions, offsets, scales = [], [], []
    for i in range(n):
        for j in range(c):
            if j != y[i]:
                direction = np.zeros(c * m + n)
                direction[y[i] * m : (y[i] + 1) * m] = projection[y[i], :, i]
                direction[j * m : (j + 1) * m] = -projection[j, :, i]
                direction[c * m + i] = 1.0
                directions.append(direction)
                offsets.append(prior_mean[y[i], i] - prior_mean[j, i])
                scales.append(noise[j, i])
    alpha, beta = np.zeros((2, len(directions)))
    change = np.inf
    for _ in range(sweeps):
        precision, location = prior.copy(), np.zeros(len(prior))
        constant = 0.0
        for a, b, direction, offset in zip(alpha, beta, directions, offsets, strict=True):
            precision += a * np.outer(direction, direction)
            location += (b - a * offset) * direction
            constant += b * offset - 0.5 * a * offset**2
        whole = _log_normaliser(precision, location)
        evidence = whole - _log_normaliser(prior, np.zeros(len(prior))) + constant
        new = np.empty((2, len(directions)))
        for f, (direction, offset, scale) in enumerate(zip(directions, offsets, scales, strict=True)):
            without = precision - alpha[f] * np.outer(direction, direction)
            left = location - (beta[f] - alpha[f] * offset) * direction
            cov = np.linalg.inv(without)
            mean_g, variance_g = offset + direction @ cov @ left, direction @ cov @ direction
            z = mean_g / np.sqrt(scale + variance_g)
            hazard = np.exp(-0.5 * z * z - log_ndtr(z)) / np.sqrt(2 * np.pi)
            tilted_mean = mean_g + variance_g * hazard / np.sqrt(scale + variance_g)
            tilted_variance = variance_g - variance_g**2 * hazard * (z + hazard) / (scale + variance_g)
            of_site = beta[f] * offset - 0.5 * alpha[f] * offset**2
            evidence += log_ndtr(z) - (whole - _log_normaliser(without, left) + of_site)
            new[0, f] = 1.0 / tilted_variance - 1.0 / variance_g
            new[1, f] = tilted_mean / tilted_variance - mean_g / variance_g
        change = float(np.abs(new - [alpha, beta]).max())
        if change < 1e-11:
            break
        alpha, beta = np.array([alpha, beta]) + 0.7 * (new - [alpha, beta])
    cov = np.linalg.inv(precision)
    mean = (cov @ location)[: c * m].reshape(c, m)
    return SparseNestedEP(float(evidence), mean, cov[: c * m, : c * m], change)
