"""The factorial variational method (Nickisch and Rasmussen 2008, section 7 and appendix B.6)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tests.reference.binary_gaussian import BinaryGaussian
from tests.reference.binary_links import Link

__all__ = ["binary_fv"]

Array = NDArray[np.float64]


def binary_fv(K: Array, y: Array, m: Array, link: Link) -> BinaryGaussian:
    """The best factorial q with factors q_i ∝ N(f_i | μ_i, σ_i²) sig(y_i f_i), where σ_i² = 1 / [K⁻¹]_ii.

    Factors are updated in turn. Each is the exact optimum given the means of all other factors, so that the bound never
    decreases. The bound is Σ log ∫ N(f | μ_i, σ_i²) sig(y_i f) df − ½ αᵀ (K − diag σ²) α − ½ log|K| + Σ log σ_i. The
    paper prints sig at m_i / σ_i, which is not a bound. `covariance` is the diagonal matrix of the variances of the
    factors, and `w` is NaN.
    """
    n = y.size
    inverse = np.linalg.inv(K)
    width = 1.0 / inverse.diagonal()
    mean, variance, log_z = m.copy(), width.copy(), np.zeros(n)
    for _ in range(100_000):
        change = 0.0
        for i in range(n):
            alpha_i = inverse[i] @ (mean - m)
            log_z[i], new, variance[i] = link.moments(y[i], mean[i] - width[i] * alpha_i, width[i])
            change = max(change, abs(new - mean[i]))
            mean[i] = new
        if change < 1e-13 * (1.0 + np.abs(mean).max()):
            break
    alpha = inverse @ (mean - m)
    bound = log_z.sum() - 0.5 * alpha @ (K - np.diag(width)) @ alpha
    bound += 0.5 * np.log(width).sum() - 0.5 * np.linalg.slogdet(K)[1]
    return BinaryGaussian(float(bound), mean, alpha, np.diag(variance), np.full(n, np.nan))
