"""Functions of graphs that steps need and PyTensor lacks, integrals of log-concave functions among them.

The integrals take the trapezoid rule on a window that is found for each. The log integrand falls by at least half the
squared distance from its mode, in the units that it is given in. Newton's method finds the mode, and from there both
ends, where the integrand has fallen to nothing. Between them a fixed number of nodes converges geometrically, as for
any smooth function that is flat at both ends.
"""

from collections.abc import Callable

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.likelihoods.log_probabilities import scaled_erfc

_FURTHEST = 37.0  # beyond it φ(z) is next to 0, and exp(x²) erfc(x) overflows
_HALF, _ROOT = np.sqrt(0.5), np.sqrt(2.0 / np.pi)


def hazard(z: TensorVariable) -> TensorVariable:
    """φ(z) / Φ(z)."""
    return _ROOT / scaled_erfc(-_HALF * pt.minimum(z, _FURTHEST))


type LogIntegrand = Callable[[TensorVariable], tuple[TensorVariable, TensorVariable, TensorVariable]]
"""Value, first derivative and minus second derivative at points (r, B) of the B integrands."""

_FALL = 36.0  # of the log integrand, at the ends
_TO_MODE, _TO_ENDS = 8, 4


def window(integrand: LogIntegrand, like: TensorVariable, nodes: int) -> tuple[TensorVariable, TensorVariable]:
    """Points (B, nodes), and the distance (B,) between two of them.

    Parameters
    ----------
    integrand : function
        With a curvature of 1 or more everywhere.
    like : TensorVariable (B,)
        Finite numbers, by whose shape and type that of the result goes.
    nodes : int
    """

    def uphill(x: TensorVariable) -> TensorVariable:
        _, slope, curvature = integrand(x)
        return x + slope / curvature

    mode = pt.zeros_like(like)[None, :]
    for _ in range(_TO_MODE):
        mode = uphill(mode)
    top, _, _ = integrand(mode)
    sides = np.array([[-1.0], [1.0]])

    def inwards(distance: TensorVariable) -> TensorVariable:
        # What is fallen is convex in the distance, so that steps from beyond the end stay beyond it.
        value, slope, _ = integrand(mode + sides * distance)
        return distance - pt.maximum(top - value - _FALL, 0.0) / pt.maximum(-sides * slope, 1.0)

    furthest = np.sqrt(2.0 * _FALL) + np.zeros((2, 1))
    distance = furthest + pt.zeros_like(like)[None, :]
    for _ in range(_TO_ENDS):
        distance = inwards(distance)
    step = distance.sum(axis=0) / (nodes - 1)
    return (mode[0] - distance[0])[:, None] + step[:, None] * np.arange(nodes), step
