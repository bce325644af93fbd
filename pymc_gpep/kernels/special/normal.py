"""Standard normal distribution, accurate to the last digits in both tails."""

import math

from numba.core import types

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.external import scipy_function

LOG_2PI = math.log(2.0 * math.pi)
_SQRT_HALF = math.sqrt(0.5)
_MILLS_DEPTH = 50  # Number of terms of the continued fraction for full precision at z = −4.
_SQRT_2_PI = math.sqrt(2.0 / math.pi)

# exp(x²) erfc(x): Φ in its tail without the Gaussian factor.
_erfcx = scipy_function("special.cython_special", "__pyx_fuse_1erfcx", types.float64(types.float64))


@kernel
def log_ndtr_and_hazard(z):
    """Return log Φ(z) and its derivative φ(z)/Φ(z), the hazard of the normal distribution."""
    if z < 0.0:
        scaled = 0.5 * _erfcx(-z * _SQRT_HALF)
        return math.log(scaled) - 0.5 * z * z, 0.5 * _SQRT_2_PI / scaled
    tail = 0.5 * math.erfc(z * _SQRT_HALF)
    return math.log1p(-tail), 0.5 * _SQRT_2_PI * math.exp(-0.5 * z * z) / (1.0 - tail)


@kernel
def log_ndtr(z):
    """Return log Φ(z), the log of the standard normal distribution function."""
    return log_ndtr_and_hazard(z)[0]


@kernel
def log_scaled_ndtr(z):
    """Return log Φ(z) + ½ z² for z < 0: the logarithm of Mills' ratio minus ½ log 2π."""
    return math.log(0.5 * _erfcx(-z * _SQRT_HALF))


@kernel
def hazard(z):
    """Return the hazard φ(z)/Φ(z), for the standard normal density φ and distribution function Φ."""
    return log_ndtr_and_hazard(z)[1]


@kernel
def probit_moments(z):
    """Return log Φ(z), λ = φ(z)/Φ(z), λ(λ + z) and 1 − λ(λ + z). Moments of N(x) Φ(x) follow from these.

    λ(λ + z) is the curvature −(log Φ)″, in (0, 1); its complement is the variance of a standard normal truncated to x >
    −z. In the tail, λ + z and 1 − λ(λ + z) would lose their digits. The continued fraction of Mills' ratio has no
    cancellation. It is λ = t + k₁ with kᵢ = i / (t + kᵢ₊₁), t = −z.
    """
    log_p, h = log_ndtr_and_hazard(z)
    if z > -4.0:
        curvature = h * (h + z)
        return log_p, h, curvature, 1.0 - curvature
    t = -z
    k3 = 0.0
    for i in range(_MILLS_DEPTH, 2, -1):
        k3 = i / (t + k3)
    k2 = 2.0 / (t + k3)
    k1 = 1.0 / (t + k2)
    return log_p, h, h * k1, k1 * k1 * (t + 2.0 * k2 - k3) / (t + k3)


@kernel
def log_ndtr_derivatives(z):
    """Return log Φ(z) and its first four derivatives.

    The third and fourth derivatives are cumulants of x + z, for a standard normal x truncated to x > −z. In the tail
    x + z is nearly exponential, so they follow from its raw moments without a loss of digits. Ratios of successive
    moments are the kᵢ of the continued fraction of `probit_moments`.
    """
    log_p, h = log_ndtr_and_hazard(z)
    if z > -4.0:
        mean = h + z
        curvature = h * mean
        slope = curvature * mean - h * (1.0 - curvature)  # Slope of −curvature.
        fourth = curvature * (1.0 - curvature) * 2.0 - slope * (h + mean)
        return log_p, h, -curvature, slope, fourth
    t = -z
    k5 = 0.0
    for i in range(_MILLS_DEPTH, 4, -1):
        k5 = i / (t + k5)
    k4 = 4.0 / (t + k5)
    k3 = 3.0 / (t + k4)
    k2 = 2.0 / (t + k3)
    k1 = 1.0 / (t + k2)
    third = k1 * (k2 * (k3 - 3.0 * k1) + 2.0 * k1 * k1)
    fourth = k1 * (k2 * (k3 * (k4 - 4.0 * k1) - 3.0 * k1 * (k2 - 4.0 * k1)) - 6.0 * k1 * k1 * k1)
    return log_p, h, -h * k1, third, fourth


@kernel
def write_derivatives(out, i, slope, terms):
    """Write F(slope · x + b) and derivatives in x into column i of `out`. `terms` are F and its derivatives."""
    value, first, second, third, fourth = terms
    square = slope * slope
    out[0, i] = value
    out[1, i] = slope * first
    out[2, i] = square * second
    out[3, i] = slope * square * third
    if len(out) > 4:
        out[4, i] = square * square * fourth
