"""Moments of N(g | μ, C) ∏_j Φ(g_j): by a product rule, and by nested quadratures over a truncated normal.

The product rule (`product_moments`) is that of the nested EP paper (section 3.3). It is poor if the standard deviations
of g exceed the width of Φ, which is 1. The nested quadratures (`truncated_moments`) have no such limit.

Φ(g_j) is the probability that z_j = g_j + e_j is positive, e ~ N(0, I). So the normaliser is the probability that all
of z ~ N(μ, S), S = C + I, are positive. The moments of g follow from those of z truncated to that orthant. Let z = μ +
L x, S = L Lᵀ, and m and V the mean and covariance of x. The moments of g are μ + C L⁻ᵀ m and C − C L⁻ᵀ (I − V) L⁻¹ C.

Coordinate x_j is a standard normal above a bound that those before it set (separation of variables: Genz 1992, Journal
of Computational and Graphical Statistics 1). It is written as the quantile of a uniform q, its upper tail being q times
that above the bound. That leaves an integrand of the same shape for any C, and the last coordinate is in closed form.
In q the moments are singular like powers of log q at 0. If the bound is far below, they are singular like powers of
log(1 − q) at 1. With q = s³ (4 − 3s), Gauss–Legendre in s meets 12 s² (1 − s) times that and converges fast. Classes
come in the order of their standardised means, the least likely to be positive first.
"""

import math

import numpy as np
from numba.core import types

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.external import scipy_function
from pymc_gpep.kernels.linalg.small_matrices import lower_factor, solve_lower
from pymc_gpep.kernels.moments.softmax_quadrature import centre, rescale
from pymc_gpep.kernels.special.normal import log_ndtr, probit_moments


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


_MARGIN = 0.01
_ndtri_exp = scipy_function("special.cython_special", "ndtri_exp", types.float64(types.float64))


@kernel
def _orthant_moments(mu, lower, rule, mean, cov):
    """Log probability that μ + L x is positive, and mean (d,) and covariance (d, d) of x given that it is.

    `rule` (2, order) holds log q and log weights.
    """
    d = mu.shape[0]
    log_nodes, log_weights = rule
    order = log_nodes.shape[0]
    last = d - 1
    digit = np.zeros(d, np.int64)
    x = np.empty(d)
    level = np.zeros(d)  # log weight of the digits before each coordinate
    top = -np.inf
    total = 0.0
    rescale(mean, cov, 0.0)
    changed = 0
    while changed >= 0:
        for j in range(changed, last):
            room = mu[j]
            for i in range(j):
                room += lower[j, i] * x[i]
            log_mass = log_ndtr(room / lower[j, j])
            x[j] = -_ndtri_exp(log_nodes[digit[j]] + log_mass)
            level[j + 1] = level[j] + log_weights[digit[j]] + log_mass
        room = mu[last]
        for i in range(last):
            room += lower[last, i] * x[i]
        log_mass, x[last], _, variance = probit_moments(room / lower[last, last])
        log_weight = level[last] + log_mass
        if log_weight > top:
            shrink = math.exp(top - log_weight)
            total *= shrink
            rescale(mean, cov, shrink)
            top = log_weight
        weight = math.exp(log_weight - top)
        total += weight
        cov[last, last] += weight * variance
        for j in range(d):
            mean[j] += weight * x[j]
            for i in range(j + 1):
                cov[j, i] += weight * x[j] * x[i]
        changed = last - 1
        while changed >= 0 and digit[changed] == order - 1:
            digit[changed] = 0
            changed -= 1
        if changed >= 0:
            digit[changed] += 1
    centre(mean, cov, total)
    return top + math.log(total)


@kernel
def _sort(mu, cavity, order):
    """Bring `order` up to date, the order of coordinates by their standardised means; −1 stands for no order as yet.

    The error of the rule depends on the order a little, so that an iteration could swap near-equals for ever. An order
    is therefore kept until it is wrong by more than a margin.
    """
    margin = _MARGIN
    if order[0] < 0:
        margin = 0.0
        for j in range(mu.shape[0]):
            order[j] = j
    key = np.empty(mu.shape[0])
    for j in range(mu.shape[0]):
        key[j] = mu[j] / math.sqrt(cavity[j, j] + 1.0)
    for j in range(1, mu.shape[0]):
        moving = order[j]
        i = j
        while i > 0 and key[moving] < key[order[i - 1]] - margin:
            order[i] = order[i - 1]
            i -= 1
        order[i] = moving


@kernel
def truncated_moments(mu, cavity, factor, rule, order, mean, cov):
    """Compute mean (d,) and covariance (d, d) of t in g = μ + F t, C = F Fᵀ.

    They are 0 and I for the Gaussian alone. `cavity` and `factor` (d, d) are C and F, lower triangular. `rule` (2, ·)
    holds log q and log weights. `order` (d,), the order of the coordinates, is as the last call left it, or −1 at
    first. The function returns log ∫ N(g | μ, C) ∏ Φ(g_j) dg.
    """
    d = mu.shape[0]
    _sort(mu, cavity, order)
    moved_mu = np.empty(d)
    moved = np.empty((d, d))
    response = np.empty((d, d))
    for j in range(d):
        moved_mu[j] = mu[order[j]]
        for i in range(d):
            response[j, i] = factor[order[j], i]
            moved[j, i] = cavity[order[j], order[i]]
        moved[j, j] += 1.0
    lower = lower_factor(moved)
    of_x = np.empty(d)
    spread = np.empty((d, d))
    log_z = _orthant_moments(moved_mu, lower, rule, of_x, spread)
    # With R = L⁻¹ F, rows of F in the order of the classes: mean Rᵀ m and covariance I − Rᵀ (I − V) R.
    solve_lower(lower, response)
    for j in range(d):
        mean[j] = 0.0
        for k in range(d):
            mean[j] += response[k, j] * of_x[k]
        for i in range(j + 1):
            change = 0.0
            for k in range(d):
                change += response[k, j] * response[k, i]
                for e in range(d):
                    change -= response[k, j] * spread[k, e] * response[e, i]
            cov[j, i] = (1.0 if i == j else 0.0) - change
            cov[i, j] = cov[j, i]
    return log_z
