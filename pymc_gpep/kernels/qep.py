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
from pymc_gpep.kernels.entry import Entry
from pymc_gpep.kernels.ep_ladder import ep_ladder
from pymc_gpep.kernels.inner_ep import change_site, difference_moments
from pymc_gpep.kernels.problem import add_to_all, read_problem, report
from pymc_gpep.kernels.site_posterior import posterior_space, site_posterior, write_derivatives
from pymc_gpep.kernels.status import CONVERGED
from pymc_gpep.kernels.tilted_site import BELOW_ONE, tilted_site

__all__ = ["qep"]


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
    tilted_variance = np.empty(d)
    residual = 0.0
    for i in range(n):
        alpha, xi = sites[0, i], sites[1, i]
        difference_moments(mean[:, i], cov[i], y[i], alpha, xi, m, s, work)
        for j in range(d):
            scale[i, j] = s[j, j]
        new_alpha, new_xi = target[0, i], target[1, i]
        for j in range(d):
            evidence += change_site(m, s, j, -alpha[j], -xi[j], work)
        evidence += tilted_site(m, s, hermite, rule, orders[i], precision, new_xi, tilted_variance)
        for j in range(d):
            v = scale[i, j]
            new_alpha[j] = min(max(precision[j, j], 0.0), BELOW_ONE)
            new_xi[j] += new_alpha[j] * m[j]
            residual = max(residual, abs(new_alpha[j] - alpha[j]) * v, abs(new_xi[j] - xi[j]) * math.sqrt(v))
    return True, evidence, residual


def _qep(
    matrices, c, n, k_, prior_mean_, y_, sites_, options_, wanted,
    evidence_, gradient_, gradient_mean_, weights_, mean_, cov_, precision_, history_, max_iterations, outcome_,
):  # fmt: skip
    sites = carray(sites_, (2, n, c - 1))
    order = int(carray(options_, (7,))[6])
    options = carray(options_, (7 + 2 * order,))
    rule = options[7:].reshape(2, order)
    status, problem, common = read_problem(matrices, c, n, k_, prior_mean_, y_, sites_, sites.size)
    space = posterior_space(c, n, weights_, mean_, cov_, precision_)
    threads = limit_blas_threads(n)
    evidence = np.nan
    sweeps = 0
    rung = 0
    if status == CONVERGED:
        history = carray(history_, (max_iterations, 2))
        settings = (options[5] != 0.0, rule, np.full((n, c - 1), -1))
        evidence, status, sweeps, rung = ep_ladder(_sweep, settings, problem, sites, space, options, history)
        add_to_all(space[6], common)
    if wanted != 0 and status == CONVERGED:
        write_derivatives(matrices, space, gradient_, gradient_mean_)
    restore_blas_threads(threads)
    report(evidence_, outcome_, evidence, status, sweeps, rung)


qep = Entry(_qep)
"""EP by quadrature.

Its sites are diag Λ and ξ (2, n, c − 1); its options are those of `ep_ladder`, whether the rule is Gauss–Hermite's, and
the rule: its order, its nodes and its log weights.
"""
