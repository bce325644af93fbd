"""The normal distribution function as expressions of elementwise operations, with all digits in both tails."""

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

__all__ = ["hazard", "log_ndtr"]

_FURTHEST = 37.0  # beyond it φ(z) is none, and erfcx has no number
_HALF, _ROOT = np.sqrt(0.5), np.sqrt(2.0 / np.pi)


def log_ndtr(z: TensorVariable) -> TensorVariable:
    """log Φ(z)."""
    left = pt.log(0.5 * pt.erfcx(-_HALF * pt.minimum(z, -1.0))) - 0.5 * z * z
    return pt.switch(z < -1.0, left, pt.log1p(-0.5 * pt.erfc(_HALF * pt.maximum(z, -1.0))))


def hazard(z: TensorVariable) -> TensorVariable:
    """φ(z) / Φ(z)."""
    return _ROOT / pt.erfcx(-_HALF * pt.minimum(z, _FURTHEST))
