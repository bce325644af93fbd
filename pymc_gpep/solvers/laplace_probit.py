"""The Laplace approximation of a multinomial probit, whole, by dense algebra on all cn latent values.

The mode is found by Newton's method in the weights b = K⁻¹ (f − m).
"""

import numpy as np

from pymc_gpep.kernels.gaussians.block_sites import (
    block_gradient,
    block_marginals,
    block_roots,
    factorise_blocks,
    project,
    smooth_blocks,
)
from pymc_gpep.kernels.gaussians.implicit_gradient import add_implicit_gradient
from pymc_gpep.kernels.likelihoods.multinomial_probit import log_probability_third
from pymc_gpep.kernels.likelihoods.probit_points import curvature, log_likelihood
from pymc_gpep.kernels.linalg.lapack import multiply_classes
from pymc_gpep.kernels.linalg.rounding import rounding
from pymc_gpep.kernels.status import (
    CONVERGED,
    NOT_FINITE,
    NOT_POSITIVE_DEFINITE,
    OUT_OF_ITERATIONS,
    TOO_LARGE,
)
from pymc_gpep.solvers.history import History
from pymc_gpep.solvers.problem import Array, Found, Problem

__all__ = ["laplace_probit"]

_SUFFICIENT = 1e-4  # part of the increase that the slope at the start promises
_MAX_HALVINGS = 50
_CLOSE = 0.1  # closer to the mode, rounding decides comparisons, and Newton's method needs none


def laplace_probit(problem: Problem, start: Array, history: History, *, tolerance: float, max_size: int) -> Found:
    """Laplace approximation of a multinomial probit.

    `start`, which is overwritten, holds the weights b (c, n); `max_size` is the largest number cn of latent values.
    """
    k, _, y, _ = problem
    c, n = problem.mean.shape
    b = start.reshape(c, n)
    f = np.full((c, n), np.nan)
    w, cov = np.full((2, n, c, c), np.nan)
    size = n * (c - 1) if c * n <= max_size else 0
    roots, lower, smooth = np.empty((n, c, c - 1)), np.empty((size, size)), np.empty((c, n, size))

    def derivatives() -> tuple[Array, Array]:
        slope, image, of_mean = np.empty((3, c, n))
        third = np.empty(c)
        for i in range(n):
            log_probability_third(f[:, i].copy(), y[i], cov[i], third)
            slope[:, i] = 0.5 * third
        multiply_classes(k, slope, image)
        project(k, roots, lower, slope, image, of_mean)
        gradient = np.empty_like(k)
        block_gradient(roots, lower, b, smooth[0], gradient)
        add_implicit_gradient(b, of_mean, gradient)
        return gradient, of_mean + b

    if c * n > max_size:
        return Found(np.nan, TOO_LARGE, np.full_like(b, np.nan), f, cov, w, derivatives)
    evidence, status = _newton(problem, b, f, w, roots, lower, history, tolerance)
    found = status in (CONVERGED, OUT_OF_ITERATIONS)
    if found:
        smooth_blocks(k, roots, lower, smooth)
        block_marginals(k, smooth, cov)
    return Found(evidence, status, b if found else np.full_like(b, np.nan), f, cov, w, derivatives)


def _newton(
    problem: Problem, b: Array, f: Array, w: Array, roots: Array, lower: Array, history: History, tolerance: float
) -> tuple[float, int]:
    """Iterate from the weights `b` (c, n), which are overwritten, until the residual is below `tolerance`.

    The residual is the largest entry of the gradient of the log posterior, r = ∇ log p(y | f) − b, and of Newton's
    step in f; no less is asked of it than rounding allows. Away from the mode steps are halved until the log posterior
    rises. Returns log q(y) and status; f, the curvature `w`, its roots and the factor of B are left belonging to `b`.
    """
    k, prior_mean, y, _ = problem
    step, image, gradient = np.empty((3, *b.shape))

    def log_posterior(b: Array) -> float:
        """log p(y | f) − ½ bᵀ K b at f = m + K b."""
        multiply_classes(k, b, image)
        np.add(prior_mean, image, out=f)
        return log_likelihood(f, y, gradient) - 0.5 * float(np.vdot(b, image))

    cold = log_posterior(np.zeros_like(b))
    b -= b.mean(0)
    if not log_posterior(b) >= cold:
        b[:] = 0.0
    evidence = np.nan
    while not history.is_full():
        value = log_posterior(b)
        curvature(f, y, w)
        block_roots(w, roots)
        ok, log_det = factorise_blocks(k, roots, lower)
        if not ok:
            return np.nan, NOT_POSITIVE_DEFINITE
        evidence = value - 0.5 * log_det
        slope = gradient - b
        multiply_classes(k, slope, image)
        project(k, roots, lower, slope, image, step)
        multiply_classes(k, step, image)
        move = float(np.abs(image).max())
        residual = max(float(np.abs(slope).max()), move)
        rise = float(np.vdot(slope, image))
        history.add(evidence, residual)
        if not np.isfinite(evidence + residual):
            return np.nan, NOT_FINITE
        if residual < max(tolerance, rounding(k, b)):
            return evidence, CONVERGED
        if history.is_full():
            break
        t = 1.0
        for _ in range(_MAX_HALVINGS):
            if move < _CLOSE or log_posterior(b + t * step) >= value + _SUFFICIENT * t * rise:
                break
            t *= 0.5
        b += t * step
    return evidence, OUT_OF_ITERATIONS
