"""Newton's direction for the mode of latent values f ~ N(m, K), in matrix products with K alone.

W (n, c, c) holds minus the second derivatives of the log likelihood at each point. The direction d solves
(W + K⁻¹) d = r. It is wanted together with K⁻¹ d, by which the latent values are known: K may be singular.
"""

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.linalg.lapack import copy_into, multiply_functions


@kernel
def inner_product(x, y):
    """Sum of the products of the elements of two (c, n) arrays."""
    total = 0.0
    for a in range(x.shape[0]):
        for i in range(x.shape[1]):
            total += x[a, i] * y[a, i]
    return total


@kernel
def newton_direction(k, w, r, reduction, limit, d, pull, left):
    """Solve (W + K⁻¹) d = r for d and `pull` = K⁻¹ d, (c, n), approximately: any number of steps gives an ascent.

    The method is conjugate gradients with the preconditioner K. The residuals it goes through are then K⁻¹ d as they
    stand, and the spectrum that decides the speed is that of I + KW. W all but vanishes at the points that are
    classified with certainty, so that a large prior variance does little harm.

    Parameters
    ----------
    k : (1 or c, n, n) array
    w : (n, c, c) array
    r : (c, n) array
    reduction : float
        The K-norm that the residual is to fall to, relative to that of r.
    limit : int
        Limit on steps.
    d, pull, left : (c, n) arrays
        Overwritten with the direction, K⁻¹ times it, and the rest of r.
    """
    c, n = r.shape
    d[:] = 0.0
    pull[:] = 0.0
    copy_into(left, r)
    conditioned = np.empty((c, n))
    multiply_functions(k, left, conditioned)
    search = conditioned.copy()
    search_pull = left.copy()
    curved = np.empty((c, n))
    size = inner_product(left, conditioned)
    enough = reduction * reduction * size
    gain = np.inf
    total = 0.0
    for _ in range(limit):
        if not (size > 0.0 and (size > enough or gain > reduction * reduction * total)):
            break
        for i in range(n):
            for a in range(c):
                curved[a, i] = search_pull[a, i]
                for e in range(c):
                    curved[a, i] += w[i, a, e] * search[e, i]
        length = size / inner_product(search, curved)
        gain = length * size
        total += gain
        for a in range(c):
            for i in range(n):
                d[a, i] += length * search[a, i]
                pull[a, i] += length * search_pull[a, i]
                left[a, i] -= length * curved[a, i]
        multiply_functions(k, left, conditioned)
        new_size = inner_product(left, conditioned)
        ratio = new_size / size
        size = new_size
        for a in range(c):
            for i in range(n):
                search[a, i] = conditioned[a, i] + ratio * search[a, i]
                search_pull[a, i] = left[a, i] + ratio * search_pull[a, i]
