"""A line search of Newton's method, along a line on which a concave function rises at first."""

import math
from collections.abc import Callable

import numpy as np

__all__ = ["step_length"]

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
