"""The probability that two jointly normal variables are below bounds: P(x₁ < b₁, x₂ < b₂) of x ~ N(0, S).

Owen's T function has it in closed form, a difference of larger terms. That is right to 1e-16, and nothing is left of
smaller probabilities. Small ones are an integral of positive terms instead. Let h and k be the bounds in units of the
standard deviations, ρ the correlation, and r = √(1 − ρ²). The integral is over s > 0 of
φ(h − s) Φ((k − ρ (h − s)) / r). The logarithm of this is concave with a curvature of 1 or more. Gauss-Legendre rules
integrate it on pieces that are no wider than its variation.
"""

import math

import numpy as np
from numba.core import types

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.external import scipy_function
from pymc_gpep.kernels.special.normal import hazard, log_ndtr

_SQRT_HALF = math.sqrt(0.5)
_LOG_ROOT_2PI = 0.5 * math.log(2.0 * math.pi)

_owens_t = scipy_function("special.cython_special", "owens_t", types.float64(types.float64, types.float64))

_SMALL = 1e-8  # smaller ones have lost half their digits in closed form
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)
_FALL = 40.0  # of the log integrand from its mode to where it is left out
_REACH = math.sqrt(2.0 * _FALL)  # with a curvature of 1 it has fallen so far there
_LEAST_LOG = -740.0  # less is no number
_HALVINGS = 60
_WIDTH = 1.5  # of a piece, in standard deviations
_FLAT = 8.3  # standard deviations until a Φ is 1
_PIECES = 4  # at least


@kernel
def ndtr(x):
    """Φ(x)."""
    return 0.5 * math.erfc(-x * _SQRT_HALF)


@kernel
def closed_form(b1, b2, s11, s12, s22):
    """P(x₁ < b₁, x₂ < b₂) by Owen (1956), right to 1e-16 or so."""
    # The formula has a limit at a bound of 0; next to it the same formula gives it.
    b1 = 1e-300 if b1 == 0.0 else b1
    b2 = 1e-300 if b2 == 0.0 else b2
    h = b1 / math.sqrt(s11)
    k = b2 / math.sqrt(s22)
    rest = s22 - s12 * s12 / s11
    if rest <= 0.0:  # up to rounding, one is a multiple of the other
        return ndtr(min(h, k)) if s12 > 0.0 else max(ndtr(h) - ndtr(-k), 0.0)
    root = math.sqrt(s11 * rest)
    value = 0.5 * (ndtr(h) + ndtr(k))
    value -= _owens_t(h, (b2 * s11 - s12 * b1) / (b1 * root))
    value -= _owens_t(k, (b1 * s22 - s12 * b2) / (b2 * root))
    if (b1 < 0.0) != (b2 < 0.0):
        value -= 0.5
    return 0.0 if value < 0.0 else value


@kernel
def bivariate(b1, b2, s11, s12, s22):
    """P(x₁ < b₁, x₂ < b₂), right to 1e-8 of itself however small."""
    value = closed_form(b1, b2, s11, s12, s22)
    if value < _SMALL:
        h, k = b1 / math.sqrt(s11), b2 / math.sqrt(s22)
        rho = s12 / math.sqrt(s11 * s22)
        r = math.sqrt((s22 - s12 * s12 / s11) / s22)
        return _small(h, (k - rho * h) / r, rho / r)
    return value


@kernel
def _log_integrand(s, h, offset, rate):
    """log(φ(h − s) Φ(offset + rate s)) but for ½ log 2π."""
    return log_ndtr(offset + rate * s) - 0.5 * (h - s) * (h - s)


@kernel
def _mode(h, offset, rate):
    """Where the integrand is largest, by halving."""
    low = 0.0
    # A normal hazard φ / Φ at z is at most 1 + max(−z, 0).
    high = max(h, 0.0) + max(rate, 0.0) * (1.0 + max(-offset, 0.0))
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        if h - middle + rate * hazard(offset + rate * middle) > 0.0:
            low = middle
        else:
            high = middle
    return high


@kernel
def _end(mode, top, furthest, h, offset, rate):
    """Where it has fallen so far that the rest does not count, on the side of `furthest`, or that if it has not."""
    inside, outside = mode, furthest
    for _ in range(_HALVINGS):
        middle = 0.5 * (inside + outside)
        if _log_integrand(middle, h, offset, rate) > top - _FALL:
            inside = middle
        else:
            outside = middle
    return outside


@kernel
def _small(h, offset, rate):
    """The integral over s > 0 of φ(h − s) Φ(offset + rate s)."""
    mode = _mode(h, offset, rate)
    top = _log_integrand(mode, h, offset, rate)
    if not top > _LEAST_LOG:
        return 0.0
    s = _end(mode, top, max(0.0, mode - _REACH), h, offset, rate)
    end = _end(mode, top, mode + _REACH, h, offset, rate)
    widest = min(_WIDTH, (end - s) / _PIECES)
    total = 0.0
    while s < end:
        width = min(widest, end - s)
        # Φ varies from here on, or has done so.
        if offset + rate * (s if rate > 0.0 else s + width) < _FLAT:
            width = min(width, _WIDTH / max(abs(rate), _WIDTH))
        for q in range(_NODES.shape[0]):
            at = s + 0.5 * width * (1.0 + _NODES[q])
            total += 0.5 * width * _WEIGHTS[q] * math.exp(_log_integrand(at, h, offset, rate) - top)
        s += width
    return math.exp(top - _LOG_ROOT_2PI) * total
