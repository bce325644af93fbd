"""The prior covariance times weights, f − m = K b, and the part of it that rounding may make up."""

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.lapack import multiply_symmetric

__all__ = ["prior_image", "rounding"]

_EPS = np.finfo(np.float64).eps
_AMPLIFIED = 8.0  # errors of f on their way to a step of Newton's method, as seen at variances of 1e5


@kernel
def prior_image(k, b, out):
    """K b into `out` (c, n), for a prior covariance `k` (1 or c, n, n)."""
    for a in range(b.shape[0]):
        multiply_symmetric(k[a if k.shape[0] > 1 else 0], b[a], out[a])


@kernel
def rounding(k, b):
    """What rounding the terms of K b may do to a step of Newton's method at f = m + K b."""
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
