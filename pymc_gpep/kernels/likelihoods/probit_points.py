"""The multinomial probit at many points: log probability, gradient, curvature, and how that changes."""

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.likelihoods.multinomial_probit import (
    log_probability_and_gradient,
    log_probability_hessian,
    log_probability_third,
)

__all__ = ["curvature", "curvature_slope", "log_likelihood"]


@kernel
def log_likelihood(f, y, gradient):
    """Σ log p(y_i | f_i), and its derivative into `gradient` (c, n)."""
    c, n = f.shape
    of_point = np.empty(c)
    own = np.empty(c)
    total = 0.0
    for i in range(n):
        for a in range(c):
            own[a] = f[a, i]
        total += log_probability_and_gradient(own, y[i], of_point)
        for a in range(c):
            gradient[a, i] = of_point[a]
    return total


@kernel
def curvature(f, y, w):
    """−∇∇ log p(y_i | f_i) into `w` (n, c, c)."""
    c, n = f.shape
    own = np.empty(c)
    for i in range(n):
        for a in range(c):
            own[a] = f[a, i]
        log_probability_hessian(own, y[i], w[i])
        for a in range(c):
            for e in range(c):
                w[i, a, e] = -w[i, a, e]


@kernel
def curvature_slope(f, y, cov, slope):
    """−½ Σ_kl S_i[k, l] ∂W_i[k, l] / ∂f_i into `slope` (c, n), for covariances S_i = `cov` and the curvature W."""
    c, n = f.shape
    own = np.empty(c)
    third = np.empty(c)
    for i in range(n):
        for a in range(c):
            own[a] = f[a, i]
        log_probability_third(own, y[i], cov[i], third)
        for a in range(c):
            slope[a, i] = 0.5 * third[a]
