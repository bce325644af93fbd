"""EP whose posterior keeps the classes independent, for any way of taking the tilted moments.

The sites are c scalar ones for each point, with precisions π and locations ν that match the marginals of the tilted
distribution: class k's precision is 1/v̂_k − 1/v_k, v_k the variance of its cavity. The likelihood is log-concave, which
makes that non-negative (Prékopa), and each marginal likelihood of an f_k is smoothed by noise of variance 1, which
keeps it below 1.
"""

import math

import numpy as np
from numba import carray

from pymc_gpep.kernels.blas_threads import limit_blas_threads, restore_blas_threads
from pymc_gpep.kernels.compile import inlined_kernel
from pymc_gpep.kernels.ep_ladder import ep_ladder
from pymc_gpep.kernels.independent import add_class_gradient
from pymc_gpep.kernels.inner_ep import gaussian_log_normaliser
from pymc_gpep.kernels.lapack import copy_into
from pymc_gpep.kernels.levelled_posterior import levelled_posterior
from pymc_gpep.kernels.problem import add_to_all, read_problem, report
from pymc_gpep.kernels.status import CONVERGED

__all__ = ["independent_ep", "independent_sweep"]


@inlined_kernel
def independent_sweep(tilted, settings, problem, sites, space, target, scale):
    """One sweep as `accelerated_ep` wants it.

    `tilted(settings, mean, variance, y, old, new, scale)` takes the moments of one point with the cavity's means and
    variances (c,): from this point's sites `old` (2, d), of which the first c are π and ν and the others its own, it
    writes `new`, and the scale of its own ones. It returns log Ẑ and the largest change of its own.
    """
    ok, evidence = levelled_posterior(problem, sites, space)
    if not ok:
        return False, np.nan, np.nan
    pi, nu, _, mean, variance, _, _ = space
    c, n = pi.shape
    cavity = np.empty((2, c))
    residual = 0.0
    for i in range(n):
        for a in range(c):
            v = variance[a, i]
            keep = 1.0 - pi[a, i] * v
            if v < 0.0 or keep <= 0.0:  # no covariance leaves a marginal like that
                return False, np.nan, np.nan
            cavity[0, a] = (mean[a, i] - nu[a, i] * v) / keep
            cavity[1, a] = v / keep
            scale[i, a] = v
            evidence -= gaussian_log_normaliser(cavity[0, a], cavity[1, a], nu[a, i], pi[a, i])
        log_z, change = tilted(settings, cavity[0], cavity[1], problem[2][i], sites[:, i], target[:, i], scale[i])
        evidence += log_z
        residual = max(residual, change)
        for a in range(c):
            v = variance[a, i]
            residual = max(residual, abs(target[0, i, a] - pi[a, i]) * v)
            residual = max(residual, abs(target[1, i, a] - nu[a, i]) * math.sqrt(v))
    return True, evidence, residual


@inlined_kernel
def independent_ep(
    sweep, settings, width, options, matrices, c, n, k_, prior_mean_, y_, sites_, wanted,
    evidence_, gradient_, gradient_mean_, weights_, mean_, cov_, precision_, history_, max_iterations, outcome_,
):  # fmt: skip
    """Body of an entry: `width` sites at each point; the options are those of `ep_ladder` first."""
    sites = carray(sites_, (2, n, width))
    b = carray(weights_, (c, n))
    pi = carray(precision_, (c, n))
    variance = np.empty((c, n))
    inverses = np.empty((c, n, n))
    status, problem, common = read_problem(matrices, c, n, k_, prior_mean_, y_, sites_, sites.size)
    space = (pi, np.empty((c, n)), b, carray(mean_, (c, n)), variance, inverses, np.empty((n, n)))
    threads = limit_blas_threads(n)
    evidence = np.nan
    sweeps = 0
    rung = 0
    if status == CONVERGED:
        history = carray(history_, (max_iterations, 2))
        evidence, status, sweeps, rung = ep_ladder(sweep, settings, problem, sites, space, options, history)
        add_to_all(space[3], common)
        cov = carray(cov_, (n, c, c))
        cov[:] = 0.0
        for i in range(n):
            for a in range(c):
                cov[i, a, a] = variance[a, i]
    if wanted != 0 and status == CONVERGED:
        gradient = carray(gradient_, (matrices, n, n))
        gradient[:] = 0.0
        for a in range(c):
            add_class_gradient(pi[a], inverses[a], b[a], gradient[a if matrices > 1 else 0])
        copy_into(carray(gradient_mean_, (c, n)), b)
    restore_blas_threads(threads)
    report(evidence_, outcome_, evidence, status, sweeps, rung)
