"""The probability that three jointly normal variables are below bounds: P(x < b) of x ~ N(0, S).

Plackett's identity makes it the product of that of the first variable and that of the two others, and one integral.
This goes over the angle by which the first turns towards the others (Genz, 2004, section 3). Its terms may have either
sign, so that little is left of a small probability. That one is an integral of positive terms over the first variable.
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.special.bivariate import closed_form
from pymc_gpep.kernels.special.tabulated_normal import cdf_and_density

SMALL = 1e-10
"""`trivariate` has lost its digits where it is less."""

_INV_SQRT_2PI = 1.0 / math.sqrt(2.0 * math.pi)

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)
_ROUGH_NODES, _ROUGH_WEIGHTS = np.polynomial.legendre.leggauss(8)
_RANGE = 9.0  # of a standard normal variable, to 1e-18
_QUADRATURE_TOLERANCE = 1e-11
_DIFFERENCE = 1e-10  # of the two rules on a piece; the error of the finer one is a hundredth of it
_FURTHEST = 40.0  # standard deviations: Φ is 1 or 0
_MAX_INTERVALS = 64

STACK = (_MAX_INTERVALS + 2, 3)
"""Shape of the room that both functions want."""


@kernel
def _cdf(z):
    if z >= _RANGE:
        return 1.0
    return cdf_and_density(z)[0] if z > -_RANGE else 0.0


@kernel
def _turning(t, a2, a3, r, h1, h2, h3):
    """Derivative of the probability in t, where the first correlates with the others by sin(t a₂) and sin(t a₃)."""
    s2, c2 = math.sin(t * a2), math.cos(t * a2)
    s3, c3 = math.sin(t * a3), math.cos(t * a3)
    v2, v3 = c2 * c2, c3 * c3
    rest = r - s2 * s3
    root = math.sqrt(max(v2 * v3 - rest * rest, 1e-300))
    third = (h3 * v2 - h1 * (s3 - s2 * r) - h2 * rest) / (root * c2)
    second = (h2 * v3 - h1 * (s2 - s3 * r) - h3 * rest) / (root * c3)
    with_second = a2 * math.exp(-0.5 * (h1 * h1 + h2 * h2 - 2.0 * s2 * h1 * h2) / v2) * _cdf(third)
    return with_second + a3 * math.exp(-0.5 * (h1 * h1 + h3 * h3 - 2.0 * s3 * h1 * h3) / v3) * _cdf(second)


@kernel
def _turning_piece(left, width, nodes, weights, a2, a3, r, h1, h2, h3):
    total = 0.0
    for q in range(nodes.shape[0]):
        total += weights[q] * _turning(left + 0.5 * width * (1.0 + nodes[q]), a2, a3, r, h1, h2, h3)
    return total * width / (4.0 * math.pi)


@kernel
def _correlation(s, i, j):
    return min(max(s[i, j] / math.sqrt(s[i, i] * s[j, j]), -1.0), 1.0)


@kernel
def _bound(b, s, i):
    return min(max(b[i] / math.sqrt(s[i, i]), -_FURTHEST), _FURTHEST)


@kernel
def trivariate(b, s, stack):
    """P(x < b) to 1e-10, of which 1e-16 is the error of rounding."""
    h1, h2, h3 = _bound(b, s, 0), _bound(b, s, 1), _bound(b, s, 2)
    r12, r13, r23 = _correlation(s, 0, 1), _correlation(s, 0, 2), _correlation(s, 1, 2)
    # The two that depend on each other most stay together.
    if abs(r12) >= max(abs(r13), abs(r23)):
        h1, h3, r12, r23 = h3, h1, r23, r12
    elif abs(r13) >= abs(r23):
        h1, h2, r13, r23 = h2, h1, r23, r13
    a2, a3 = math.asin(r12), math.asin(r13)
    total = _cdf(h1) * closed_form(h2, h3, 1.0, r23, 1.0)
    left, depth = 0.0, 1
    stack[0, 0] = 1.0
    while depth > 0:
        width = stack[depth - 1, 0] - left
        rough = _turning_piece(left, width, _ROUGH_NODES, _ROUGH_WEIGHTS, a2, a3, r23, h1, h2, h3)
        fine = _turning_piece(left, width, _NODES, _WEIGHTS, a2, a3, r23, h1, h2, h3)
        if abs(fine - rough) < _DIFFERENCE or depth == _MAX_INTERVALS:
            total += fine
            left += width
            depth -= 1
        else:
            stack[depth, 0] = left + 0.5 * width
            depth += 1
    return total


@kernel
def _small_piece(left, right, b, lower, s22, s23, s33):
    total = 0.0
    half = 0.5 * (right - left)
    for i in range(_NODES.shape[0]):
        z = left + half * (1.0 + _NODES[i])
        inner = closed_form(b[1] - lower[1, 0] * z, b[2] - lower[2, 0] * z, s22, s23, s33)
        total += _WEIGHTS[i] * math.exp(-0.5 * z * z) * inner
    return half * _INV_SQRT_2PI * total


@kernel
def small_trivariate(b, lower, stack):
    """P(x < b) given the Cholesky factor of S: one quadrature over what drives the first variable.

    The breaks are where the other two, given the first, are at their bounds: there the integrand may be steep.
    """
    s22 = lower[1, 1] ** 2
    s23 = lower[1, 1] * lower[2, 1]
    s33 = lower[2, 1] ** 2 + lower[2, 2] ** 2
    top = min(b[0] / lower[0, 0], _RANGE)
    bottom = min(top, 0.0) - _RANGE
    one, two = b[1] / lower[1, 0], b[2] / lower[2, 0]
    one = min(max(one, bottom), top) if one == one else top
    two = min(max(two, bottom), top) if two == two else top
    depth = 0
    for left, right in ((bottom, min(one, two)), (min(one, two), max(one, two)), (max(one, two), top)):
        if left < right:
            stack[depth, 0] = left
            stack[depth, 1] = right
            stack[depth, 2] = _small_piece(left, right, b, lower, s22, s23, s33)
            depth += 1
    total = 0.0
    while depth > 0:
        depth -= 1
        left, right, whole = stack[depth, 0], stack[depth, 1], stack[depth, 2]
        middle = 0.5 * (left + right)
        first = _small_piece(left, middle, b, lower, s22, s23, s33)
        second = _small_piece(middle, right, b, lower, s22, s23, s33)
        if abs(first + second - whole) < _QUADRATURE_TOLERANCE or depth + 2 > _MAX_INTERVALS:
            total += first + second
        else:
            stack[depth, 1] = middle
            stack[depth, 2] = first
            stack[depth + 1, 0] = middle
            stack[depth + 1, 1] = right
            stack[depth + 1, 2] = second
            depth += 2
    return total
