"""The log probability of tails of a normal distribution, as graphs that any backend evaluates."""

from typing import cast

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

_SQRT_HALF = np.sqrt(0.5)  # a Python float would become single precision
_CHANGE = np.float64(-1.0)
_FAR = np.float64(26.0)  # from here on the series of the scaled complement has all digits


def scaled_erfc(x: TensorVariable) -> TensorVariable:
    """exp(x²) erfc(x), by its asymptotic series where x is large: JAX 0.11 has no number from 26.55 to 26.64."""
    is_far = x > _FAR
    near, far = pt.switch(is_far, _FAR, x), pt.switch(is_far, x, _FAR)
    u = 0.5 / (far * far)
    series = 1.0 - u * (1.0 - 3.0 * u * (1.0 - 5.0 * u * (1.0 - 7.0 * u * (1.0 - 9.0 * u * (1.0 - 11.0 * u)))))
    return cast(TensorVariable, pt.switch(is_far, series / (np.sqrt(np.pi) * far), pt.erfcx(near)))


def log_ndtr(z: TensorVariable) -> TensorVariable:
    """log Φ(z), with first and second derivatives right far into both tails.

    PyMC's own is right to single precision only, as its √2 is.
    """
    # Each form sees values that it is good for alone, or derivatives of the other would be infinity times zero.
    in_tail = z < _CHANGE
    low, high = pt.switch(in_tail, z, _CHANGE), pt.switch(in_tail, _CHANGE, z)
    tail = pt.log(0.5 * scaled_erfc(-low * _SQRT_HALF)) - 0.5 * low**2
    return cast(TensorVariable, pt.switch(in_tail, tail, pt.log1p(-0.5 * pt.erfc(high * _SQRT_HALF))))
