"""A test of prior covariances: symmetric and positive semi-definite, up to rounding."""

import math

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.linalg.lapack import cholesky

__all__ = ["is_covariance"]

_ROUNDING = 1e-8  # relative to the largest variance: what covariance functions lose where squared distances cancel
_SMALLEST = 1e-290  # lets a matrix of zeros have a Cholesky factor


@kernel
def is_covariance(matrix, work):
    """Whether `matrix` (n, n), all finite, is symmetric and has no negative eigenvalue beyond rounding.

    EP alone would not see it: what it factorises, I + D^½ K D^½, is positive definite for much that K must not be.
    """
    n = matrix.shape[0]
    largest = 0.0
    for i in range(n):
        largest = max(largest, matrix[i, i])
    margin = _ROUNDING * largest
    # Scaled, so that neither large nor small variances leave the range of floating point numbers.
    scale = 1.0 / math.sqrt(max(largest, _SMALLEST))
    for i in range(n):
        for j in range(i):
            if not abs(matrix[i, j] - matrix[j, i]) <= margin:
                return False
            work[i, j] = scale * matrix[i, j] * scale
        work[i, i] = scale * matrix[i, i] * scale + _ROUNDING
    return cholesky(work)
