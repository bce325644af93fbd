"""E log(1 − exp(−eᵍ)) of a normal g, with its derivatives, to about twelve digits of 1.

Under a narrow normal density the trapezoid rule serves: the logarithm has no singularity nearer to the real line than
iπ/2. Under a wide one nodes are dense about 0 (`pymc_gpep.kernels.special.sinh_rule`), where the values are tabulated.
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.special.sinh_rule import FURTHEST, WIDEST, sinh_rule
from pymc_gpep.kernels.special.unimodal_average import SOME, log_density_derivatives

__all__ = ["average_log_some"]

_WIDE = 20.0  # standard deviation from which on a normal density is wide
_LOG_ERROR = math.log(1e-16)
_RANGE = 8.5  # of a standard normal variable, to 1e-16
_LINEAR = -40.0  # up to which log(1 − exp(−eᵍ)) is g
_NOTHING = 6.0  # from which on it is 0
_INV_SQRT_2PI = 1.0 / math.sqrt(2.0 * math.pi)
_SQRT_HALF = math.sqrt(0.5)

_NODES, _WEIGHTS = sinh_rule(2.0, 0.02, -FURTHEST, _NOTHING)


def _tabulated() -> np.ndarray:
    """log(1 − exp(−r)), r = eᵍ, and two derivatives at the nodes, times the weights of the rule."""
    rate = np.exp(np.maximum(_NODES, -700.0))
    small = rate < 1e-4
    safe = np.where(small, 1.0, rate)
    with np.errstate(over="ignore"):
        first = np.where(small, 1.0 - rate / 2 + rate**2 / 12, safe / np.expm1(safe))
        second = np.where(small, -rate / 2 + rate**2 / 6, first * (1.0 - safe - first))
    value = np.where(small, _NODES - rate / 2 + rate**2 / 24, np.log(-np.expm1(-safe)))
    return _WEIGHTS * np.stack([value, first, second])


_TABLE = _tabulated()


@kernel
def average_log_some(mean, variance):
    """E log(1 − exp(−eᵍ)), g ~ N(mean, variance), and its first two derivatives in the mean."""
    sd = math.sqrt(variance)
    if mean + 10.0 * sd < _LINEAR:
        return mean, 1.0, 0.0
    if mean - 10.0 * sd > _NOTHING:
        return 0.0, 0.0, 0.0
    if variance >= WIDEST:  # it is g on the left and nothing on the right
        z = mean / sd
        below, density = 0.5 * math.erfc(z * _SQRT_HALF), _INV_SQRT_2PI * math.exp(-0.5 * z * z)
        return mean * below - sd * density, below, -density / sd
    value = slope = curvature = 0.0
    if sd < _WIDE:
        strip = min(0.5 * math.pi / max(sd, 1e-300), math.sqrt(-2.0 * _LOG_ERROR))
        step = 2.0 * math.pi * strip / (0.5 * strip * strip - _LOG_ERROR)
        for k in range(int(2.0 * _RANGE / step) + 2):
            z = k * step - _RANGE
            one, two, three, _, _ = log_density_derivatives(SOME, 0.0, 0.0, mean + sd * z)
            weight = math.exp(-0.5 * z * z)
            value += weight * one
            slope += weight * two
            curvature += weight * three
        factor = step * _INV_SQRT_2PI
    else:
        for k in range(len(_NODES)):
            z = (_NODES[k] - mean) / sd
            weight = math.exp(-0.5 * z * z)
            value += weight * _TABLE[0, k]
            slope += weight * _TABLE[1, k]
            curvature += weight * _TABLE[2, k]
        factor = _INV_SQRT_2PI / sd
    return factor * value, factor * slope, factor * curvature
