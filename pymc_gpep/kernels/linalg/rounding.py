"""The part of f − m = K b that rounding may make up."""

import numpy as np

from pymc_gpep.kernels.compile import kernel

__all__ = ["rounding"]

_EPS = np.finfo(np.float64).eps
_AMPLIFIED = 8.0  # errors of f on their way to a step of Newton's method, as seen at variances of 1e5


@kernel
def rounding(k, b):
    """Return the change in a step of Newton's method at f = m + K b that rounding the terms of K b may cause."""
    largest = 0.0
    for a in range(b.shape[0]):
        prior = k[a if k.shape[0] > 1 else 0]
        variance = 0.0
        weight = 0.0
        for i in range(b.shape[1]):
            variance = max(variance, prior[i, i])
            weight += abs(b[a, i])
        largest = max(largest, variance * weight)
    return _AMPLIFIED * _EPS * largest
