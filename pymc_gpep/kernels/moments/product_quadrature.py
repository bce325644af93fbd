"""Moments of N(g | μ, C) ∏_j Φ(g_j) in d dimensions by a Gauss–Hermite product rule on the Gaussian.

This is the rule of the nested EP paper (section 3.3). It is poor where the standard deviations of g exceed the width of
Φ, which is 1: see `pymc_gpep.kernels.moments.truncated_quadrature` for a better one.
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.moments.weighted_moments import centre, rescale
from pymc_gpep.kernels.special.normal import log_ndtr


@kernel
def product_moments(mu, factor, rule, mean, cov):
    """Mean (d,) and covariance (d, d) of t in g = μ + F t, C = F Fᵀ: 0 and I for the Gaussian alone.

    `factor` (d, d) is F, lower triangular; `rule` (2, order) holds nodes and log weights for a standard normal. Returns
    log ∫ N(g | μ, C) ∏ Φ(g_j) dg.
    """
    d = mu.shape[0]
    nodes, log_weights = rule
    digit = np.zeros(d, np.int64)
    t = np.empty(d)
    level = np.zeros(d + 1)  # log weight of the digits before each coordinate
    top = -np.inf
    total = 0.0
    rescale(mean, cov, 0.0)
    changed = 0
    while changed >= 0:
        for j in range(changed, d):
            t[j] = nodes[digit[j]]
            g = mu[j]
            for i in range(j + 1):
                g += factor[j, i] * t[i]
            level[j + 1] = level[j] + log_weights[digit[j]] + log_ndtr(g)
        if level[d] > top:
            shrink = math.exp(top - level[d])
            total *= shrink
            rescale(mean, cov, shrink)
            top = level[d]
        weight = math.exp(level[d] - top)
        total += weight
        for j in range(d):
            mean[j] += weight * t[j]
            for i in range(j + 1):
                cov[j, i] += weight * t[j] * t[i]
        # The next digits, the last one the fastest.
        changed = d - 1
        while changed >= 0 and digit[changed] == nodes.shape[0] - 1:
            digit[changed] = 0
            changed -= 1
        if changed >= 0:
            digit[changed] += 1
    centre(mean, cov, total)
    return top + math.log(total)
