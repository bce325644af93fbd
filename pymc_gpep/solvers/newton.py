"""Newton's method for the mode of p(f | y) under a log-concave likelihood, whatever its curvature.

It works on the weights b = K⁻¹ (f − m): K is never inverted. The gradient of the log posterior with respect to f is the
residual r = ∇ log p(y | f) − b. Newton's step in b is (I + W K)⁻¹ r, W the curvature of −log p. Since it comes from the
residual, each step also corrects the rounding errors of earlier ones. The accuracy reached is that of f = m + K b.
"""

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.status import CONVERGED, NOT_FINITE, NOT_POSITIVE_DEFINITE, OUT_OF_DIGITS, OUT_OF_ITERATIONS
from pymc_gpep.solvers.problem import History, Problem

__all__ = ["MARGIN", "Ascent", "begin", "log_posterior", "newton", "step_length"]

_NEAR = 1.0  # residual from which on a curvature serves for more than one step
_FASTER = 0.3  # part of the residual that such a step may leave at most
_NEGLIGIBLE = 1e-2  # of the log posterior, that rounding may take
_NEARER = 0.5  # of the residual, above which further steps are of no use
MARGIN = 0.1
"""Part of the residual wanted that steps with another curvature may leave: the last one is of the curvature at f."""


class Ascent(Protocol):
    """The likelihood as Newton's method sees it, with the algebra that its curvature takes."""

    f: Array
    """Latent values, (c, n)."""
    gradient: Array
    """∇ log p(y | f) where the density was last asked for, (c, n)."""

    @property
    def stiffness(self) -> Array | float:
        """How many times the rounding of f is in the gradient there, at least 1: the curvature where that is larger."""
        ...

    def log_density(self) -> float:
        """log p(y | f); the gradient is written."""
        ...

    def factorise(self) -> tuple[bool, float]:
        """Factorise I + W K with the curvature at f; returns success and log|I + W K|.

        What is returned is what the evidence loses to the volume of the posterior, twice, and may be another number
        where that is.
        """
        ...

    def solve(self, residual: Array, step: Array) -> None:
        """(I + W K)⁻¹ r into `step`, with the curvature that was factorised last."""
        ...

    def length(self, b: Array, step: Array, image: Array, value: float, slope: float) -> float:
        """How much of a step to take from `b`, so that the log posterior rises; `image` is K times the step.

        `value` and `slope` are those of the log posterior there; f and the gradient may be left elsewhere.
        """
        ...


def newton(problem: Problem, b: Array, ascent: Ascent, history: History, *, tolerance: float) -> tuple[float, int]:
    """Iterate from the weights `b` (c, n), which are overwritten, until the residual is below `tolerance`.

    Where the likelihood does not see what is added to all functions, the given weights must sum to zero.

    The residual is the largest entry of the gradient r, relative to its stiffness, and of Newton's step in f. The
    iteration asks of it no less than rounding allows, unless the evidence has too few digits left there. The function
    returns log q(y) and status, and leaves `ascent` belonging to `b`.
    """
    step, image = np.empty((2, *b.shape))
    begin(problem, b, ascent, image)
    evidence, closest = np.nan, np.inf
    while not history.is_full():
        value = log_posterior(problem, b, ascent, image)
        ok, log_det = ascent.factorise()
        if not ok:
            return np.nan, NOT_POSITIVE_DEFINITE
        evidence = value - 0.5 * log_det
        residual = _step(problem, b, ascent, step, image)
        history.add(evidence, residual)
        if not np.isfinite(evidence + residual):
            return np.nan, NOT_FINITE
        limit = max(tolerance, problem.prior.rounding(b))
        gain = abs(float(np.vdot(ascent.gradient - b, image)))  # twice what the step adds to the log posterior
        if residual < limit:
            if residual < tolerance or gain < _NEGLIGIBLE:
                return evidence, CONVERGED
            # Where the density is steep, rounding of f decides on the evidence.
            if not residual < _NEARER * closest:
                return evidence, OUT_OF_DIGITS
            closest = residual
        if not history.is_full():
            slope = float(np.vdot(ascent.gradient - b, image))
            b += ascent.length(b, step, image, value, slope) * step
            _go_on(problem, b, ascent, step, image, residual, limit)
    return evidence, OUT_OF_ITERATIONS


def _step(problem: Problem, b: Array, ascent: Ascent, step: Array, image: Array) -> float:
    """Newton's step in b and K times it, with the curvature that was factorised; returns the residual."""
    slope = ascent.gradient - b
    ascent.solve(slope, step)
    problem.prior.multiply(step, image)
    return float(max((np.abs(slope) / ascent.stiffness).max(), np.abs(image).max()))


def _go_on(
    problem: Problem, b: Array, ascent: Ascent, step: Array, image: Array, residual: float, limit: float
) -> None:
    """Take more steps with the curvature that was factorised, O(n²) each, as long as they soon come to the mode."""
    enough = MARGIN * limit
    while residual > enough:
        log_posterior(problem, b, ascent, image)
        left = _step(problem, b, ascent, step, image)
        if not left < min(_NEAR, _FASTER * residual):
            break
        b += step
        residual = left


def log_posterior(problem: Problem, b: Array, ascent: Ascent, image: Array) -> float:
    """log p(y | f) − ½ bᵀ K b at f = m + K b, which `ascent` is left with; K b into `image`."""
    problem.prior.multiply(b, image)
    np.add(problem.mean, image, out=ascent.f)
    return ascent.log_density() - 0.5 * float(np.vdot(b, image))


def begin(problem: Problem, b: Array, ascent: Ascent, image: Array) -> None:
    """Put 0 into `b` if that is better."""
    cold = log_posterior(problem, np.zeros_like(b), ascent, image)
    if not log_posterior(problem, b, ascent, image) >= cold:
        b[:] = 0.0


_ENOUGH = 0.1  # of the slope at the start may be left at the end
_MAX_TRIALS = 60


def step_length(along_line: Callable[[float], tuple[float, float]], start: float, curvature: float) -> float:
    """A step t > 0 at which log p(y | f + t d) − t `start` − t² `curvature` / 2 still rises, but much less than at 0.

    On a concave function that is a step that ends higher than it began. It is found by Newton's method on the slope,
    kept between the last steps known to be too short and too long. Where the slope falls exponentially, Newton's steps
    back from far away do not become shorter: the bracket is then halved. `along_line(t)` is the first derivative of
    log p(y | f + t d) with respect to t, and minus the second.
    """
    first = along_line(0.0)[0] - start
    short = 0.0
    long = 0.0  # none yet
    t = 1.0
    moved = math.inf  # by the last step of Newton's method
    for _ in range(_MAX_TRIALS):
        slope, bend = along_line(t)
        slope -= start + t * curvature
        bend += curvature
        if slope >= 0.0:
            short = t
            if slope <= _ENOUGH * first:
                break
        else:
            long = t
        # A little short of where Newton's method would go: a step that is too long cannot be taken.
        move = float(np.divide(slope - 0.5 * _ENOUGH * first, bend))  # the curvature may underflow
        outside = not short < t + move or (long > 0.0 and not t + move < long)
        if outside or (long > 0.0 and not abs(move) < 0.5 * moved):
            t = 0.5 * (short + long) if long > 0.0 else 2.0 * short
            moved = math.inf
        else:
            t += move
            moved = abs(move)
    return short
