"""The site of one point from the quadratures' tilted moments of g, in natural parameters."""

import numpy as np

from pymc_gpep.kernels.compile import inlined_kernel
from pymc_gpep.kernels.linalg.lapack import copy_into
from pymc_gpep.kernels.linalg.small_matrix import lower_factor, solve_lower
from pymc_gpep.kernels.moments.product_quadrature import product_moments
from pymc_gpep.kernels.moments.truncated_quadrature import truncated_moments

__all__ = ["BELOW_ONE", "tilted_site"]

BELOW_ONE = 1.0 - 1e-12
"""Largest diagonal entry of Λ: the factors Φ are log-concave with a curvature below 1."""


@inlined_kernel
def tilted_site(m, s, hermite, rule, order, precision, location, scale):
    """Match N(g | m, s) ∏_j Φ(g_j) in d dimensions, which has mean μ̂ and covariance Σ̂.

    `hermite` says whether the `rule` (2, ·) is Gauss–Hermite's; `order` is for `truncated_moments`. Writes
    Λ = Σ̂⁻¹ − s⁻¹ into `precision` (d, d), s⁻¹ (μ̂ − m) into `location`, the diagonal of Σ̂ into `scale`, and μ̂ over `m`.
    Returns the log normaliser.
    """
    d = m.shape[0]
    lower = lower_factor(s)
    mean = np.empty(d)
    cov = np.empty((d, d))
    if hermite:
        log_z = product_moments(m, lower, rule, mean, cov)
    else:
        log_z = truncated_moments(m, s, lower, rule, order, mean, cov)
    # With s = L Lᵀ and Σ̂ = L V Lᵀ, Λ = L⁻ᵀ (V⁻¹ − I) L⁻¹.
    inverse = np.zeros((d, d))
    half = np.empty((d, d))
    for j in range(d):
        inverse[j, j] = 1.0
    solve_lower(lower, inverse)
    copy_into(half, inverse)
    solve_lower(lower_factor(cov), half)
    for j in range(d):
        location[j] = 0.0
        scale[j] = 0.0
        for k in range(d):
            location[j] += inverse[k, j] * mean[k]
            m[j] += lower[j, k] * mean[k]
            for i in range(d):
                scale[j] += lower[j, k] * cov[k, i] * lower[j, i]
        for i in range(d):
            precision[j, i] = 0.0
            for k in range(d):
                precision[j, i] += half[k, j] * half[k, i] - inverse[k, j] * inverse[k, i]
    return log_z
