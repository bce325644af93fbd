"""Newton's method for the mode of p(f | y) under a softmax, in the weights b = K⁻¹ (f − m): K is never inverted.

The gradient of the log posterior with respect to f is the residual r = ∇ log p(y | f) − b, and Newton's step in b is
(I + W K)⁻¹ r = (I − M K) r: what `coupled` gives for sites at r. Since it comes from the residual, each step also
corrects the rounding errors of those before it, and the accuracy reached is that of f = m + K b.
"""

from typing import NamedTuple

import numpy as np

from pymc_gpep.kernels.gaussians.coupled import latent_weights
from pymc_gpep.kernels.likelihoods.softmax import softmax
from pymc_gpep.kernels.linalg.lapack import multiply_classes
from pymc_gpep.kernels.linalg.rounding import rounding
from pymc_gpep.kernels.schemes.concave_line import step_length
from pymc_gpep.kernels.status import CONVERGED, NOT_FINITE, NOT_POSITIVE_DEFINITE, OUT_OF_ITERATIONS
from pymc_gpep.solvers.coupled import factorise
from pymc_gpep.solvers.history import History
from pymc_gpep.solvers.problem import Array, Problem

__all__ = ["Mode", "newton", "newton_space"]

_CLOSE = 0.5  # differences between classes that change less than this cannot overshoot: W changes by e^0.5 < 2 at most


class Mode(NamedTuple):
    """What `newton` computes."""

    f: Array
    """Latent values, (c, n)."""
    gradient: Array
    """∇ log p − b, (c, n)."""
    pi: Array
    """Class probabilities, (c, n)."""
    step: Array
    """Of b, (c, n)."""
    image: Array
    """K step, (c, n)."""
    inverses: Array
    """A_k⁻¹ (c, n, n)."""
    p: Array
    """The Cholesky factor of P, (n, n)."""


def newton_space(c: int, n: int) -> Mode:
    """Room for a mode, NaN where nothing is computed yet."""
    f, gradient, pi, step, image = np.full((5, c, n), np.nan)
    return Mode(f, gradient, pi, step, image, np.empty((c, n, n)), np.empty((n, n)))


def newton(problem: Problem, b: Array, space: Mode, history: History, *, tolerance: float) -> tuple[float, int]:
    """Iterate from the weights `b` (c, n), which are overwritten, until the residual is below `tolerance`.

    The residual is the largest entry of the gradient r and of Newton's step in f; no less is asked of it than rounding
    allows. Returns log q(y) and status; `space` is left belonging to `b`.
    """
    k, prior_mean, y, team = problem
    f, gradient, pi, step, image, inverses, p = space
    _begin(problem, b, space)
    evidence = np.nan
    while not history.is_full():
        multiply_classes(k, b, image)
        quadratic = float(np.vdot(b, image))
        np.add(prior_mean, image, out=f)
        evidence = softmax(f, y, pi, gradient) - 0.5 * quadratic
        ok, log_det = factorise(k, pi, inverses, p, team)
        if not ok:
            return np.nan, NOT_POSITIVE_DEFINITE
        evidence -= 0.5 * log_det
        gradient -= b
        latent_weights(inverses, p, pi, gradient, step)
        multiply_classes(k, step, image)
        residual = float(max(np.abs(gradient).max(), np.abs(image).max()))
        history.add(evidence, residual)
        if not np.isfinite(evidence + residual):
            return np.nan, NOT_FINITE
        if residual < max(tolerance, rounding(k, b)):
            return evidence, CONVERGED
        if not history.is_full():
            shrinkage, curvature = float(np.vdot(b, image)), float(np.vdot(step, image))
            t = 1.0 if np.ptp(image, axis=0).max() < _CLOSE else step_length(f, y, image, shrinkage, curvature)
            b += t * step
    return evidence, OUT_OF_ITERATIONS


def _begin(problem: Problem, b: Array, space: Mode) -> None:
    """Take from `b` what is common to the classes, which the mode does not have; put 0 there if that is better."""
    k, prior_mean, y, _ = problem
    b -= b.mean(0)
    multiply_classes(k, b, space.image)
    space.f[:] = prior_mean
    cold = softmax(space.f, y, space.pi, space.gradient)
    space.f[:] += space.image
    warm = softmax(space.f, y, space.pi, space.gradient) - 0.5 * float(np.vdot(b, space.image))
    if not warm >= cold:
        b[:] = 0.0
