"""The normal distribution of variance 1, truncated on one side, and utilities of the probit of one latent value.

Given labels these utilities are independent normals whose signs are known (Albert and Chib 1993).
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.scalar.probit import class_sign

_NAIVE_ABOVE = -0.4  # bound above which trying normals is the fastest way to a truncated one


@kernel
def draw_below(rng, mean, top):
    """A draw of N(mean, 1) truncated to lie below `top`; both are finite.

    Far out by Robert's (1995) rejection from an exponential, in terms of the distance to `top`, which keeps its digits.
    """
    if top - mean > _NAIVE_ABOVE:
        while True:
            x = mean + rng.standard_normal()
            if x <= top:
                return x
    least = mean - top
    excess = 2.0 / (least + math.sqrt(least * least + 4.0))  # of the exponential's rate over `least`
    while True:
        distance = rng.standard_exponential() / (least + excess)
        if 0.5 * (distance - excess) ** 2 <= rng.standard_exponential():
            return top - distance


@kernel
def draw_by_sign(rng, f, labels, v):
    """Draw utilities v ~ N(f, 1), positive where the label is 1 and negative where it is 0, exactly.

    Parameters
    ----------
    rng : numpy.random.Generator
    f : ndarray, shape (1, n)
        Latent values.
    labels : ndarray of int64, shape (n,)
        0 or 1.
    v : ndarray, shape (1, n)
        The draw is put here; NaN for points whose latent value is not finite.
    """
    for i in range(f.shape[1]):
        sign = class_sign(labels[i])
        mean = -sign * f[0, i]
        v[0, i] = -sign * draw_below(rng, mean, 0.0) if math.isfinite(mean) else np.nan
