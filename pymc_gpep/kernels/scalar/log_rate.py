"""ℓ(g) = w g − eᵍ, or log(1 − exp(−eᵍ)), and their averages over a normal g, the logarithm of a rate.

Row 0 of `shapes` (2, n) is the weight w ≥ 0. Row 1 is 1 where at least one event was seen, and not how many: that is
the second ℓ, without w. A time until an event has the weight 1 if it was seen, and 0 if it was not yet. A sum of
times has as many as it is made of. Arrays as in `pymc_gpep.likelihoods.standard_density`.
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.special.poisson_average import ROOM as RATE_ROOM
from pymc_gpep.kernels.special.poisson_average import log_poisson_normal
from pymc_gpep.kernels.special.some_average import average_log_some
from pymc_gpep.kernels.special.unimodal_average import ROOM, SOME, log_density_derivatives, log_unimodal_normal

__all__ = ["average", "average_log", "derivatives"]


@kernel
def derivatives(g, shapes, out, slopes):
    """ℓ and its first three derivatives into `out` (4, n), those in w of the first three into `slopes` (2, 3, n)."""
    slopes[:] = 0.0
    for i in range(len(g)):
        if shapes[1, i] > 0.0:
            value, first, second, third, _ = log_density_derivatives(SOME, 0.0, 0.0, g[i])
            out[0, i] = value
            out[1, i] = first
            out[2, i] = second
            out[3, i] = third
            continue
        rate = math.exp(g[i])
        weight = shapes[0, i] if shapes[0, i] >= 0.0 else math.nan
        out[0, i] = (weight * g[i] if weight != 0.0 else 0.0) - rate
        out[1, i] = weight - rate
        out[2, i] = -rate
        out[3, i] = -rate
        slopes[0, 0, i] = g[i]
        slopes[0, 1, i] = 1.0


@kernel
def average(mean, variance, shapes, out, slopes):
    """log E exp ℓ and its first four derivatives in the mean into `out` (5, n), that in w into `slopes` (2, n)."""
    room, rate_room = np.empty(ROOM), np.empty(RATE_ROOM)
    for i in range(len(mean)):
        weight, m, v = shapes[0, i], mean[i], variance[i]
        slopes[1, i] = 0.0
        if shapes[1, i] > 0.0:
            value, first, second, third, fourth, _, _ = log_unimodal_normal(SOME, 0.0, 0.0, m, v, room)
            slopes[0, i] = 0.0
        elif weight >= 0.0 and 0.0 <= v < math.inf and math.isfinite(m):
            value, first, second, third, fourth = log_poisson_normal(m, v, weight, rate_room)
            value += math.lgamma(weight + 1.0)
            slopes[0, i] = m + v * first
        else:
            value = first = second = third = fourth = math.nan
            slopes[0, i] = math.nan
        out[0, i] = value
        out[1, i] = first
        out[2, i] = second
        out[3, i] = third
        out[4, i] = fourth


@kernel
def average_log(mean, variance, shapes, out, slopes):
    """E ℓ and its derivatives in mean and variance into `out` (3, n), that in w into `slopes` (2, n)."""
    for i in range(len(mean)):
        weight, m, v = shapes[0, i], mean[i], variance[i]
        slopes[1, i] = 0.0
        if not (0.0 <= v < math.inf and math.isfinite(m) and (weight >= 0.0 or shapes[1, i] > 0.0)):
            out[:, i] = math.nan
            slopes[0, i] = math.nan
        elif shapes[1, i] > 0.0:
            value, first, second = average_log_some(m, v)
            out[0, i] = value
            out[1, i] = first
            out[2, i] = 0.5 * second
            slopes[0, i] = 0.0
        else:
            rate = math.exp(m + 0.5 * v)
            out[0, i] = weight * m - rate
            out[1, i] = weight - rate
            out[2, i] = -0.5 * rate
            slopes[0, i] = m
