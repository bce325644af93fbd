"""Nodes f = c sinh(jh) of the trapezoid rule in τ = jh, dense about 0 and ever further apart: one rule for all widths.

It integrates N(f | m, v) L(f) where L has features of width c about 0 and is smooth, on its own scale, far from it.
With v large the rule needs log(v) nodes, and the values of L there can be tabulated. The normal density is analytic and
falls wherever |Im τ| < π/4. Along Im τ = η it is larger by up to exp(m² sin²η / 2v cos 2η) than on the real line. The
error exp(−2πη/h) of the rule has to pay for that (Trefethen and Weideman 2014, theorem 5.1).
"""

import math

import numpy as np

FURTHEST = 1e12
"""Where the nodes of rules for any width end."""

WIDEST = 1e20
"""Largest variance of a normal density that does not reach beyond: to wider ones L is a step, to rounding."""


def sinh_rule(scale: float, step: float, lowest: float, highest: float) -> tuple[np.ndarray, np.ndarray]:
    """Nodes between `lowest` and `highest`, in ascending order, and the weights of the rule there."""
    first, last = (math.asinh(end / scale) / step for end in (lowest, highest))
    tau = step * np.arange(math.ceil(first), math.floor(last) + 1)
    return scale * np.sinh(tau), step * scale * np.cosh(tau)
