"""log E σ(d), d ~ N(m, v), and two derivatives from the mixture of `logistic_mixture`: quick, for many m with one v.

The mixture has an absolute error, and the tails of a normal. With H(m) = log E σ(d),

    H(m) = m + v/2 + H(−m − v)  and  H(m) = log(1 − exp H(−m))

bring every mean to where H is largest for it, |m| ≤ v/2 or beyond one half. Neither H nor its derivatives then lose
digits in a tail.
"""

import math

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.special.logistic_mixture import MIXTURE_WEIGHTS
from pymc_gpep.kernels.special.tabulated_normal import cdf_and_density

__all__ = ["log_logistic_mixture"]

_REACH = 8.9  # standard deviations, of the table


@kernel
def _average(mean, scales):
    """E σ(d) and two derivatives in the mean."""
    tail = 0.0
    slope = 0.0
    curvature = 0.0
    for i in range(len(scales)):
        s = abs(scales[i] * mean)
        if s < _REACH:
            p, density = cdf_and_density(-s)
            weight = MIXTURE_WEIGHTS[i]
            tail += weight * p
            slope += weight * scales[i] * density
            curvature -= weight * scales[i] ** 3 * density
    return 1.0 - tail if mean > 0.0 else tail, slope, curvature * mean


@kernel
def log_logistic_mixture(mean, variance, scales):
    """H(m), H′ and H″, with the `mixture_scales` of the variance."""
    if mean < -0.5 * variance:
        value, slope, curvature = _average(-mean - variance, scales)
        ratio = slope / value
        return mean + 0.5 * variance + math.log(value), 1.0 - ratio, curvature / value - ratio * ratio
    if mean > 0.5 * variance:
        value, slope, curvature = _average(mean - variance, scales)
        rest = math.exp(0.5 * variance - mean)  # σ(−d) on average is rest · value
        kept = 1.0 - rest * value
        first = rest * (value - slope) / kept
        second = -rest * (value - 2.0 * slope + curvature) / kept
        return math.log1p(-rest * value), first, second - first * first
    value, slope, curvature = _average(mean, scales)
    ratio = slope / value
    return math.log(value), ratio, curvature / value - ratio * ratio
