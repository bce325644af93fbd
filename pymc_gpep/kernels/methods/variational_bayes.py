"""The bound of variational Bayes for the multinomial probit at a point, with what its ascent needs."""

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.likelihoods.multinomial_probit import log_probability_derivatives

__all__ = ["bound_terms"]


@kernel
def bound_terms(y, f, b, prior_mean, r, w):
    """Σ log p(y | f) − ½ bᵀ(f − m); r = ∂ log p / ∂f − b into `r` (c, n), W into `w` (n, c, c)."""
    c, n = f.shape
    point = np.empty(c)
    gradient = np.empty(c)
    total = 0.0
    for i in range(n):
        for a in range(c):
            point[a] = f[a, i]
            total -= 0.5 * b[a, i] * (f[a, i] - prior_mean[a, i])
        total += log_probability_derivatives(point, y[i], gradient, w[i])
        for a in range(c):
            r[a, i] = gradient[a] - b[a, i]
            for e in range(c):
                w[i, a, e] = -w[i, a, e]
    return total
