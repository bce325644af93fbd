"""Tilted moments by quadrature for class-independent EP.

With independent cavities N(μ_k, v_k) the utilities f_k + e_k, e_k ~ N(0, 1), are independent too. Class y is observed
when its utility t ~ N(μ_y, τ²), τ² = 1 + v_y, is the largest (Girolami and Zhong 2007). Given t all else is in closed
form, and every moment is one integral over x = (t − μ_y) / τ:

    Ẑ = ∫ φ(x) ∏_{j≠y} Φ(z_j) dx,   z_j = (μ_y + τ x − μ_j) / σ_j,   σ_j² = 1 + v_j.

Seeger, Lawrence and Herbrich (2006) use two two-dimensional quadratures and 2c − 1 one-dimensional ones, of a few
nodes. Girolami and Zhong use 2c + 1 two-dimensional ones, of a few nodes too. Here one trapezoid rule, to nearly full
precision, does for all.

Let V be the tilted variance of a class's standardised utility, and ρ the tilted mean of that over its deviation. The
tilted mean of f is then μ + v ρ and its variance v (1 + v V) / (1 + v). A site of precision (1 − V) / (1 + v V) matches
these. For class y, V is the variance of x. For the others it is E[1 − λ (λ + z)] + Var λ, λ the hazard at z, and their
ρ is −E[λ] / σ.
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.methods.independent_ep import independent_update
from pymc_gpep.kernels.special.normal import LOG_2PI, probit_moments
from pymc_gpep.kernels.special.probit_product import LOWEST_LOG_WEIGHT, log_integrand, near_mode, trapezoid_rule


@kernel
def _add_node(x, log_z, slopes, offsets, y, mode, at_mode, moments):
    """Add the terms of node x to the sums of the standardised utilities' moments; return its weight.

    `log_z` is the log integrand at the mode up to the Gaussian's. `moments` (4, c) holds x or λ less that at the mode,
    its square, the truncated variance 1 − λ(λ + z), and room.
    """
    c = slopes.shape[0]
    log_weight = -0.5 * x * x - log_z
    for j in range(c):
        if j != y:
            log_p, moments[3, j], _, _ = probit_moments(slopes[j] * x + offsets[j])
            log_weight += log_p
    if not log_weight > LOWEST_LOG_WEIGHT:
        return 0.0
    weight = math.exp(log_weight)
    for j in range(c):
        if j == y:
            difference = x - mode
        else:
            _, h, _, truncated = probit_moments(slopes[j] * x + offsets[j])
            difference = h - at_mode[j]
            moments[2, j] += weight * truncated
        moments[0, j] += weight * difference
        moments[1, j] += weight * difference * difference
    return weight


@kernel
def quadrature_tilted(settings, mean, variance, y, old, new, scale):
    """Tilted moments of one point by quadrature, as `independent_update` wants them."""
    slopes, offsets, at_mode, moments = settings
    c = mean.shape[0]
    tau = math.sqrt(1.0 + variance[y])
    curvature = 1.0
    for j in range(c):
        if j != y:
            sigma = math.sqrt(1.0 + variance[j])
            slopes[j] = tau / sigma
            offsets[j] = (mean[y] - mean[j]) / sigma
            curvature += slopes[j] * slopes[j]
    mode = near_mode(slopes, offsets, y, at_mode)
    peak = log_integrand(mode, slopes, offsets, y, at_mode)
    step, nodes = trapezoid_rule(curvature)
    moments[:] = 0.0
    total = _add_node(mode, peak, slopes, offsets, y, mode, at_mode, moments)
    for side in (-step, step):
        for node in range(1, nodes + 1):
            weight = _add_node(mode + node * side, peak, slopes, offsets, y, mode, at_mode, moments)
            if weight == 0.0:
                break
            total += weight
    for k in range(c):
        shift = moments[0, k] / total
        spread = moments[1, k] / total - shift * shift
        if k == y:
            rho = (mode + shift) / tau
        else:
            rho = -(at_mode[k] + shift) / math.sqrt(1.0 + variance[k])
            spread += moments[2, k] / total
        new[0, k] = max(0.0, 1.0 - spread) / (1.0 + variance[k] * spread)
        new[1, k] = new[0, k] * (mean[k] + variance[k] * rho) + rho
    return peak + math.log(total * step) - 0.5 * LOG_2PI, 0.0


@kernel
def qiep_update(mean, variance, pi, nu, y, sites, target, scale):
    """New sites of all points, see `independent_update`."""
    c = mean.shape[0]
    settings = (np.empty(c), np.empty(c), np.empty(c), np.empty((4, c)))
    return independent_update(quadrature_tilted, settings, mean, variance, pi, nu, y, sites, target, scale)
