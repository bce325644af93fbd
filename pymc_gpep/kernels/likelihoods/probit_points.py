"""The multinomial probit at many points: log probability, gradient and curvature."""

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.likelihoods.multinomial_probit import log_probability_and_gradient, log_probability_hessian

__all__ = ["curvature", "log_likelihood"]


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
