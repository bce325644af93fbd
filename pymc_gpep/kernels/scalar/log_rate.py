"""Log densities ℓ(g) = w g − eᵍ and log(1 − exp(−eᵍ)) of a log rate g, and averages over a normal g.

Row 0 of `shapes` (2, n) is the weight w ≥ 0. Row 1 is 1 for the second ℓ, the log probability of at least one event;
it does not depend on w. A time until an event has w = 1 if observed and w = 0 if censored. For a sum of times w is the
number of times. Arrays as in `pymc_gpep.likelihoods.standard_density`.

E log(1 − exp(−eᵍ)) and its derivatives have absolute errors of about 1e-12. Under a narrow normal density the trapezoid
rule suffices, since singularities of the logarithm are at least π/2 from the real line. Under a wide density, nodes are
dense about 0 (`pymc_gpep.kernels.special.unimodal_average`), and values at the nodes are tabulated.
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.special.normal import write_derivatives
from pymc_gpep.kernels.special.unimodal_average import (
    FURTHEST,
    RATE,
    ROOM,
    SOME,
    WIDEST,
    log_density_derivatives,
    log_rate_normal,
    log_unimodal_normal,
    sinh_rule,
    trapezoid_step,
)

_WIDE = 20.0  # From this standard deviation on, the nodes of the table are used.
_LOG_ERROR = math.log(1e-16)
_RANGE = 8.5  # A standard normal variable exceeds this with probability 1e-17.
_LINEAR = -40.0  # For smaller g, log(1 − exp(−eᵍ)) is g.
_NOTHING = 6.0  # For larger g, log(1 − exp(−eᵍ)) is 0.
_INV_SQRT_2PI = 1.0 / math.sqrt(2.0 * math.pi)
_SQRT_HALF = math.sqrt(0.5)

_NODES, _WEIGHTS = sinh_rule(2.0, 0.02, -FURTHEST, _NOTHING)


def _tabulated() -> np.ndarray:
    """Return log(1 − exp(−eᵍ)) and two derivatives in g at the nodes g, times the weights of the rule."""
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
    """Return E log(1 − exp(−eᵍ)), g ~ N(mean, variance), and its first two derivatives in the mean."""
    sd = math.sqrt(variance)
    if mean + 10.0 * sd < _LINEAR:
        return mean, 1.0, 0.0
    if mean - 10.0 * sd > _NOTHING:
        return 0.0, 0.0, 0.0
    if variance >= WIDEST:  # log(1 − exp(−eᵍ)) is then g for g < 0, else 0.
        z = mean / sd
        below, density = 0.5 * math.erfc(z * _SQRT_HALF), _INV_SQRT_2PI * math.exp(-0.5 * z * z)
        return mean * below - sd * density, below, -density / sd
    value = slope = curvature = 0.0
    if sd < _WIDE:
        step = trapezoid_step(sd, 0.5 * math.pi, 1.0, _LOG_ERROR)
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


@kernel
def derivatives(g, shapes, out, slopes):
    """Write ℓ and its first three derivatives to `out` (4, n), and their derivatives in w to `slopes` (2, 3, n)."""
    slopes[:] = 0.0
    for i in range(len(g)):
        if shapes[1, i] > 0.0:
            write_derivatives(out, i, 1.0, log_density_derivatives(SOME, 0.0, 0.0, g[i]))
            continue
        rate = math.exp(g[i])
        weight = shapes[0, i] if shapes[0, i] >= 0.0 else math.nan
        out[0, i] = (weight * g[i] if weight != 0.0 else 0.0) - rate
        out[1, i] = weight - rate
        out[2, i] = -rate
        out[3, i] = -rate
        slopes[0, 0, i] = g[i]
        slopes[0, 1, i] = 1.0


@kernel
def average(mean, variance, shapes, out, slopes):
    """Write log E exp ℓ(g) over normal g and four derivatives in the mean into `out`, the slope in w into `slopes`."""
    room = np.empty(ROOM)
    for i in range(len(mean)):
        weight, m, v = shapes[0, i], mean[i], variance[i]
        slopes[1, i] = 0.0
        if shapes[1, i] > 0.0:
            terms = log_unimodal_normal(SOME, 0.0, 0.0, m, v, room)
            slopes[0, i] = 0.0
        else:
            terms = log_unimodal_normal(RATE, weight, 0.0, m, v, room)
            slopes[0, i] = m + v * terms[1]
        for k in range(5):
            out[k, i] = terms[k]


@kernel
def rough_average(mean, variance, shapes, out, slopes):
    """Write the first three rows of `out` of `average` with nine correct digits, ten times as fast."""
    room = np.empty(ROOM)
    for i in range(len(mean)):
        if shapes[1, i] > 0.0:
            terms = log_unimodal_normal(SOME, 0.0, 0.0, mean[i], variance[i], room)
            for k in range(3):
                out[k, i] = terms[k]
        else:
            out[0, i], out[1, i], out[2, i] = log_rate_normal(shapes[0, i], mean[i], variance[i], room)


@kernel
def average_log(mean, variance, shapes, out, slopes):
    """Write E ℓ(g) for normal g and its slopes in mean and variance to `out` (3, n). Write slopes in w to `slopes`."""
    for i in range(len(mean)):
        weight, m, v = shapes[0, i], mean[i], variance[i]
        slopes[1, i] = 0.0
        if not (0.0 <= v < math.inf and math.isfinite(m) and (weight >= 0.0 or shapes[1, i] > 0.0)):
            out[:, i] = math.nan
            slopes[0, i] = math.nan
        elif shapes[1, i] > 0.0:
            value, first, second = average_log_some(m, v)
            out[0, i] = value
            out[1, i] = first
            out[2, i] = 0.5 * second
            slopes[0, i] = 0.0
        else:
            rate = math.exp(m + 0.5 * v)
            out[0, i] = weight * m - rate
            out[1, i] = weight - rate
            out[2, i] = -0.5 * rate
            slopes[0, i] = m
