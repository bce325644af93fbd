"""Newton's method for the mode of p(f | y) under a softmax, in the weights b = K⁻¹ (f − m): K is never inverted.

The gradient of the log posterior with respect to f is the residual r = ∇ log p(y | f) − b, and Newton's step in b is
(I + W K)⁻¹ r = (I − M K) r: what `coupled` gives for sites at r. Since it comes from the residual, each step also
corrects the rounding errors of those before it, and the accuracy reached is that of f = m + K b.

A `problem` is (prior covariance (1 or c, n, n), prior mean (c, n), labels (n,)); a `space` holds what is computed: f,
∇ log p, π, step, its image K step (c, n), and the factors A_k⁻¹ (c, n, n) and P (n, n).
"""

import numpy as np

from pymc_gpep.kernels.compile import inlined_kernel, kernel
from pymc_gpep.kernels.concave_line import step_length
from pymc_gpep.kernels.coupled import factorise, latent_weights
from pymc_gpep.kernels.lapack import copy_into, multiply_classes
from pymc_gpep.kernels.rounding import rounding
from pymc_gpep.kernels.softmax import softmax
from pymc_gpep.kernels.status import CONVERGED, NOT_FINITE, NOT_POSITIVE_DEFINITE, OUT_OF_ITERATIONS

__all__ = ["newton"]

_CLOSE = 0.5  # differences between classes that change less than this cannot overshoot: W changes by e^0.5 < 2 at most


@kernel
def _widest(change):
    """The largest change of a difference between two classes."""
    c, n = change.shape
    widest = 0.0
    for i in range(n):
        low, high = change[0, i], change[0, i]
        for a in range(1, c):
            low = min(low, change[a, i])
            high = max(high, change[a, i])
        widest = max(widest, high - low)
    return widest


@kernel
def _begin(problem, b, space):
    """Take from `b` what is common to the classes, which the mode does not have; put 0 there if that is better."""
    k, prior_mean, y = problem
    f, gradient, pi, _, image, _, _ = space
    c, n = b.shape
    for i in range(n):
        common = 0.0
        for a in range(c):
            common += b[a, i] / c
        for a in range(c):
            b[a, i] -= common
    multiply_classes(k, b, image)
    copy_into(f, prior_mean)
    cold = softmax(f, y, pi, gradient)
    quadratic = 0.0
    for a in range(c):
        for i in range(n):
            f[a, i] += image[a, i]
            quadratic += b[a, i] * image[a, i]
    if not softmax(f, y, pi, gradient) - 0.5 * quadratic >= cold:
        b[:] = 0.0


@inlined_kernel
def newton(problem, b, space, tolerance, history):
    """Iterate from the weights `b` (c, n), which are overwritten, until the residual is below `tolerance`.

    The residual is the largest entry of the gradient r and of Newton's step in f; no less is asked of it than rounding
    allows. `history` (limit, 2) receives log q(y) and residual. Returns log q(y), status and the number of
    factorisations; `space` is left belonging to `b`.
    """
    k, prior_mean, y = problem
    f, gradient, pi, step, image, inverses, p = space
    c, n = b.shape
    _begin(problem, b, space)
    evidence = np.nan
    for iteration in range(history.shape[0]):
        multiply_classes(k, b, image)
        quadratic = 0.0
        for a in range(c):
            for i in range(n):
                quadratic += b[a, i] * image[a, i]
                f[a, i] = prior_mean[a, i] + image[a, i]
        evidence = softmax(f, y, pi, gradient) - 0.5 * quadratic
        ok, log_det = factorise(k, pi, inverses, p)
        if not ok:
            return np.nan, NOT_POSITIVE_DEFINITE, iteration
        evidence -= 0.5 * log_det
        largest = 0.0
        for a in range(c):
            for i in range(n):
                gradient[a, i] -= b[a, i]
                largest = max(largest, abs(gradient[a, i]))
        latent_weights(inverses, p, pi, gradient, step)
        multiply_classes(k, step, image)
        shrinkage = 0.0
        curvature = 0.0
        for a in range(c):
            for i in range(n):
                largest = max(largest, abs(image[a, i]))
                shrinkage += b[a, i] * image[a, i]
                curvature += step[a, i] * image[a, i]
        history[iteration, 0] = evidence
        history[iteration, 1] = largest
        if not np.isfinite(evidence + largest):
            return np.nan, NOT_FINITE, iteration + 1
        if largest < max(tolerance, rounding(k, b)):
            return evidence, CONVERGED, iteration + 1
        if iteration + 1 < history.shape[0]:
            t = 1.0 if _widest(image) < _CLOSE else step_length(f, y, image, shrinkage, curvature)
            for a in range(c):
                for i in range(n):
                    b[a, i] += t * step[a, i]
    return evidence, OUT_OF_ITERATIONS, history.shape[0]
