"""EP with between-class coupling and tilted moments by quadrature (nested EP paper, section 3.3).

The sites are those of nested EP, exp(ξᵀg − gᵀΛg/2) with a diagonal Λ in g_j = f_y − f_j + u, and so is the posterior.
Of the tilted distribution of g they match the mean, and the diagonal of Σ̂⁻¹ − Σ⁻¹ (equations 19 to 21), which lies in
[0, 1): the factors Φ are log-concave with a curvature below 1.
"""

import math

import numpy as np
from numba import carray

from pymc_gpep.kernels.blas_threads import limit_blas_threads, restore_blas_threads
from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.coupled import evidence_gradient
from pymc_gpep.kernels.entry import Entry
from pymc_gpep.kernels.ep_ladder import ep_ladder
from pymc_gpep.kernels.finite import all_finite
from pymc_gpep.kernels.inner_ep import change_site, difference_moments
from pymc_gpep.kernels.lapack import copy_into
from pymc_gpep.kernels.product_quadrature import product_moments
from pymc_gpep.kernels.site_posterior import site_posterior
from pymc_gpep.kernels.small_matrix import lower_factor, solve_lower
from pymc_gpep.kernels.status import CONVERGED, NOT_FINITE
from pymc_gpep.kernels.truncated_quadrature import truncated_moments

__all__ = ["qep", "quadrature_site"]

_BELOW_ONE = 1.0 - 1e-12


@kernel
def quadrature_site(m, s, alpha, xi, hermite, rule, order, precision, location, work):
    """What the site of one point should be, from the moments `m`, `s` of g under the posterior with its old site.

    `hermite` says whether the `rule` (2, ·) is Gauss–Hermite's; `order` is for `truncated_moments`. Writes
    Λ = Σ̂⁻¹ − Σ⁻¹ into `precision` (c − 1, c − 1), Σ⁻¹ (μ̂ − μ) into `location`, and μ̂ over `m`. Returns log Ẑ less the
    log normaliser of the old site under the cavity.
    """
    d = m.shape[0]
    term = 0.0
    for j in range(d):
        term += change_site(m, s, j, -alpha[j], -xi[j], work)
    lower = lower_factor(s)
    mean = np.empty(d)
    cov = np.empty((d, d))
    if hermite:
        term += product_moments(m, lower, rule, mean, cov)
    else:
        term += truncated_moments(m, s, lower, rule, order, mean, cov)
    # With Σ = L Lᵀ and Σ̂ = L V Lᵀ, Λ = L⁻ᵀ (V⁻¹ − I) L⁻¹.
    inverse = np.eye(d)
    solve_lower(lower, inverse)
    half = inverse.copy()
    solve_lower(lower_factor(cov), half)
    for j in range(d):
        location[j] = 0.0
        for k in range(d):
            location[j] += inverse[k, j] * mean[k]
            m[j] += lower[j, k] * mean[k]
        for i in range(d):
            precision[j, i] = 0.0
            for k in range(d):
                precision[j, i] += half[k, j] * half[k, i] - inverse[k, j] * inverse[k, i]
    return term


@kernel
def _sweep(settings, problem, sites, space, target, scale):
    hermite, rule, orders = settings
    ok, evidence = site_posterior(problem, sites, space)
    if not ok:
        return False, np.nan, np.nan
    mean, cov = space[6], space[7]
    y = problem[2]
    _, n, d = sites.shape
    m = np.empty(d)
    s = np.empty((d, d))
    work = np.empty(d)
    precision = np.empty((d, d))
    residual = 0.0
    for i in range(n):
        alpha, xi = sites[0, i], sites[1, i]
        difference_moments(mean[:, i], cov[i], y[i], alpha, xi, m, s, work)
        for j in range(d):
            scale[i, j] = s[j, j]
        new_alpha, new_xi = target[0, i], target[1, i]
        evidence += quadrature_site(m, s, alpha, xi, hermite, rule, orders[i], precision, new_xi, work)
        for j in range(d):
            v = scale[i, j]
            new_alpha[j] = min(max(precision[j, j], 0.0), _BELOW_ONE)
            new_xi[j] += new_alpha[j] * m[j]
            residual = max(residual, abs(new_alpha[j] - alpha[j]) * v, abs(new_xi[j] - xi[j]) * math.sqrt(v))
    return True, evidence, residual


def _qep(
    matrices, c, n, k_, prior_mean_, y_, sites_, options_, wanted,
    evidence_, gradient_, gradient_mean_, weights_, mean_, cov_, precision_, history_, max_iterations, outcome_,
):  # fmt: skip
    k = carray(k_, (matrices, n, n))
    sites = carray(sites_, (2, n, c - 1))
    order = int(carray(options_, (7,))[6])
    options = carray(options_, (7 + 2 * order,))
    rule = options[7:].reshape(2, order)
    b = carray(weights_, (c, n))
    pi = carray(precision_, (c, n))
    inverses = np.empty((c, n, n))
    work = np.empty((c, n, n))
    p = np.empty((n, n))
    problem = (k, carray(prior_mean_, (c, n)), carray(y_, (n,)))
    space = (pi, np.empty((c, n)), inverses, p, work, b, carray(mean_, (c, n)), carray(cov_, (n, c, c)))
    threads = limit_blas_threads(n)
    evidence = np.nan
    status = NOT_FINITE
    sweeps = 0
    rung = 0
    if all_finite(k_, matrices * n * n) and all_finite(prior_mean_, c * n) and all_finite(sites_, sites.size):
        history = carray(history_, (max_iterations, 2))
        settings = (options[5] != 0.0, rule, np.full((n, c - 1), -1))
        evidence, status, sweeps, rung = ep_ladder(_sweep, settings, problem, sites, space, options, history)
    if wanted != 0 and status == CONVERGED:
        evidence_gradient(inverses, p, pi, b, work[0], carray(gradient_, (matrices, n, n)))
        copy_into(carray(gradient_mean_, (c, n)), b)
    restore_blas_threads(threads)
    carray(evidence_, (1,))[0] = evidence
    outcome = carray(outcome_, (3,))
    outcome[0] = status
    outcome[1] = sweeps
    outcome[2] = rung


qep = Entry(_qep)
"""EP by quadrature.

Its sites are diag Λ and ξ (2, n, c − 1); its options are those of `ep_ladder`, whether the rule is Gauss–Hermite's, and
the rule: its order, its nodes and its log weights.
"""
