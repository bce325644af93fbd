"""The Gaussian posterior of a binary classifier in the notation of Nickisch and Rasmussen (2008), and its Jensen bound.

The posterior is q(f) = N(m, V) with m = m₀ + K α and V = (K⁻¹ + W)⁻¹ (section 2.3). Here m₀ and K are the prior mean
and covariance, α are weights, and W is the diagonal matrix of site precisions. K may be singular.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tests.reference.binary_links import Link

__all__ = ["BinaryGaussian", "jensen_bound"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class BinaryGaussian:
    """Result of a method.

    Attributes
    ----------
    evidence : float
        Log evidence of the method.
    mean, alpha : ndarray, shape (n,)
    covariance : ndarray, shape (n, n)
    w : ndarray, shape (n,)
    """

    evidence: float
    mean: Array
    alpha: Array
    covariance: Array
    w: Array

    @classmethod
    def of(cls, K: Array, m: Array, alpha: Array, w: Array, evidence: float) -> BinaryGaussian:
        """Make the posterior from the weights α and the precisions W."""
        n = alpha.size
        return cls(evidence, m + K @ alpha, alpha, np.linalg.solve(np.eye(n) + K * w, K), w)


def jensen_bound(K: Array, y: Array, m: Array, alpha: Array, w: Array, link: Link) -> float:
    """Equation (9): E_q log p(y | f) − KL(q ‖ prior), for N(m₀ + K α, (K⁻¹ + W)⁻¹)."""
    n = y.size
    smooth = np.eye(n) + K * w
    covariance = np.linalg.solve(smooth, K)
    mean = m + K @ alpha
    total = sum(link.average_log(*each)[0] for each in zip(y, mean, covariance.diagonal(), strict=True))
    trace = np.trace(np.linalg.inv(smooth))
    return float(total - 0.5 * (alpha @ K @ alpha + trace - n + np.linalg.slogdet(smooth)[1]))
