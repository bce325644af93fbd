"""The Laplace approximation of a multinomial probit, whole, by dense algebra on all cn latent values."""

import numpy as np
from numba import carray

from pymc_gpep.kernels.blas_threads import limit_blas_threads, restore_blas_threads
from pymc_gpep.kernels.block_sites import block_gradient, block_marginals, project, smooth_blocks
from pymc_gpep.kernels.entry import Entry
from pymc_gpep.kernels.implicit_gradient import add_implicit_gradient
from pymc_gpep.kernels.lapack import copy_into, multiply_classes
from pymc_gpep.kernels.multinomial_probit import log_probability_third
from pymc_gpep.kernels.newton_probit import newton_probit
from pymc_gpep.kernels.problem import add_to_all, read_problem, report
from pymc_gpep.kernels.status import CONVERGED, OUT_OF_ITERATIONS, TOO_LARGE

__all__ = ["laplace_probit"]


def _laplace_probit(
    matrices, c, n, k_, prior_mean_, y_, sites_, options_, wanted,
    evidence_, gradient_, gradient_mean_, weights_, mean_, cov_, precision_, history_, max_iterations, outcome_,
):  # fmt: skip
    k = carray(k_, (matrices, n, n))
    b = carray(sites_, (c, n))
    mean = carray(mean_, (c, n))
    cov = carray(cov_, (n, c, c))
    options = carray(options_, (2,))
    evidence = np.nan
    status, problem, common = read_problem(matrices, c, n, k_, prior_mean_, y_, sites_, c * n)
    if c * n > options[1]:
        status = TOO_LARGE
    iterations = 0
    if status == CONVERGED:
        threads = limit_blas_threads(n * (c - 1))
        size = n * (c - 1)
        step, image = np.empty((2, c, n))
        roots = np.empty((n, c, c - 1))
        lower = np.empty((size, size))
        space = (mean, step, image, carray(precision_, (n, c, c)), roots, lower)
        history = carray(history_, (max_iterations, 2))
        evidence, status, iterations = newton_probit(problem, b, space, options[0], history)
        if status in (CONVERGED, OUT_OF_ITERATIONS):
            copy_into(carray(weights_, (c, n)), b)
            smooth = np.empty((c, n, size))
            smooth_blocks(k, roots, lower, smooth)
            block_marginals(k, smooth, cov)
            if wanted != 0 and status == CONVERGED:
                gradient = carray(gradient_, (matrices, n, n))
                gradient_mean = carray(gradient_mean_, (c, n))
                f = np.empty(c)
                third = np.empty(c)
                for i in range(n):
                    for a in range(c):
                        f[a] = mean[a, i]
                    log_probability_third(f, problem[2][i], cov[i], third)
                    for a in range(c):
                        step[a, i] = 0.5 * third[a]
                multiply_classes(k, step, image)
                project(k, roots, lower, step, image, gradient_mean)
                block_gradient(roots, lower, b, smooth[0], gradient)
                add_implicit_gradient(b, gradient_mean, gradient)
                for a in range(c):
                    for i in range(n):
                        gradient_mean[a, i] += b[a, i]
        add_to_all(mean, common)
        restore_blas_threads(threads)
    report(evidence_, outcome_, evidence, status, iterations, 0)


laplace_probit = Entry(_laplace_probit)
"""Laplace approximation of a multinomial probit.

Its sites are the weights b (c, n); its options are the tolerance and the largest number cn of latent values.
"""
