"""Newton's method for the mode of p(f | y) under a multinomial probit, in the weights b = K⁻¹ (f − m).

A `problem` is (prior covariance (1 or c, n, n), prior mean (c, n), labels (n,)); a `space` holds what is computed: f,
step, its image K step (c, n), W (n, c, c), its roots (n, c, c − 1) and the Cholesky factor of B (N, N).
"""

import numpy as np

from pymc_gpep.kernels.block_sites import block_roots, factorise_blocks, project
from pymc_gpep.kernels.compile import inlined_kernel, kernel
from pymc_gpep.kernels.lapack import copy_into, multiply_classes
from pymc_gpep.kernels.multinomial_probit import log_probability_and_gradient, log_probability_hessian
from pymc_gpep.kernels.rounding import rounding
from pymc_gpep.kernels.status import CONVERGED, NOT_FINITE, NOT_POSITIVE_DEFINITE, OUT_OF_ITERATIONS

__all__ = ["newton_probit"]

_SUFFICIENT = 1e-4  # part of the increase that the slope at the start promises
_MAX_HALVINGS = 50
_CLOSE = 0.1  # closer to the mode, rounding decides comparisons, and Newton's method needs none


@kernel
def _log_likelihood(f, y, gradient):
    """Σ log p(y_i | f_i), and its derivative into `gradient` (c, n)."""
    c, n = f.shape
    of_point = np.empty(c)
    own = np.empty(c)
    total = 0.0
    for i in range(n):
        for a in range(c):
            own[a] = f[a, i]
        total += log_probability_and_gradient(own, y[i], of_point)
        for a in range(c):
            gradient[a, i] = of_point[a]
    return total


@inlined_kernel
def _curvature(f, y, w):
    """−∇∇ log p(y_i | f_i) into `w` (n, c, c)."""
    c, n = f.shape
    own = np.empty(c)
    for i in range(n):
        for a in range(c):
            own[a] = f[a, i]
        log_probability_hessian(own, y[i], w[i])
        for a in range(c):
            for e in range(c):
                w[i, a, e] = -w[i, a, e]


@kernel
def _log_posterior(problem, b, f, image, gradient):
    """log p(y | f) − ½ bᵀ K b at f = m + K b, which go to `f`, `image`; `gradient` receives that of the likelihood."""
    k, prior_mean, y = problem
    c, n = b.shape
    multiply_classes(k, b, image)
    quadratic = 0.0
    for a in range(c):
        for i in range(n):
            quadratic += b[a, i] * image[a, i]
            f[a, i] = prior_mean[a, i] + image[a, i]
    return _log_likelihood(f, y, gradient) - 0.5 * quadratic


@inlined_kernel
def newton_probit(problem, b, space, tolerance, history):
    """Iterate from the weights `b` (c, n), which are overwritten, until the residual is below `tolerance`.

    The residual is the largest entry of the gradient of the log posterior, r = ∇ log p(y | f) − b, and of Newton's
    step in f; no less is asked of it than rounding allows. Away from the mode steps are halved until the log posterior
    rises. `history` (limit, 2) receives log q(y) and residual. Returns log q(y), status and the number of
    factorisations; `space` is left belonging to `b`.
    """
    k, _, y = problem
    f, step, image, w, roots, lower = space
    c, n = b.shape
    gradient, trial, residual = np.empty((3, c, n))
    trial[:] = 0.0
    value = _log_posterior(problem, trial, f, image, gradient)
    for i in range(n):
        common = 0.0
        for a in range(c):
            common += b[a, i] / c
        for a in range(c):
            b[a, i] -= common
    if not _log_posterior(problem, b, f, image, gradient) >= value:
        b[:] = 0.0
    evidence = np.nan
    for iteration in range(history.shape[0]):
        value = _log_posterior(problem, b, f, image, gradient)
        _curvature(f, y, w)
        block_roots(w, roots)
        ok, log_det = factorise_blocks(k, roots, lower)
        if not ok:
            return np.nan, NOT_POSITIVE_DEFINITE, iteration
        evidence = value - 0.5 * log_det
        for a in range(c):
            for i in range(n):
                residual[a, i] = gradient[a, i] - b[a, i]
        multiply_classes(k, residual, image)
        project(k, roots, lower, residual, image, step)
        multiply_classes(k, step, image)
        largest = 0.0
        move = 0.0
        slope = 0.0
        for a in range(c):
            for i in range(n):
                largest = max(largest, abs(residual[a, i]))
                move = max(move, abs(image[a, i]))
                slope += residual[a, i] * image[a, i]
        history[iteration, 0] = evidence
        history[iteration, 1] = max(largest, move)
        if not np.isfinite(evidence + largest + move):
            return np.nan, NOT_FINITE, iteration + 1
        if max(largest, move) < max(tolerance, rounding(k, b)):
            return evidence, CONVERGED, iteration + 1
        if iteration + 1 == history.shape[0]:
            break
        t = 1.0
        for halving in range(_MAX_HALVINGS):
            for a in range(c):
                for i in range(n):
                    trial[a, i] = b[a, i] + t * step[a, i]
            if move < _CLOSE or _log_posterior(problem, trial, f, image, gradient) >= value + _SUFFICIENT * t * slope:
                break
            t *= 0.5
        copy_into(b, trial)
    return evidence, OUT_OF_ITERATIONS, history.shape[0]
