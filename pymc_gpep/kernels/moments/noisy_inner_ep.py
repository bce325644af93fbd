"""Inner EP of a point whose latent values are known up to independent noise, as by way of inducing values.

Class k has the latent value x_k + e_k, e_k ~ N(0, r_k). Its utility thus has noise of variance s_k = 1 + r_k around
x_k. With u ~ N(0, s_y) the factors are Φ(g_j / √s_j), g_j = x_y − x_j + u. Each of the noises is in one factor only, or
in u. In units of √s_j a factor is Φ. Precision and location of its site in these units are α_j and β_j; the site is
found as `pymc_gpep.kernels.moments.inner_ep` finds it.
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.moments.inner_ep import difference_moments, point_update


@kernel
def noisy_inner_ep_update(mean, cov, y, rest, alpha, beta, max_sweeps, tolerance, new_alpha, new_beta, scale):
    """As `pymc_gpep.kernels.moments.inner_ep.inner_ep_update`, with noise of variance 1 + `rest` (c, n) in place of 1.

    `mean` (c, n) and `cov` (n, c, c) are those of the x. Sites and their marginal variances are in units of √s_j.
    """
    n, others = alpha.shape
    m = np.empty(others)
    s = np.empty((others, others))
    rows = np.empty((4, others))
    root, own_alpha, own_beta, work = rows[0], rows[1], rows[2], rows[3]
    terms = 0.0
    residual = 0.0
    for i in range(n):
        for j in range(others):
            root[j] = math.sqrt(1.0 + rest[j + (j >= y[i]), i])
            own_alpha[j] = alpha[i, j] / (root[j] * root[j])
            own_beta[j] = beta[i, j] / root[j]
        difference_moments(mean[:, i], cov[i], y[i], 1.0 / (1.0 + rest[y[i], i]), own_alpha, own_beta, m, s, work)
        for j in range(others):
            m[j] /= root[j]
            for k in range(others):
                s[j, k] /= root[j] * root[k]
        gained, change = point_update(
            m, s, alpha[i], beta[i], max_sweeps, tolerance, new_alpha[i], new_beta[i], scale[i], work
        )
        terms += gained
        residual = max(residual, change)
    return terms, residual


@kernel
def noisy_site_parameters(y, rest, alpha, beta, pi, nu):
    """π and ν (c, n) of the sites of x from inner sites α, β (n, c − 1) in units of √s_j, with r = `rest` (c, n).

    Equations 12 and 15 of the nested EP paper with π_y = 1 / s_y in place of 1. Returns what is left of the sites when
    x is zero and u is integrated out, Σ_i (1ᵀβ_i)² / (2 1ᵀπ_i) − ½ log(s_y 1ᵀπ_i).
    """
    n, others = alpha.shape
    constant = 0.0
    for i in range(n):
        own = 1.0 / (1.0 + rest[y[i], i])
        total = own
        location = 0.0
        for j in range(others):
            k = j + (j >= y[i])
            noise = 1.0 + rest[k, i]
            pi[k, i] = alpha[i, j] / noise
            nu[k, i] = beta[i, j] / math.sqrt(noise)
            total += pi[k, i]
            location += nu[k, i]
        a = location / total
        constant += 0.5 * (location * a - math.log(total / own))
        pi[y[i], i] = own
        nu[y[i], i] = a * own
        for j in range(others):
            k = j + (j >= y[i])
            nu[k, i] = a * pi[k, i] - nu[k, i]
    return constant
