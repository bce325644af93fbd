"""Variational Bayes for the multinomial probit, q(f) q(v) with utilities v (Girolami and Rogers 2006, section 4.3).

The augmented model: f_k ~ N(m_k, K_k), v_ik = f_ik + noise of variance 1, y_i the class of the largest utility. For
q(f) with means f̃ and covariances S_k, and any q(v), log p(y) is at least

    E_q[log p(y, v, f) − log q(v) − log q(f)]
        = E_q(v)[Σ_i log p(y_i | v_i) N(v_i | f̃_i, I) − log q(v)] − ½ Σ_k tr S_k − Σ_k KL(N(f̃_k, S_k) ‖ N(m_k, K_k)),

as E_q(f) log N(v | f, I) = log N(v | f̃, I) − ½ tr S. The best q(v) is N(f̃_i, I) truncated to the cone where v_y is
largest, and makes the first term Σ_i log p(y_i | f̃_i), the multinomial probit. The best S_k is
(I + K_k⁻¹)⁻¹ = K_k (K_k + I)⁻¹ whatever f̃ is, and then ½ tr S_k (I + K_k⁻¹) = ½ n cancels the n of the divergence:

    bound = Σ_i log p(y_i | f̃_i) − ½ Σ_k (f̃_k − m_k)ᵀ K_k⁻¹ (f̃_k − m_k) − ½ Σ_k log|I + K_k|.

So f̃ is the mode of the posterior of f, and the bound is concave in it. The mean of the truncated Gaussian is
ṽ_i = f̃_i + ∂ log p(y_i | f̃_i) / ∂f̃_i, hence the fixed-point iteration of the paper is, for f̃ = m + K b,

    f̃ ← m + K (K + I)⁻¹ (ṽ − m),   or   b ← b + (K + I)⁻¹ r,   r = ∂ log p / ∂f̃ − b,

the ascent that takes W = −∂² log p / ∂f̃² for its upper limit I. It never lowers the bound, but takes thousands of
steps where W is small, at large prior variances. Here every iteration is a Newton step instead, its linear system
solved with a limited number of products with K, then a fixed-point step of the quadratic model: it settles what K
does not see. The step is halved until the bound rises. What is factorised is K + I, once.

The residual is the larger of max |r|, and √(rᵀ (W + K⁻¹)⁻¹ r): how far f̃ is from the optimum in units of the posterior
as the curvature has it, √2 times the root of what the bound still lacks.

At the optimum d bound / dK_k = ½ (b_k b_kᵀ − (K_k + I)⁻¹) and d bound / dm_k = b_k.
"""

import math

import numpy as np
from numba import carray

from pymc_gpep.kernels.blas_threads import limit_blas_threads, restore_blas_threads
from pymc_gpep.kernels.compile import inlined_kernel, kernel
from pymc_gpep.kernels.entry import Entry
from pymc_gpep.kernels.independent import add_class_gradient, class_variance, factorise_class
from pymc_gpep.kernels.lapack import copy_into, multiply_classes
from pymc_gpep.kernels.multinomial_probit import log_probability_derivatives
from pymc_gpep.kernels.newton_direction import inner_product, newton_direction
from pymc_gpep.kernels.problem import add_to_all, read_problem, report
from pymc_gpep.kernels.status import CONVERGED, NOT_FINITE, NOT_POSITIVE_DEFINITE, OUT_OF_ITERATIONS

__all__ = ["variational_bayes"]

_REDUCTION = 0.1  # of the linear system's residual; near the optimum the root of the gradient, for fast convergence
_HALVINGS = 30
_SUFFICIENT = 1e-4  # part of the rise that the slope promises
_ROUNDING = 1e-12  # of the bound; below it the slope tells better than values whether a step went too far


@kernel
def _evaluate(y, f, b, prior_mean, r, w):
    """Σ log p(y | f) − ½ bᵀ(f − m); r = ∂ log p / ∂f − b into `r` (c, n), W into `w` (n, c, c)."""
    c, n = f.shape
    point = np.empty(c)
    gradient = np.empty(c)
    total = 0.0
    for i in range(n):
        for a in range(c):
            point[a] = f[a, i]
            total -= 0.5 * b[a, i] * (f[a, i] - prior_mean[a, i])
        total += log_probability_derivatives(point, y[i], gradient, w[i])
        for a in range(c):
            r[a, i] = gradient[a] - b[a, i]
            for e in range(c):
                w[i, a, e] = -w[i, a, e]
    return total


@inlined_kernel
def _ascend(problem, inverses, constant, tolerance, products, f, b, history):
    """Raise the bound from b (c, n) and f = m + K b, which are overwritten.

    `constant` is the part of the bound that does not depend on f. Returns bound, status and number of iterations.
    """
    k, prior_mean, y = problem
    c, n = f.shape
    w = np.empty((n, c, c))
    r, d, pull, left, smooth, old_f, old_b = np.empty((7, c, n))
    value = _evaluate(y, f, b, prior_mean, r, w)
    iteration = 0
    while iteration < history.shape[0]:
        largest = 0.0
        for a in range(c):
            for i in range(n):
                largest = max(largest, abs(r[a, i]))
        newton_direction(k, w, r, min(_REDUCTION, math.sqrt(largest)), products, d, pull, left)
        multiply_classes(inverses, left, smooth)
        multiply_classes(k, smooth, left)
        for a in range(c):
            for i in range(n):
                pull[a, i] += smooth[a, i]
                d[a, i] += left[a, i]
        slope = inner_product(r, d)
        residual = max(largest, math.sqrt(max(slope, 0.0)))
        history[iteration, 0] = value + constant
        history[iteration, 1] = residual
        iteration += 1
        if residual < tolerance:
            return value + constant, CONVERGED, iteration
        if not np.isfinite(value + residual):
            return np.nan, NOT_FINITE, iteration

        copy_into(old_f, f)
        copy_into(old_b, b)
        old_value = value
        length = 1.0
        for _ in range(_HALVINGS):
            for a in range(c):
                for i in range(n):
                    # By steps, which shrink: the rounding of K b would be felt where K is large.
                    f[a, i] = old_f[a, i] + length * d[a, i]
                    b[a, i] = old_b[a, i] + length * pull[a, i]
            value = _evaluate(y, f, b, prior_mean, r, w)
            rise = value - old_value
            level = abs(rise) < _ROUNDING * (1.0 + abs(value))
            if rise >= _SUFFICIENT * length * slope or (level and inner_product(r, d) > -0.5 * slope):
                break
            length *= 0.5
        else:
            copy_into(f, old_f)
            copy_into(b, old_b)
            _evaluate(y, f, b, prior_mean, r, w)
            multiply_classes(inverses, r, smooth)
            multiply_classes(k, smooth, d)
            for a in range(c):
                for i in range(n):
                    f[a, i] += d[a, i]
                    b[a, i] += smooth[a, i]
            value = _evaluate(y, f, b, prior_mean, r, w)
    return value + constant, OUT_OF_ITERATIONS, iteration


def _variational_bayes(
    matrices, c, n, k_, prior_mean_, y_, sites_, options_, wanted,
    evidence_, gradient_, gradient_mean_, weights_, mean_, cov_, precision_, history_, max_iterations, outcome_,
):  # fmt: skip
    k = carray(k_, (matrices, n, n))
    sites = carray(sites_, (c, n))
    options = carray(options_, (2,))
    b = carray(weights_, (c, n))
    mean = carray(mean_, (c, n))
    cov = carray(cov_, (n, c, c))
    pi = carray(precision_, (c, n))
    inverses = np.empty((matrices, n, n))
    variance = np.empty(n)
    pi[:] = 1.0
    threads = limit_blas_threads(n)
    evidence = np.nan
    status, problem, common = read_problem(matrices, c, n, k_, prior_mean_, y_, sites_, c * n)
    prior_mean = problem[1]
    iterations = 0
    if status == CONVERGED:
        ok = True
        log_det = 0.0
        for a in range(matrices):
            if ok:
                ok, own = factorise_class(k[a], pi[a], inverses[a])
                log_det += own * (c // matrices)
        if ok:
            copy_into(b, sites)
            multiply_classes(k, b, mean)
            for a in range(c):
                for i in range(n):
                    mean[a, i] += prior_mean[a, i]
            evidence, status, iterations = _ascend(
                problem, inverses, -0.5 * log_det, options[0], int(options[1]), mean, b,
                carray(history_, (max_iterations, 2)),
            )  # fmt: skip
            copy_into(sites, b)
            add_to_all(mean, common)
            cov[:] = 0.0
            for a in range(c):
                which = a if matrices > 1 else 0
                if which == a:
                    class_variance(k[which], pi[a], inverses[which], variance)
                for i in range(n):
                    cov[i, a, a] = variance[i]
        else:
            status = NOT_POSITIVE_DEFINITE
    if wanted != 0 and status == CONVERGED:
        gradient = carray(gradient_, (matrices, n, n))
        gradient[:] = 0.0
        for a in range(c):
            which = a if matrices > 1 else 0
            add_class_gradient(pi[a], inverses[which], b[a], gradient[which])
        copy_into(carray(gradient_mean_, (c, n)), b)
    restore_blas_threads(threads)
    report(evidence_, outcome_, evidence, status, iterations, 0)


variational_bayes = Entry(_variational_bayes)
"""Variational Bayes.

Its sites are b (c, n); its options are tolerance and the limit on products with K in one iteration.
"""
