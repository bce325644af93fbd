"""The multinomial probit likelihood at one point and at many points: log probability and derivatives.

    p(y | f) = ∫ φ(u) ∏_{j≠y} Φ(u + f_y − f_j) du,   φ and Φ the standard normal density and distribution function.

The trapezoid rule of `pymc_gpep.kernels.special.probit` computes the integral to nearly full precision. The largest
curvature of the log integrand is the number c of classes.
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import inlined_kernel, kernel
from pymc_gpep.kernels.special.normal import LOG_2PI
from pymc_gpep.kernels.special.probit import LOWEST_LOG_WEIGHT, log_integrand, near_mode, trapezoid_rule


@kernel
def _as_product(f, y):
    """Return the slopes and offsets (c,) of the factors Φ, the largest curvature, and scratch space (c,)."""
    c = f.shape[0]
    room = np.empty((3, c))
    for j in range(c):
        room[0, j] = 1.0
        room[1, j] = f[y] - f[j]
    return room[0], room[1], float(c), room[2]


@kernel
def log_probability_and_gradient(f, y, gradient):
    """Return log p(y | f), and write its derivative with respect to f.

    Parameters
    ----------
    f : (c,) array
        Latent values of one point.
    y : int
        Label of the point. For a label outside the classes the result is −inf with a gradient of 0.
    gradient : (c,) array
        Overwritten with the derivative.
    """
    c = f.shape[0]
    gradient[:] = 0.0
    if y < 0 or y >= c:
        return -np.inf
    slopes, offsets, curvature, hazards = _as_product(f, y)
    mode = near_mode(slopes, offsets, y, hazards)
    peak = log_integrand(mode, slopes, offsets, y, hazards)
    total = 1.0
    gradient -= hazards

    step, nodes = trapezoid_rule(curvature)
    for side in (-step, step):
        for k in range(1, nodes + 1):
            log_weight = log_integrand(mode + k * side, slopes, offsets, y, hazards) - peak
            if not log_weight > LOWEST_LOG_WEIGHT:
                break
            weight = math.exp(log_weight)
            total += weight
            for j in range(c):
                gradient[j] -= weight * hazards[j]

    gradient /= total
    gradient[y] = -np.sum(gradient)
    value = peak + math.log(total * step) - 0.5 * LOG_2PI
    return 0.0 if value > 0.0 else value


@kernel
def log_probability_derivatives(f, y, gradient, hessian):
    """Return log p(y | f), and write its first and second derivatives with respect to f.

    For classes other than y, the second derivative is the covariance of the ratios φ/Φ under the normalised integrand.
    The mean slope of the ratio is added on the diagonal. All row sums are zero, since a common shift has no effect.

    Parameters
    ----------
    f : (c,) array
        Latent values of one point.
    y : int
        Label of the point. For a label outside the classes the result is −inf with derivatives of 0.
    gradient : (c,) array
        Overwritten with the first derivative.
    hessian : (c, c) array
        Overwritten with the second derivative.
    """
    c = f.shape[0]
    gradient[:] = 0.0
    hessian[:] = 0.0
    if y < 0 or y >= c:
        return -np.inf
    slopes, offsets, curvature, hazards = _as_product(f, y)
    mode = near_mode(slopes, offsets, y, hazards)
    peak = log_integrand(mode, slopes, offsets, y, hazards)
    # Differences from the ratios φ/Φ at the mode are summed, since ratios in the tail are large and hardly vary.
    reference = hazards.copy()
    mean = np.zeros(c)
    total = 1.0
    for j in range(c):
        hessian[j, j] = -hazards[j] * (mode + offsets[j] + hazards[j])

    step, nodes = trapezoid_rule(curvature)
    for side in (-step, step):
        for node in range(1, nodes + 1):
            u = mode + node * side
            log_weight = log_integrand(u, slopes, offsets, y, hazards) - peak
            if not log_weight > LOWEST_LOG_WEIGHT:
                break
            weight = math.exp(log_weight)
            total += weight
            for j in range(c):
                hessian[j, j] -= weight * hazards[j] * (u + offsets[j] + hazards[j])
                difference = weight * (hazards[j] - reference[j])
                mean[j] += difference
                for k in range(j + 1):
                    hessian[j, k] += difference * (hazards[k] - reference[k])

    mean /= total
    for j in range(c):
        gradient[j] = -reference[j] - mean[j]
        for k in range(j + 1):
            hessian[j, k] = hessian[j, k] / total - mean[j] * mean[k]
            hessian[k, j] = hessian[j, k]
    # Row and column y are 0 so far.
    for j in range(c):
        if j != y:
            hessian[j, y] = -np.sum(hessian[j])
            hessian[y, j] = hessian[j, y]
    hessian[y, y] = -np.sum(hessian[y])
    gradient[y] = -np.sum(gradient)
    value = peak + math.log(total * step) - 0.5 * LOG_2PI
    return 0.0 if value > 0.0 else value


@kernel
def log_probability_hessian(f, y, hessian):
    """Overwrite `hessian` (c, c) with the second derivative of log p(y | f); 0 for a label outside the classes."""
    log_probability_derivatives(f, y, np.empty(f.shape[0]), hessian)


@inlined_kernel
def log_probability_third(f, y, cov, third):
    """Overwrite `third` (c,) with Σ_kl S_kl ∂³ log p(y | f) / ∂f_j ∂f_k ∂f_l for a symmetric S = `cov` (c, c).

    log p is the log of an integral, so its third derivatives are cumulants. Let C be the covariance of the differences
    x_j = f_y − f_j under S. Let h_j be the ratio φ/Φ at u + x_j, and e = h − E h. Averages E are over the normalised
    integrand. In terms of x, component j of the sum is

        E[C_jj h_j″ + 2 h_j′ (C e)_j + e_j (Σ_k C_kk h_k′ + eᵀCe)].

    All components are 0 for a label outside the classes.
    """
    c = f.shape[0]
    third[:] = 0.0
    if y < 0 or y >= c:
        return
    slopes, offsets, curvature, hazards = _as_product(f, y)
    mode = near_mode(slopes, offsets, y, hazards)
    peak = log_integrand(mode, slopes, offsets, y, hazards)
    step, nodes = trapezoid_rule(curvature)
    mean = np.zeros(c)
    total = 0.0
    for node in range(-nodes, nodes + 1):
        weight = math.exp(log_integrand(mode + node * step, slopes, offsets, y, hazards) - peak)
        total += weight
        for j in range(c):
            mean[j] += weight * hazards[j]
    mean /= total
    for node in range(-nodes, nodes + 1):
        u = mode + node * step
        weight = math.exp(log_integrand(u, slopes, offsets, y, hazards) - peak) / total
        # The difference x_y is 0, so sums over all classes equal sums over the classes other than y.
        common = 0.0
        for k in range(c):
            slope = -hazards[k] * (u + offsets[k] + hazards[k])
            common += (cov[y, y] - 2.0 * cov[y, k] + cov[k, k]) * slope
            for j in range(c):
                spread = cov[y, y] - cov[y, k] - cov[j, y] + cov[j, k]
                common += spread * (hazards[k] - mean[k]) * (hazards[j] - mean[j])
        for j in range(c):
            if j == y:
                continue
            z = u + offsets[j]
            slope = -hazards[j] * (z + hazards[j])
            bend = -slope * (z + hazards[j]) - hazards[j] * (1.0 + slope)
            value = (cov[y, y] - 2.0 * cov[y, j] + cov[j, j]) * bend + (hazards[j] - mean[j]) * common
            for k in range(c):
                spread = cov[y, y] - cov[y, k] - cov[j, y] + cov[j, k]
                value += 2.0 * slope * spread * (hazards[k] - mean[k])
            third[j] -= weight * value
    third[y] = -np.sum(third)


@kernel
def bound_terms(y, f, b, prior_mean, r, w):
    """Return the objective of variational Bayes, Σ log p(y | f) − ½ bᵀ(f − m), up to a constant.

    m is `prior_mean`. The gradient ∂ log p / ∂f − b is written into `r` (c, n), and −∇∇ log p into `w` (n, c, c).
    """
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


@kernel
def log_likelihood(f, y, gradient):
    """Return Σ log p(y_i | f_i), and write its derivative into `gradient` (c, n)."""
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
    """Write −∇∇ log p(y_i | f_i) into `w` (n, c, c)."""
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
    """Write −½ Σ_kl S_i[k, l] ∂W_i[k, l] / ∂f_i to `slope` (c, n), for covariances S_i = `cov` and curvatures W."""
    c, n = f.shape
    own = np.empty(c)
    third = np.empty(c)
    for i in range(n):
        for a in range(c):
            own[a] = f[a, i]
        log_probability_third(own, y[i], cov[i], third)
        for a in range(c):
            slope[a, i] = 0.5 * third[a]
