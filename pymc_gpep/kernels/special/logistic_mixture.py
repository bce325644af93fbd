"""A logistic function as a mixture of ten normal distribution functions, so that normal averages of it cost little.

The mixture has an absolute error, and the tails of a normal. For logarithms, with H(m) = log E σ(d), d ~ N(m, v),

    H(m) = m + v/2 + H(−m − v)  and  H(m) = log(1 − exp H(−m))

bring every mean to where H is largest for it, |m| ≤ v/2 or beyond one half. Neither H nor its derivatives then lose
digits in a tail.
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.special.tabulated_normal import cdf_and_density

MIXTURE_ERROR = 1.5e-10
"""Largest difference between the logistic function and the mixture."""

# Σ w Φ(s x) ≈ 1 / (1 + e⁻ˣ) in the sense of Monahan and Stefanski (1992), who have up to eight terms; fitted by least
# squares with weights raised where the difference was largest.
_SCALES = np.array(
    [
        0.2168654102192859,
        0.2724443761093447,
        0.3378986247989019,
        0.4182662170949304,
        0.5178642322639669,
        0.6406175536563951,
        0.7907207619184236,
        0.9741798448253929,
        1.201829954038712,
        1.5014079018194169,
    ]
)
_WEIGHTS = np.array(
    [
        2.5131186879369990e-04,
        6.9906903494965462e-03,
        4.6891966972276142e-02,
        1.3994605367665403e-01,
        2.4305038053957009e-01,
        2.7373211849031504e-01,
        1.9614356547872425e-01,
        7.8772897384931498e-02,
        1.3657372323851051e-02,
        5.6364291538780510e-04,
    ]
)
_REACH = 8.9  # standard deviations, of the table


@kernel
def mixture_scales(variance):
    """Scales of the terms once a normal variable of this variance is averaged over."""
    scales = np.empty_like(_SCALES)
    for i in range(len(scales)):
        scales[i] = _SCALES[i] / math.sqrt(1.0 + _SCALES[i] * _SCALES[i] * variance)
    return scales


@kernel
def logistic_of_normal(mean, scales):
    """E σ(d), d ~ N(mean, variance), to `MIXTURE_ERROR`, and its slope, with the `mixture_scales` of the variance."""
    value = 0.0
    slope = 0.0
    for i in range(len(_SCALES)):
        s = scales[i] * mean
        if s > _REACH:
            value += _WEIGHTS[i]
        elif s > -_REACH:
            cdf, density = cdf_and_density(s)
            value += _WEIGHTS[i] * cdf
            slope += _WEIGHTS[i] * scales[i] * density
    return value, slope


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
            weight = _WEIGHTS[i]
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
