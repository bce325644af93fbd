"""The multinomial probit at many points: log probability, gradient, curvature, and how that changes.

Averages over latent values take `rough_log_likelihood`, to some nine digits at a tenth of the time. It is the trapezoid
rule of `multinomial_probit` about 0 rather than the mode, with a wider step and distribution functions by tables. Where
the label is improbable, so that the mode is far away and tables have too few digits, it is the exact one.
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.likelihoods.multinomial_probit import (
    log_probability_and_gradient,
    log_probability_hessian,
    log_probability_third,
)
from pymc_gpep.kernels.special.probit_product import trapezoid_rule
from pymc_gpep.kernels.special.tabulated_normal import cdf_and_density

_WIDER = 1.25  # than the step for 15 digits: ten digits are left
_REACH = 6.8  # of the nodes on either side of the mode
_FURTHEST = 8.5  # beyond it tables are not asked
_LOWEST = -5.0  # difference of latent values from which on the label is improbable
_LEAST = 1e-4  # its probability


@kernel
def rough_log_likelihood(f, y, gradient):
    """Σ log p(y_i | f_i), and its derivative into `gradient` (c, n)."""
    c, n = f.shape
    step = _WIDER * trapezoid_rule(float(c))[0]
    before = int(_REACH / step)
    nodes = before + int((_REACH - 0.5 * _LOWEST) / step) + 1
    weights = np.empty(nodes)
    for i in range(nodes):
        u = (i - before) * step
        weights[i] = step * math.exp(-0.5 * u * u) / math.sqrt(2.0 * math.pi)
    rows = np.empty((4, c))
    differences, ratios, of_point, own = rows[0], rows[1], rows[2], rows[3]
    total = 0.0
    for i in range(n):
        label = y[i]
        lowest = np.inf
        for a in range(c):
            differences[a] = f[label, i] - f[a, i]
            of_point[a] = 0.0
            if a != label:
                lowest = min(lowest, differences[a])
        p = 0.0
        if lowest > _LOWEST:
            last = before + int((_REACH + max(0.0, -0.5 * lowest)) / step) + 1
            for node in range(min(last, nodes) - 1, -1, -1):
                u = (node - before) * step
                if u + lowest < -_FURTHEST:
                    break
                product = weights[node]
                for a in range(c):
                    s = u + differences[a]
                    ratios[a] = 0.0
                    if a != label and s < _FURTHEST:
                        cdf, density = cdf_and_density(s)
                        product *= cdf
                        ratios[a] = density / cdf
                p += product
                for a in range(c):
                    of_point[a] -= product * ratios[a]
        if p > _LEAST:
            total += min(math.log(p), 0.0)
            rest = 0.0
            for a in range(c):
                gradient[a, i] = of_point[a] / p
                rest += gradient[a, i]
            gradient[label, i] = -rest
        else:
            for a in range(c):
                own[a] = f[a, i]
            total += log_probability_and_gradient(own, label, of_point)
            for a in range(c):
                gradient[a, i] = of_point[a]
    return total


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
