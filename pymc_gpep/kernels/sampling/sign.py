"""Utilities of the probit of one latent value: independent normals, their signs known (Albert and Chib 1993)."""

import math

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.sampling.truncated import draw_below
from pymc_gpep.kernels.scalar.probit import class_sign

__all__ = ["draw_by_sign"]


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
