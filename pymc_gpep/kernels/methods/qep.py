"""Sites of EP with between-class coupling, from tilted moments by quadrature (nested EP paper, section 3.3).

The sites are those of nested EP, exp(ξᵀg − gᵀΛg/2) with a diagonal Λ in g_j = f_y − f_j + u. They match the mean of the
tilted distribution of g, and the diagonal of Σ̂⁻¹ − Σ⁻¹ (equations 19 to 21). That diagonal lies in [0, 1): the factors
Φ are log-concave with a curvature below 1.
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import inlined_kernel, kernel
from pymc_gpep.kernels.linalg.lapack import copy_into
from pymc_gpep.kernels.linalg.small_matrices import lower_factor, solve_lower
from pymc_gpep.kernels.moments.full_sites import cavity, change_to_site, shrink_to_semidefinite
from pymc_gpep.kernels.moments.inner_ep import change_site, difference_moments
from pymc_gpep.kernels.moments.probit_quadrature import product_moments, truncated_moments

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


@kernel
def full_qep_update(hermite, rule, orders, mean, cov, pi, nu, y, sites, target, scale):
    """New sites of all points into `target` from the posterior's `mean` (c, n) and `cov` (n, c, c).

    `pi` (n, d, d) and `nu` (n, d) are the present sites of the differences. `scale` receives what `accelerated_ep`
    wants to measure changes by. Returns what the points add to the evidence, and the largest change of a site in units
    of its marginal.
    """
    n, d = nu.shape
    m = np.empty(d)
    s = np.empty((d, d))
    v = np.empty(d)
    precision = np.empty((d, d))
    location = np.empty(d)
    terms = 0.0
    residual = 0.0
    for i in range(n):
        terms -= cavity(mean[:, i], cov[i], y[i], pi[i], nu[i], m, s)
        terms += tilted_site(m, s, hermite, rule, orders[i], precision, location, v)
        for j in range(d):
            precision[j, j] = min(max(precision[j, j], 0.0), BELOW_ONE)
        shrink_to_semidefinite(precision, s)
        for j in range(d):
            scale[i, j] = v[j]
        residual = max(residual, change_to_site(precision, location, m, sites, target, scale, i))
    return terms, residual


@kernel
def qep_update(hermite, rule, orders, mean, cov, y, sites, target, scale):
    """New sites of all points into `target` from the posterior's `mean` (c, n) and `cov` (n, c, c).

    `scale` (n, c − 1) receives the marginal variances of g. Returns what the points add to the evidence, and the
    largest change of a site in units of its marginal.
    """
    _, n, d = sites.shape
    m = np.empty(d)
    s = np.empty((d, d))
    work = np.empty(d)
    precision = np.empty((d, d))
    tilted_variance = np.empty(d)
    terms = 0.0
    residual = 0.0
    for i in range(n):
        alpha, xi = sites[0, i], sites[1, i]
        difference_moments(mean[:, i], cov[i], y[i], 1.0, alpha, xi, m, s, work)
        for j in range(d):
            scale[i, j] = s[j, j]
        new_alpha, new_xi = target[0, i], target[1, i]
        for j in range(d):
            terms += change_site(m, s, j, -alpha[j], -xi[j], work)
        terms += tilted_site(m, s, hermite, rule, orders[i], precision, new_xi, tilted_variance)
        for j in range(d):
            v = scale[i, j]
            new_alpha[j] = min(max(precision[j, j], 0.0), BELOW_ONE)
            new_xi[j] += new_alpha[j] * m[j]
            residual = max(residual, abs(new_alpha[j] - alpha[j]) * v, abs(new_xi[j] - xi[j]) * math.sqrt(v))
    return terms, residual
