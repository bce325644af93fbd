"""E σ(d), the logistic function σ averaged over a normal d: two rules, each where its error is that of rounding."""

import math

import numpy as np

from pymc_gpep.kernels.compile import kernel

_LOG_ERROR = math.log(1e-16)
_RANGE = 9.0  # of a standard normal variable, to 1e-18
_WIDE = 8.0  # standard deviations from here on are large compared with the width of σ
_SQRT_HALF = math.sqrt(0.5)
_INV_SQRT_2PI = 1.0 / math.sqrt(2.0 * math.pi)

_PANEL = 4.0  # σ has poles at ±iπ: 16 Gauss-Legendre nodes err by 1e-17 on so wide a piece
_PANELS = 10  # σ(−40) < 1e-17
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)


@kernel
def _narrow(mean, sd):
    """The trapezoid rule in z = (d − mean) / sd. Its error is e^(−2πa/h) for a strip |Im z| < a free of poles."""
    strip = min(math.pi / max(sd, 1e-300), 0.5 * math.sqrt(-2.0 * _LOG_ERROR))
    step = 2.0 * math.pi * strip / (0.5 * strip * strip - _LOG_ERROR)
    nodes = int(_RANGE / step) + 1
    above = 0.0
    below = 0.0
    for i in range(-nodes, nodes + 1):
        z = i * step
        weight = math.exp(-0.5 * z * z)
        ratio = math.exp(-abs(mean + sd * z))
        larger = weight / (1.0 + ratio)
        if mean + sd * z > 0.0:
            above += larger
            below += larger * ratio
        else:
            above += larger * ratio
            below += larger
    factor = step * _INV_SQRT_2PI
    return factor * below, factor * above


@kernel
def _wide(mean, sd):
    """Return E σ(−d) and E σ(d), the difference of σ from a step integrated in pieces.

    E σ(d) = P(d > 0) + ∫₀^∞ σ(−x) (N(−x) − N(x)) dx.
    """
    difference = 0.0
    for panel in range(_PANELS):
        for node, weight in zip(_NODES, _WEIGHTS):  # noqa: B905  numba knows no strict
            x = _PANEL * (panel + 0.5 * (1.0 + node))
            left = (x + mean) / sd
            right = (x - mean) / sd
            density = math.exp(-0.5 * left * left) - math.exp(-0.5 * right * right)
            difference += weight * density / (1.0 + math.exp(x))
    difference *= 0.5 * _PANEL * _INV_SQRT_2PI / sd
    return 0.5 * math.erfc(mean / sd * _SQRT_HALF) - difference, 0.5 * math.erfc(-mean / sd * _SQRT_HALF) + difference


@kernel
def logistic_normal(mean, sd):
    """E σ(−d) and E σ(d), d ~ N(mean, sd²), each to about 1e-16; their sum departs from 1 by rounding alone."""
    return _narrow(mean, sd) if sd < _WIDE else _wide(mean, sd)
