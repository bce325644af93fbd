"""EP for the multinomial probit with nothing left out but quadrature's error (nested EP paper, section 3.3).

The sites are exp(ξᵀg − gᵀΛg/2) with a full Λ (equations 19 to 21): the posterior has all the tilted means and
covariances of g, and so of f, and the evidence is stationary in the sites. The price is dense algebra on n(c − 1)
numbers.
"""

import math

import numpy as np
from numba import carray

from pymc_gpep.kernels.blas_threads import limit_blas_threads, restore_blas_threads
from pymc_gpep.kernels.block_sites import (
    block_gradient,
    block_marginals,
    block_roots,
    factorise_blocks,
    project,
    smooth_blocks,
)
from pymc_gpep.kernels.compile import inlined_kernel, kernel
from pymc_gpep.kernels.entry import Entry
from pymc_gpep.kernels.ep_ladder import ep_ladder
from pymc_gpep.kernels.full_sites import (
    cavity,
    difference_sites,
    packed_size,
    shrink_to_semidefinite,
    write_precision,
)
from pymc_gpep.kernels.lapack import copy_into, multiply_classes
from pymc_gpep.kernels.problem import add_to_all, read_problem, report
from pymc_gpep.kernels.status import CONVERGED, TOO_LARGE
from pymc_gpep.kernels.tilted_site import BELOW_ONE, tilted_site

__all__ = ["full_qep"]


@inlined_kernel
def _posterior(problem, sites, space):
    """Compute what `space` holds from the sites. Returns success and log ∫ p(f) ∏ sites."""
    k, prior_mean, y = problem
    pi, nu, w, roots, lower, smooth, location, image, b, mean, cov = space
    n, c, _ = w.shape
    difference_sites(y, sites, pi, nu, w, location)
    block_roots(w, roots)
    ok, log_det = factorise_blocks(k, roots, lower)
    if not ok:
        return False, np.nan
    # Everything is relative to the prior mean: ν becomes ν − W m, and the sites have a value at m.
    constant = -0.5 * log_det
    for i in range(n):
        for a in range(c):
            pull = 0.0
            for e in range(c):
                pull += w[i, a, e] * prior_mean[e, i]
            constant += prior_mean[a, i] * (location[a, i] - 0.5 * pull)
            mean[a, i] = location[a, i] - pull
    multiply_classes(k, mean, image)
    project(k, roots, lower, mean, image, b)
    multiply_classes(k, b, image)
    for a in range(c):
        for i in range(n):
            constant += 0.5 * mean[a, i] * image[a, i]
            mean[a, i] = prior_mean[a, i] + image[a, i]
    smooth_blocks(k, roots, lower, smooth)
    block_marginals(k, smooth, cov)
    return True, constant


@kernel
def _sweep(settings, problem, sites, space, target, scale):
    hermite, rule, orders = settings
    ok, evidence = _posterior(problem, sites, space)
    if not ok:
        return False, np.nan, np.nan
    pi, nu, mean, cov = space[0], space[1], space[9], space[10]
    y = problem[2]
    n, d = nu.shape
    m = np.empty(d)
    s = np.empty((d, d))
    v = np.empty(d)
    precision = np.empty((d, d))
    location = np.empty(d)
    residual = 0.0
    for i in range(n):
        evidence -= cavity(mean[:, i], cov[i], y[i], pi[i], nu[i], m, s)
        evidence += tilted_site(m, s, hermite, rule, orders[i], precision, location, v)
        for j in range(d):
            precision[j, j] = min(max(precision[j, j], 0.0), BELOW_ONE)
        shrink_to_semidefinite(precision, s)
        write_precision(precision, target, i)
        entry = d
        for j in range(d):
            target[1, i, j] = location[j]
            for k in range(d):
                target[1, i, j] += precision[j, k] * m[k]
            # For the second half accelerated EP wants squares of the units: those of Λ_jk are 1 / (g_j g_k).
            scale[i, j] = v[j]
            for k in range(j):
                scale[i, entry] = v[j] * v[k]
                entry += 1
        for e in range(entry):
            residual = max(residual, abs(target[1, i, e] - sites[1, i, e]) * math.sqrt(scale[i, e]))
            if e < d:
                residual = max(residual, abs(target[0, i, e] - sites[0, i, e]) * scale[i, e])
            else:
                target[0, i, e] = 0.0
    return True, evidence, residual


def _full_qep(
    matrices, c, n, k_, prior_mean_, y_, sites_, options_, wanted,
    evidence_, gradient_, gradient_mean_, weights_, mean_, cov_, precision_, history_, max_iterations, outcome_,
):  # fmt: skip
    order = int(carray(options_, (8,))[7])
    options = carray(options_, (8 + 2 * order,))
    sites = carray(sites_, (2, n, packed_size(c)))
    evidence = np.nan
    status, problem, common = read_problem(matrices, c, n, k_, prior_mean_, y_, sites_, sites.size)
    if c * n > options[5]:
        status = TOO_LARGE
    sweeps = 0
    rung = 0
    if status == CONVERGED:
        d = c - 1
        threads = limit_blas_threads(n * d)
        b = carray(weights_, (c, n))
        roots = np.empty((n, c, d))
        lower = np.empty((n * d, n * d))
        smooth = np.empty((c, n, n * d))
        location, image = np.empty((2, c, n))
        space = (
            np.empty((n, d, d)), np.empty((n, d)), carray(precision_, (n, c, c)), roots, lower, smooth, location, image,
            b, carray(mean_, (c, n)), carray(cov_, (n, c, c)),
        )  # fmt: skip
        settings = (options[6] != 0.0, options[8:].reshape(2, order), np.full((n, d), -1))
        history = carray(history_, (max_iterations, 2))
        evidence, status, sweeps, rung = ep_ladder(_sweep, settings, problem, sites, space, options, history)
        add_to_all(space[9], common)
        if wanted != 0 and status == CONVERGED:
            block_gradient(roots, lower, b, smooth[0], carray(gradient_, (matrices, n, n)))
            copy_into(carray(gradient_mean_, (c, n)), b)
        restore_blas_threads(threads)
    report(evidence_, outcome_, evidence, status, sweeps, rung)


full_qep = Entry(_full_qep)
"""EP by quadrature with full sites.

Its sites are as in `full_sites`; its options are those of `ep_ladder`, the largest number cn of latent values, whether
the rule is Gauss–Hermite's, and the rule: its order, its nodes and its log weights.
"""
