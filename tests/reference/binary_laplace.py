"""Laplace's approximation of a binary classifier (Nickisch and Rasmussen 2008, section 3)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tests.reference.binary_gaussian import BinaryGaussian
from tests.reference.binary_links import Link

__all__ = ["binary_laplace"]

Array = NDArray[np.float64]


def binary_laplace(K: Array, y: Array, m: Array, link: Link) -> BinaryGaussian:
    """Gaussian at the mode. The log evidence is log p(y | f) − ½ αᵀ K α − ½ log|I + K W| (the paper prints +½ log)."""
    alpha = np.zeros(y.size)

    def objective(alpha: Array) -> float:
        return float(link.log_sig(y * (m + K @ alpha)).sum() - 0.5 * alpha @ K @ alpha)

    for _ in range(200):
        f = m + K @ alpha
        first, second, _ = link.derivatives(y * f)
        gradient = y * first - alpha
        step = np.linalg.solve(np.eye(y.size) - second[:, None] * K, gradient)
        length = 1.0
        while objective(alpha + length * step) < objective(alpha) and length > 1e-8:
            length *= 0.5
        alpha = alpha + length * step
        if np.abs(K @ step).max() < 1e-13:
            break
    w = -link.derivatives(y * (m + K @ alpha))[1]
    evidence = objective(alpha) - 0.5 * np.linalg.slogdet(np.eye(y.size) + K * w)[1]
    return BinaryGaussian.of(K, m, alpha, w, float(evidence))
