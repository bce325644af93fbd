"""The Laplace approximation of a softmax, whole: the mode, and the derivatives of the evidence with all it moves."""

import numpy as np
from numba import carray

from pymc_gpep.kernels.blas_threads import limit_blas_threads, restore_blas_threads
from pymc_gpep.kernels.coupled import evidence_gradient, latent_weights, marginal_moments
from pymc_gpep.kernels.entry import Entry
from pymc_gpep.kernels.implicit_gradient import add_implicit_gradient
from pymc_gpep.kernels.lapack import copy_into
from pymc_gpep.kernels.newton import newton
from pymc_gpep.kernels.problem import add_to_all, read_problem, report
from pymc_gpep.kernels.softmax import curvature_slope
from pymc_gpep.kernels.status import CONVERGED, OUT_OF_ITERATIONS

__all__ = ["laplace_softmax"]


def _laplace_softmax(
    matrices, c, n, k_, prior_mean_, y_, sites_, options_, wanted,
    evidence_, gradient_, gradient_mean_, weights_, mean_, cov_, precision_, history_, max_iterations, outcome_,
):  # fmt: skip
    k = carray(k_, (matrices, n, n))
    b = carray(sites_, (c, n))
    pi = carray(precision_, (c, n))
    mean = carray(mean_, (c, n))
    cov = carray(cov_, (n, c, c))
    gradient_mean = carray(gradient_mean_, (c, n))
    weights = carray(weights_, (c, n))
    status, problem, common = read_problem(matrices, c, n, k_, prior_mean_, y_, sites_, c * n)
    evidence = np.nan
    iterations = 0
    if status == CONVERGED:
        threads = limit_blas_threads(n)
        step, image = np.empty((2, c, n))
        inverses = np.empty((c, n, n))
        p = np.empty((n, n))
        space = (mean, np.empty((c, n)), pi, step, image, inverses, p)
        history = carray(history_, (max_iterations, 2))
        evidence, status, iterations = newton(problem, b, space, carray(options_, (1,))[0], history)
        if status in (CONVERGED, OUT_OF_ITERATIONS):
            copy_into(weights, b)
            work = np.empty((c, n, n))
            marginal_moments(k, inverses, p, pi, b, work, image, cov)
            if wanted != 0 and status == CONVERGED:
                gradient = carray(gradient_, (matrices, n, n))
                curvature_slope(pi, cov, step)
                latent_weights(inverses, p, pi, step, gradient_mean)
                evidence_gradient(inverses, p, pi, b, work[0], gradient)
                add_implicit_gradient(b, gradient_mean, gradient)
                for a in range(c):
                    for i in range(n):
                        gradient_mean[a, i] += b[a, i]
        add_to_all(mean, common)
        restore_blas_threads(threads)
    report(evidence_, outcome_, evidence, status, iterations, 0)


laplace_softmax = Entry(_laplace_softmax)
"""Laplace approximation of a softmax.

Its sites are the weights b (c, n); its option is the tolerance.
"""
