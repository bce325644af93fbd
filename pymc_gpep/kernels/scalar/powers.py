"""Powers of the probabilities of two classes, and their averages over a normal g.

`average_of` averages p(1 | g)ᵃ p(0 | g)ᵇ. The powers a, b ≥ 0 are the rows of `powers` (2, n). For a group of rows,
they are the numbers of rows in class 1 and in class 0. Arrays as in `pymc_gpep.likelihoods.local_computations`.

The standard density is ℓ(g) = a log σ(g) + b log σ(−g), σ(x) = 1 / (1 + e⁻ˣ). The powers are the rows of `shapes` (2,
n). Binomial and negative binomial counts have this form, as do logistic densities (a = b = 1) and their tail
probabilities. Arrays as in `pymc_gpep.likelihoods.standard_density`.
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.special.logistic_average import ROOM as LOGISTIC_ROOM
from pymc_gpep.kernels.special.logistic_average import average_log_logistic, log_logistic
from pymc_gpep.kernels.special.normal import write_derivatives
from pymc_gpep.kernels.special.unimodal_average import (
    LOGISTIC,
    NORMAL,
    ROOM,
    SOME_AND_NONE,
    log_density_derivatives,
    log_unimodal_normal,
)


@kernel
def average_of(kind, mean, variance, powers, out, slopes):
    """Write results of `log_unimodal_normal` into `out` (5, n), and slopes in the powers into `slopes` (2, n)."""
    room = np.empty(ROOM)
    for i in range(len(mean)):
        terms = log_unimodal_normal(kind, powers[0, i], powers[1, i], mean[i], variance[i], room)
        for k in range(5):
            out[k, i] = terms[k]
        for k in range(2):
            slopes[k, i] = terms[5 + k]


@kernel
def logit(mean, variance, powers, out):
    """Write log E σ(g)ᵃ σ(−g)ᵇ over normal g and four derivatives in the mean into `out` (5, n); a, b = `powers`."""
    average_of(LOGISTIC, mean, variance, powers, out, np.empty(powers.shape))


@kernel
def probit(mean, variance, powers, out):
    """Write log E Φ(g)ᵃ Φ(−g)ᵇ over normal g and four derivatives in the mean into `out` (5, n); a, b = `powers`."""
    average_of(NORMAL, mean, variance, powers, out, np.empty(powers.shape))


@kernel
def complementary_log_log(mean, variance, powers, out):
    """Write log E (1 − exp(−eᵍ))ᵃ exp(−b eᵍ) over normal g and four derivatives in the mean; a, b = `powers`."""
    average_of(SOME_AND_NONE, mean, variance, powers, out, np.empty(powers.shape))


@kernel
def derivatives(g, shapes, out, slopes):
    """Write ℓ(g) and its first three derivatives into `out` (4, n), their slopes in a and b into `slopes`."""
    for i in range(len(g)):
        write_derivatives(out, i, 1.0, log_density_derivatives(LOGISTIC, shapes[0, i], shapes[1, i], g[i]))
        log_p, p, q = log_logistic(g[i])
        slopes[0, 0, i] = log_p
        slopes[0, 1, i] = q
        slopes[0, 2, i] = -p * q
        slopes[1, 0, i] = log_logistic(-g[i])[0]
        slopes[1, 1, i] = -p
        slopes[1, 2, i] = -p * q


@kernel
def average(mean, variance, shapes, out, slopes):
    """Write log E exp ℓ(g) over normal g and four derivatives in the mean into `out`, slopes in a, b into `slopes`."""
    average_of(LOGISTIC, mean, variance, shapes, out, slopes)


@kernel
def average_log(mean, variance, shapes, out, slopes):
    """Write E ℓ(g) over normal g and slopes in mean and variance into `out`, slopes in a and b into `slopes`."""
    room = np.empty(LOGISTIC_ROOM)
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
