"""ℓ(g) = a log σ(g) + b log σ(−g), σ(x) = 1 / (1 + e⁻ˣ), and its averages over a normal g.

The powers a, b ≥ 0 are the rows of `shapes` (2, n). Counts of successes and failures are such, negative binomial
counts, and logistic densities (a = b = 1) with their tails beyond a bound. Arrays as in
`pymc_gpep.likelihoods.standard_density`.
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.scalar.class_powers import average_of
from pymc_gpep.kernels.special.logistic_average import ROOM, average_log_logistic, log_logistic
from pymc_gpep.kernels.special.unimodal_average import LOGISTIC, log_density_derivatives


@kernel
def derivatives(g, shapes, out, slopes):
    """ℓ and its first three derivatives into `out` (4, n), those in a and b of the first three into `slopes`."""
    for i in range(len(g)):
        value, first, second, third, _ = log_density_derivatives(LOGISTIC, shapes[0, i], shapes[1, i], g[i])
        out[0, i] = value
        out[1, i] = first
        out[2, i] = second
        out[3, i] = third
        log_p, p, q = log_logistic(g[i])
        slopes[0, 0, i] = log_p
        slopes[0, 1, i] = q
        slopes[0, 2, i] = -p * q
        slopes[1, 0, i] = log_logistic(-g[i])[0]
        slopes[1, 1, i] = -p
        slopes[1, 2, i] = -p * q


@kernel
def average(mean, variance, shapes, out, slopes):
    """log E exp ℓ and its first four derivatives in the mean into `out` (5, n), those in a and b into `slopes`."""
    average_of(LOGISTIC, mean, variance, shapes, out, slopes)


@kernel
def average_log(mean, variance, shapes, out, slopes):
    """E ℓ and its derivatives in mean and variance into `out` (3, n), those in a and b into `slopes` (2, n)."""
    room = np.empty(ROOM)
    for i in range(len(mean)):
        if not (0.0 <= variance[i] < math.inf and math.isfinite(mean[i])):
            out[:, i] = math.nan
            slopes[:, i] = math.nan
            continue
        a, b = shapes[0, i], shapes[1, i]
        value, slope, curvature = average_log_logistic(mean[i], variance[i], room)
        other = average_log_logistic(-mean[i], variance[i], room)[0]
        out[0, i] = a * value + b * other
        out[1, i] = a * slope - b * (1.0 - slope)
        out[2, i] = 0.5 * (a + b) * curvature
        slopes[0, i] = value
        slopes[1, i] = other
