"""The multinomial probit by Gauss-Legendre quadrature with 30 digits, without special cases or regard to speed."""

from itertools import pairwise

import mpmath
import numpy as np

from tests.reference.stored import stored

__all__ = ["gradient", "hessian", "log_probability"]

_DIGITS = 30
_PIECES = (-16, -8, -4, -2, -1, 0, 1, 2, 4, 8, 16)  # ends of the pieces of the integral, relative to the mode
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(24)


def _cdf(z):
    return mpmath.erfc(-z / mpmath.sqrt(2)) / 2


def _moments(f, y, derivatives=True):
    """log p(y | f), and posterior means of the ratios φ(z_j) / Φ(z_j) and of their products, z_j = u + f_y − f_j.

    Returns the log probability, the mean ratio (c−1,), the mean of the product of two different ratios (c−1, c−1), and
    on the diagonal of this matrix the mean of φ'(z_j) / Φ(z_j). Without derivatives the means are zero.
    """
    d = [mpmath.mpf(float(f[y])) - mpmath.mpf(float(f[j])) for j in range(len(f)) if j != y]

    # The mode by bisection on the sign of the slope.
    low, high = mpmath.mpf(0), max(mpmath.mpf(0), -min(d)) + 20
    for _ in range(50):
        middle = (low + high) / 2
        slope = -middle + sum(mpmath.npdf(middle + x) / _cdf(middle + x) for x in d)
        low, high = (middle, high) if slope > 0 else (low, middle)
    top = mpmath.npdf(low) * mpmath.fprod(_cdf(low + x) for x in d)

    total = mpmath.mpf(0)
    first = np.full(len(d), mpmath.mpf(0))
    second = np.full((len(d), len(d)), mpmath.mpf(0))
    for left, right in pairwise(_PIECES):
        for node, weight in zip(_NODES, _WEIGHTS, strict=True):
            u = low + left + (right - left) * (mpmath.mpf(node) + 1) / 2
            z = [u + x for x in d]
            cdfs = [_cdf(x) for x in z]
            mass = mpmath.npdf(u) * mpmath.fprod(cdfs) / top * mpmath.mpf(weight) * (right - left) / 2
            if mass < mpmath.mpf(10) ** -_DIGITS:
                continue
            total += mass
            if derivatives:
                ratios = np.array([mpmath.npdf(x) / cdf for x, cdf in zip(z, cdfs, strict=True)])
                products = np.outer(ratios, ratios)
                np.fill_diagonal(products, [-x * r for x, r in zip(z, ratios, strict=True)])
                first += mass * ratios
                second += mass * products
    return mpmath.log(top * total), first / total, second / total


@stored
def log_probability(f, y):
    """log p(y | f)."""
    with mpmath.workdps(_DIGITS):
        return _moments(f, y, derivatives=False)[0]


@stored
def gradient(f, y):
    """Derivative of the log probability with respect to f, (c,)."""
    with mpmath.workdps(_DIGITS):
        first = _moments(f, y)[1].astype(float)
    return np.insert(-first, y, first.sum())


@stored
def hessian(f, y):
    """Second derivative of the log probability with respect to f, (c, c)."""
    with mpmath.workdps(_DIGITS):
        _, first, second = _moments(f, y)
        inner = (second - np.outer(first, first)).astype(float)
    to_f = np.insert(-np.eye(len(f) - 1), y, 1.0, axis=1)  # maps f to the differences f_y − f_j
    return to_f.T @ inner @ to_f
