"""The expansion of log E ∏_s q̂_s(x_s) / N(x_s | 0, 1) in cumulants by enumeration, for a few factors.

The vector x is normal with unit variances and the correlations ρ_st. Density q̂_s has mean 0, variance 1, third and
fourth cumulants κ₃ and κ₄, and higher cumulants 0. Its ratio to the normal density is Σ_k a_k He_k(x) / k!, with the
Hermite polynomials He_k and Σ_k a_k t^k / k! = exp(κ₃ t³/3! + κ₄ t⁴/4!). Expectations of products of Hermite
polynomials are sums over the numbers m_st of edges between factors s and t (Mehler's formula, for any number of
factors):

    E ∏_s q̂_s / N = Σ_m ∏_s a_{Σ_t m_st} ∏_{s<t} ρ_st^{m_st} / m_st!

Let κ₃ be multiplied by η, and κ₄ by η². A term with L loops then has the degree 2 (L − 1) in η, so the powers of η
separate the orders.
"""

from __future__ import annotations

from itertools import combinations, product
from math import factorial

import numpy as np
from numpy.typing import NDArray

__all__ = ["log_ratio_by_loops"]

Array = NDArray[np.float64]

_DEGREE = 4  # degree in η: up to three loops
# A term of V cumulants and E edges has degree 2 E − 2 V. Each cumulant has at least three edges, so E is at most 6.
_LINES = 6


def _coefficients(third: float, fourth: float) -> Array:
    """a_k as polynomials in η, (3 · degree + 1, degree + 1). With p third and q fourth cumulants, k = 3p + 4q."""
    a = np.zeros((3 * _DEGREE + 1, _DEGREE + 1))
    for p in range(_DEGREE + 1):
        for q in range((_DEGREE - p) // 2 + 1):
            k = 3 * p + 4 * q
            ways = factorial(k) / (factorial(p) * factorial(q) * factorial(3) ** p * factorial(4) ** q)
            a[k, p + 2 * q] += ways * third**p * fourth**q
    return a


def _times(left: Array, right: Array) -> Array:
    return np.convolve(left, right)[: _DEGREE + 1]


def log_ratio_by_loops(correlation: Array, third: Array, fourth: Array) -> tuple[float, float]:
    """The sums of all terms with two loops and with three loops.

    Parameters
    ----------
    correlation : ndarray, shape (N, N)
    third, fourth : ndarray, shape (N,)

    Returns
    -------
    two, three : float
    """
    count = len(third)
    pairs = list(combinations(range(count), 2))
    a = [_coefficients(*cumulants) for cumulants in zip(third, fourth, strict=True)]
    total = np.zeros(_DEGREE + 1)
    for lines in product(range(_LINES + 1), repeat=len(pairs)):
        if sum(lines) > _LINES:
            continue
        degrees = np.zeros(count, dtype=int)
        weight = 1.0
        for (s, t), m in zip(pairs, lines, strict=True):
            degrees[[s, t]] += m
            weight *= correlation[s, t] ** m / factorial(m)
        term = np.eye(1, _DEGREE + 1)[0] * weight
        for s in range(count):
            term = _times(term, a[s][degrees[s]])
        total += term
    # log(1 + x) = x − x²/2, where x starts with η²
    logarithm = total - np.eye(1, _DEGREE + 1)[0]
    logarithm = logarithm - 0.5 * _times(logarithm, logarithm)
    return float(logarithm[2]), float(logarithm[4])
