"""The multinomial probit likelihood of one point: log probability and three derivatives in the latent values.

    p(y | f) = ∫ φ(u) ∏_{j≠y} Φ(u + f_y − f_j) du

The trapezoid rule does the integral. On the line u + ia the integrand is at most exp(c a² / 2) times what it is at u,
because |φ(t + ia)| = exp(a²/2) φ(t), and integrating that along the line bounds |Φ(t + ia)| by exp(a²/2) Φ(t) in the
same way. The rule with step h then errs by a factor of 2 exp(c a²/2 − 2πa/h) at most (Trefethen and Weideman 2014,
theorem 5.1), which is 2 exp(−2π²/(c h²)) for the best a: the step follows from the digits wanted, whatever f is.
The integrand is log-concave with a curvature between 1 and c, so that it needs to be summed only around its mode.
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import inlined_kernel, kernel
from pymc_gpep.kernels.normal import LOG_2PI, log_ndtr_and_hazard

__all__ = [
    "log_probability_and_gradient",
    "log_probability_derivatives",
    "log_probability_hessian",
    "log_probability_third",
]

_LOG_ERROR = math.log(1e-15)
_LOWEST_LOG_WEIGHT = -40.0  # of a node, relative to the mode's
_FURTHEST_NODE = math.sqrt(-2.0 * _LOWEST_LOG_WEIGHT)  # with a curvature of 1 or more, weights fall at least so fast
_MAX_NEWTON_STEPS = 100


@kernel
def _log_integrand(u, f, y, hazards):
    """log(φ(u) ∏ Φ) up to ½ log 2π; the hazards of the other classes go to `hazards`, 0 for class y."""
    total = -0.5 * u * u
    for j in range(f.shape[0]):
        hazards[j] = 0.0
        if j != y:
            log_cdf, hazards[j] = log_ndtr_and_hazard(u + (f[y] - f[j]))
            total += log_cdf
    return total


@kernel
def _near_mode(f, y, hazards):
    """A point within a small part of the integrand's width from its mode.

    The slope of the log integrand is convex and falls (hazards do: Sampford 1953), so that Newton's method started at
    0, where the slope is positive, comes up to the mode from the left without ever passing it.
    """
    u = 0.0
    for _ in range(_MAX_NEWTON_STEPS):
        _log_integrand(u, f, y, hazards)
        slope = -u
        curvature = 1.0
        for j in range(f.shape[0]):
            slope += hazards[j]
            curvature += hazards[j] * (u + (f[y] - f[j]) + hazards[j])
        u += slope / curvature
        if not slope * slope > 1e-4 * curvature:
            break
    return u


@kernel
def _rule(c):
    """Step of the trapezoid rule, and how many nodes a side of the mode can have."""
    step = math.pi * math.sqrt(-2.0 / (c * _LOG_ERROR))
    return step, int(_FURTHEST_NODE / step) + 1


@kernel
def log_probability_and_gradient(f, y, gradient):
    """log p(y | f), and its derivative with respect to f.

    Parameters
    ----------
    f : (c,) array
        Latent values of one point.
    y : int
        Its label; −inf and a gradient of 0 answer a label that is no class.
    gradient : (c,) array
        Overwritten with the derivative.
    """
    c = f.shape[0]
    gradient[:] = 0.0
    if y < 0 or y >= c:
        return -np.inf
    hazards = np.empty(c)
    mode = _near_mode(f, y, hazards)
    peak = _log_integrand(mode, f, y, hazards)
    total = 1.0
    gradient -= hazards

    step, nodes = _rule(c)
    for side in (-step, step):
        for k in range(1, nodes + 1):
            log_weight = _log_integrand(mode + k * side, f, y, hazards) - peak
            if not log_weight > _LOWEST_LOG_WEIGHT:
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
    """log p(y | f), and its first and second derivatives with respect to f in one go.

    Among the other classes the second is the covariance of the hazards under the normalised integrand, plus the mean
    slope of each hazard on the diagonal. A shift of f changes nothing, which fills in row and column y.

    Parameters
    ----------
    f : (c,) array
        Latent values of one point.
    y : int
        Its label; −inf and derivatives of 0 answer a label that is no class.
    gradient : (c,) array
        Overwritten with the first derivative.
    hessian : (c, c) array
        Overwritten with the second.
    """
    c = f.shape[0]
    gradient[:] = 0.0
    hessian[:] = 0.0
    if y < 0 or y >= c:
        return -np.inf
    hazards = np.empty(c)
    mode = _near_mode(f, y, hazards)
    peak = _log_integrand(mode, f, y, hazards)
    # Moments about the hazards at the mode: far in the tail hazards are large and hardly vary.
    reference = hazards.copy()
    mean = np.zeros(c)
    total = 1.0
    for j in range(c):
        hessian[j, j] = -hazards[j] * (mode + (f[y] - f[j]) + hazards[j])

    step, nodes = _rule(c)
    for side in (-step, step):
        for node in range(1, nodes + 1):
            u = mode + node * side
            log_weight = _log_integrand(u, f, y, hazards) - peak
            if not log_weight > _LOWEST_LOG_WEIGHT:
                break
            weight = math.exp(log_weight)
            total += weight
            for j in range(c):
                hessian[j, j] -= weight * hazards[j] * (u + (f[y] - f[j]) + hazards[j])
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
    # Row and column y hold zeros so far.
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
    """Overwrite `hessian` (c, c) with the second derivative of log p(y | f); 0 for a label that is no class."""
    log_probability_derivatives(f, y, np.empty(f.shape[0]), hessian)


@inlined_kernel
def log_probability_third(f, y, cov, third):
    """Overwrite `third` (c,) with Σ_kl S_kl ∂³ log p(y | f) / ∂f_j ∂f_k ∂f_l for a symmetric S = `cov` (c, c).

    log p is the log of an integral, so that its third derivatives are cumulants. With C the covariance of the
    differences x_j = f_y − f_j, h_j the hazards at u + x_j, e = h − E h, and E over the normalised integrand, the sum
    is E[C_jj h_j″ + 2 h_j′ (C e)_j + e_j (Σ_k C_kk h_k′ + eᵀCe)] in terms of x; 0 for a label that is no class.
    """
    c = f.shape[0]
    third[:] = 0.0
    if y < 0 or y >= c:
        return
    hazards = np.empty(c)
    mode = _near_mode(f, y, hazards)
    peak = _log_integrand(mode, f, y, hazards)
    step, nodes = _rule(c)
    mean = np.zeros(c)
    total = 0.0
    for node in range(-nodes, nodes + 1):
        weight = math.exp(_log_integrand(mode + node * step, f, y, hazards) - peak)
        total += weight
        for j in range(c):
            mean[j] += weight * hazards[j]
    mean /= total
    for node in range(-nodes, nodes + 1):
        u = mode + node * step
        weight = math.exp(_log_integrand(u, f, y, hazards) - peak) / total
        # With x_y for a difference that is always zero, the sums may run over all classes.
        common = 0.0
        for k in range(c):
            slope = -hazards[k] * (u + (f[y] - f[k]) + hazards[k])
            common += (cov[y, y] - 2.0 * cov[y, k] + cov[k, k]) * slope
            for j in range(c):
                spread = cov[y, y] - cov[y, k] - cov[j, y] + cov[j, k]
                common += spread * (hazards[k] - mean[k]) * (hazards[j] - mean[j])
        for j in range(c):
            if j == y:
                continue
            z = u + (f[y] - f[j])
            slope = -hazards[j] * (z + hazards[j])
            bend = -slope * (z + hazards[j]) - hazards[j] * (1.0 + slope)
            value = (cov[y, y] - 2.0 * cov[y, j] + cov[j, j]) * bend + (hazards[j] - mean[j]) * common
            for k in range(c):
                spread = cov[y, y] - cov[y, k] - cov[j, y] + cov[j, k]
                value += 2.0 * slope * spread * (hazards[k] - mean[k])
            third[j] -= weight * value
    third[y] = -np.sum(third)
