"""Averages of a function over a normal distribution by the trapezoid rule."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

__all__ = ["normal_average"]

Array = NDArray[np.float64]
_Z = np.linspace(-14.0, 14.0, 14_001)
_WEIGHTS = np.exp(-0.5 * _Z**2) * (_Z[1] - _Z[0]) / np.sqrt(2.0 * np.pi)


def normal_average(function: Callable[[Array], Array], mean: float, variance: float) -> float:
    """∫ function(f) N(f | mean, variance) df of a smooth function."""
    return float(_WEIGHTS @ function(mean + np.sqrt(variance) * _Z))
