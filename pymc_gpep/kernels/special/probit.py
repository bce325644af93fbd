"""Integrals of normal distribution functions over a normal variable: products of Φ, and E log Φ.

The average product is ∫ φ(x) ∏_j Φ(a_j x + d_j) dx, with a factor for each class j other than `y`. `slopes` and
`offsets` (c,) are a and d; their entry y is not read. The multinomial probit likelihood of one point is such an
integral, and so is its average over independent latent values.

The integral is computed by the trapezoid rule. On the line x + iη the integrand is at most exp(κ η² / 2) times its
value at x, κ = 1 + Σ a_j². For |φ(t + iη)| = exp(η²/2) φ(t), so |Φ(t + iη)| is at most exp(η²/2) Φ(t). With the step h,
the relative error is then at most 2 exp(κ η²/2 − 2πη/h) (Trefethen and Weideman 2014, theorem 5.1). The best η gives 2
exp(−2π²/(κ h²)). So the step follows from the required number of digits, for any d_j. The integrand is log-concave with
a curvature between 1 and κ, so nodes are needed only around its mode.

In E log Φ (`log_probit_normal`), −log Φ falls from f²/2 on the left, through 0.69, to the Gaussian tail Φ(−f) on the
right. If the normal density is narrow, or its mean is far from 0, the product is nearly a normal density. The
trapezoid rule about its mode suffices. If the density is wide, nodes are dense about 0
(`pymc_gpep.kernels.special.unimodal_average`).
"""

import math

import numpy as np
from scipy import special

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.special.normal import log_ndtr_and_hazard, probit_moments
from pymc_gpep.kernels.special.unimodal_average import FURTHEST, WIDEST, sinh_rule

_LOG_ERROR = math.log(1e-15)
LOWEST_LOG_WEIGHT = -40.0
"""A node is omitted if the log of its weight, relative to the weight at the mode, is below this."""
_FURTHEST_NODE = math.sqrt(-2.0 * LOWEST_LOG_WEIGHT)  # No node is farther from the mode.
_MAX_NEWTON_STEPS = 100


@kernel
def log_integrand(x, slopes, offsets, y, hazards):
    """Return log(φ(x) ∏ Φ) + ½ log 2π, and write φ/Φ of the other classes into `hazards`; 0 for class y."""
    total = -0.5 * x * x
    for j in range(slopes.shape[0]):
        hazards[j] = 0.0
        if j != y:
            log_cdf, hazards[j] = log_ndtr_and_hazard(slopes[j] * x + offsets[j])
            total += log_cdf
    return total


@kernel
def near_mode(slopes, offsets, y, hazards):
    """Return a point near the mode of the integrand, at a distance that is small compared with its width.

    The slope of the log integrand is convex and decreasing, as φ/Φ is (Sampford 1953), and positive at 0. So
    Newton's method from 0 approaches the mode from the left and never passes it.
    """
    x = 0.0
    for _ in range(_MAX_NEWTON_STEPS):
        slope = -x
        curvature = 1.0
        for j in range(slopes.shape[0]):
            hazards[j] = 0.0
            if j != y:
                # In the tail the hazard h at t has h (h + t) ≈ 1, but h + t would lose its digits.
                _, hazards[j], bend, _ = probit_moments(slopes[j] * x + offsets[j])
                slope += slopes[j] * hazards[j]
                curvature += slopes[j] * slopes[j] * bend
        x += slope / curvature
        if not slope * slope > 1e-4 * curvature:
            break
    return x


@kernel
def trapezoid_rule(curvature):
    """Return the step of the trapezoid rule for the largest curvature κ, and the most nodes on each side."""
    step = math.pi * math.sqrt(-2.0 / (curvature * _LOG_ERROR))
    return step, int(_FURTHEST_NODE / step) + 1


_WIDE = 0.5  # For larger variances nodes are dense about 0.
_FAR_LEFT = -6.5  # Left of this mean, in standard deviations, poles of φ/Φ do not matter.
_FAR_RIGHT = 4.0  # If N(f | m, v) Φ(−f) has a larger mode, the mean counts as far right.
_STRIP = 2.8  # Distance from the real line within which Φ has no zeros.
_LOG_ERROR_OF_AVERAGE = math.log(1e-14)
_RANGE = 8.5  # A standard normal variable exceeds this with probability 1e-17.
_NEGLIGIBLE = -0.5 * _RANGE * _RANGE
_SQRT_HALF = math.sqrt(0.5)
_INV_SQRT_2PI = 1.0 / math.sqrt(2.0 * math.pi)

_NODES, _WEIGHTS = sinh_rule(2.0, 0.075, -FURTHEST, 13.5)


def _tabulated() -> np.ndarray:
    """Return −log Φ(f), λ = φ/Φ and λ(λ + f) at the nodes f, times the weights of the rule."""
    tail = _NODES < 0.0
    scaled = special.erfcx(-np.where(tail, _NODES, 0.0) / math.sqrt(2.0))
    log_p = np.where(tail, np.log(0.5 * scaled) - 0.5 * _NODES**2, special.log_ndtr(_NODES))
    hazard = np.exp(-0.5 * _NODES**2 - log_p) * _INV_SQRT_2PI
    hazard[tail] = math.sqrt(2.0 / math.pi) / scaled[tail]
    far = _NODES < -100.0  # λ + f would lose its digits; the series has full precision.
    inverse = np.where(far, 1.0 / np.where(far, _NODES, 1.0), 0.0) ** 2
    curvature = np.where(far, 1.0 - inverse * (1.0 - inverse * (6.0 - 50.0 * inverse)), hazard * (hazard + _NODES))
    return np.stack([-log_p, hazard, curvature]) * _WEIGHTS


_VALUES, _HAZARDS, _CURVATURES = _tabulated()


@kernel
def _sum(mean, sd, first, step, nodes):
    """Return the averages of `log_probit_normal`, by the trapezoid rule in z = (f − mean) / sd."""
    value = 0.0
    slope = 0.0
    second = 0.0
    for k in range(nodes):
        z = first + k * step
        weight = math.exp(-0.5 * z * z)
        log_p, hazard, curvature, _ = probit_moments(mean + sd * z)
        value -= weight * log_p
        slope += weight * hazard
        second += weight * curvature
    factor = step * _INV_SQRT_2PI
    return factor * value, factor * slope, factor * second


@kernel
def _mode(mean, sd):
    """Return an approximate mode of −N(f) log Φ(f), in z = (f − mean) / sd, by Newton's method."""
    z = -mean * sd / (1.0 + sd * sd) if mean > 0.0 else 0.0
    for _ in range(4):
        log_p, hazard, curvature, _ = probit_moments(mean + sd * z)
        rate = -hazard / log_p if log_p < 0.0 else mean + sd * z
        fall = rate * rate + curvature / log_p if log_p < 0.0 else 1.0
        z -= (z + sd * rate) / (1.0 + sd * sd * max(fall, 0.0))
    return z


@kernel
def log_probit_normal(mean, variance):
    """Return averages of −log Φ(f), of φ(f)/Φ(f) and of −(log Φ)″(f) over f ~ N(mean, variance)."""
    sd = math.sqrt(variance)
    if variance >= WIDEST:  # −log Φ is f²/2 for f < 0, else 0.
        z = mean / sd
        density, below = _INV_SQRT_2PI * math.exp(-0.5 * z * z), 0.5 * math.erfc(z * _SQRT_HALF)
        return 0.5 * variance * ((1.0 + z * z) * below - z * density), sd * (density - z * below), below
    if variance < _WIDE:
        strip = _STRIP / max(sd, 1e-300)
        best = math.sqrt(-2.0 * _LOG_ERROR_OF_AVERAGE / (1.0 + variance))
        strip = min(strip, best)
        step = 2.0 * math.pi * strip / (0.5 * (1.0 + variance) * strip * strip - _LOG_ERROR_OF_AVERAGE)
        return _sum(mean, sd, _mode(mean, sd) - _RANGE, step, int(2.0 * _RANGE / step) + 2)
    if mean < _FAR_LEFT * sd:
        step = math.pi * math.sqrt(-2.0 / _LOG_ERROR_OF_AVERAGE)
        return _sum(mean, sd, -_RANGE, step, int(2.0 * _RANGE / step) + 2)
    mode = mean / (1.0 + variance)
    if mode > _FAR_RIGHT:
        step = 0.4 / sd
        first = (mode - mean - 12.0) / sd
        return _sum(mean, sd, first, step, 53)
    value = 0.0
    slope = 0.0
    second = 0.0
    # Stop far left of both the mean and 0, where all further terms are negligible.
    left = min(mean, 0.0) - _RANGE * sd
    for k in range(len(_NODES) - 1, -1, -1):
        if _NODES[k] < left:
            break
        z = (_NODES[k] - mean) / sd
        exponent = -0.5 * z * z
        weight = math.exp(exponent)
        value += weight * _VALUES[k]
        slope += weight * _HAZARDS[k]
        second += weight * _CURVATURES[k]
    factor = _INV_SQRT_2PI / sd
    return factor * value, factor * slope, factor * second
