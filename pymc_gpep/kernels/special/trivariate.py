"""The probability that three jointly normal variables are below bounds: P(x < b) of x ~ N(0, S).

One integral over the closed form for two of them, by adaptive Gauss-Legendre quadrature.
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.special.bivariate import closed_form

__all__ = ["STACK", "trivariate"]

_INV_SQRT_2PI = 1.0 / math.sqrt(2.0 * math.pi)

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)
_RANGE = 9.0  # of a standard normal variable, to 1e-18
_QUADRATURE_TOLERANCE = 1e-11
_MAX_INTERVALS = 64

STACK = (_MAX_INTERVALS + 2, 3)
"""Shape of the room that `trivariate` wants."""


@kernel
def _trivariate_piece(left, right, b, lower, s22, s23, s33):
    total = 0.0
    half = 0.5 * (right - left)
    for i in range(_NODES.shape[0]):
        z = left + half * (1.0 + _NODES[i])
        inner = closed_form(b[1] - lower[1, 0] * z, b[2] - lower[2, 0] * z, s22, s23, s33)
        total += _WEIGHTS[i] * math.exp(-0.5 * z * z) * inner
    return half * _INV_SQRT_2PI * total


@kernel
def trivariate(b, lower, stack):
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
            stack[depth, 2] = _trivariate_piece(left, right, b, lower, s22, s23, s33)
            depth += 1
    total = 0.0
    while depth > 0:
        depth -= 1
        left, right, whole = stack[depth, 0], stack[depth, 1], stack[depth, 2]
        middle = 0.5 * (left + right)
        first = _trivariate_piece(left, middle, b, lower, s22, s23, s33)
        second = _trivariate_piece(middle, right, b, lower, s22, s23, s33)
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
