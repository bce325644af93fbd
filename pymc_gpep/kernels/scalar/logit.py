"""The logistic likelihood of two classes, p(y | f) = σ((2y − 1) f), σ(x) = 1 / (1 + e⁻ˣ), and its averages.

Arrays as in `pymc_gpep.likelihoods.local_computations`; classes are 0 and 1, and there are no parameters. Write σ(sf),
s = 2y − 1: a change of the sign of f turns one class into the other.
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import kernel

__all__ = ["average", "average_log", "bound", "derivatives"]

_LOG_ERROR = math.log(1e-14)
_RANGE = 8.5  # of a standard normal variable, to 1e-16
_INV_SQRT_2PI = 1.0 / math.sqrt(2.0 * math.pi)


@kernel
def _sign(label):
    """1 for class 1, −1 for class 0, NaN for what is no class."""
    return math.nan if label < 0 or label > 1 else 2.0 * label - 1.0


@kernel
def _log_logistic(x):
    """log σ(x), σ(x), σ(−x)."""
    ratio = math.exp(-abs(x))
    larger = 1.0 / (1.0 + ratio)
    if x > 0.0:
        return -math.log1p(ratio), larger, ratio * larger
    return x - math.log1p(ratio), ratio * larger, larger


@kernel
def derivatives(f, y, parameters, out):
    """log p(y_i | f_i) and its first three derivatives into `out` (4, n)."""
    for i in range(len(f)):
        sign = _sign(y[i])
        log_p, p, other = _log_logistic(sign * f[i])
        out[0, i] = log_p
        out[1, i] = sign * other
        out[2, i] = -p * other * sign * sign
        out[3, i] = sign * p * other * (p - other)


@kernel
def _tilted_mode(mean, variance):
    """The mode of N(f | mean, variance) σ(f): f = mean + variance σ(−f), by Newton's method kept in its bracket."""
    low = mean
    high = mean + variance
    f = min(max(mean, 0.0), high)
    for _ in range(100):
        _, p, other = _log_logistic(f)
        excess = mean + variance * other - f
        if excess > 0.0:
            low = f
        else:
            high = f
        step = excess / (1.0 + variance * p * other)
        f += step
        if not (low <= f <= high):
            f = 0.5 * (low + high)
        if abs(step) <= 1e-3 * math.sqrt(variance) + 1e-9 * abs(f):
            break
    return f


@kernel
def _unlikely(mean, variance):
    """log E σ(f), f ~ N(mean ≤ 0, variance), and its first four derivatives in the mean.

    The trapezoid rule about the mode of N(f) σ(f); with ℓ = log σ and cumulants under that tilted density the
    derivatives are E ℓ′, E ℓ″ + Var ℓ′, E ℓ‴ + 3 Cov(ℓ″, ℓ′) + κ₃(ℓ′) and so on.
    """
    sd = math.sqrt(variance)
    strip = min(math.pi / max(sd, 1e-300), math.sqrt(-2.0 * _LOG_ERROR))
    step = 2.0 * math.pi * strip / (0.5 * strip * strip - _LOG_ERROR)
    mode = _tilted_mode(mean, variance)
    centre = (mode - mean) / sd if sd > 0.0 else 0.0
    top = _log_logistic(mode)[0] - 0.5 * centre * centre
    below = int(_RANGE / step) + 1
    nodes = below + int((_RANGE + sd) / step) + 2
    weights, p = np.empty((2, nodes))
    total = 0.0
    average = 0.0  # of σ(f)
    for k in range(nodes):
        z = centre + (k - below) * step
        log_p, p[k], _ = _log_logistic(mean + sd * z)
        weights[k] = math.exp(log_p - 0.5 * z * z - top)
        total += weights[k]
        average += weights[k] * p[k]
    average /= total
    second = 0.0
    third = 0.0
    fourth = 0.0
    variance_1 = 0.0  # of ℓ′
    third_1 = 0.0
    fourth_1 = 0.0
    product = 0.0
    for k in range(nodes):
        product += weights[k] * p[k] * (1.0 - p[k])
    product /= total
    cross = 0.0
    square_2 = 0.0
    mixed = 0.0
    cross_3 = 0.0
    for k in range(nodes):
        weight = weights[k] / total
        other = 1.0 - p[k]
        d1 = average - p[k]
        l2 = -p[k] * other
        l3 = l2 * (other - p[k])
        d2 = l2 + product
        third += weight * l3
        fourth += weight * l2 * (1.0 + 6.0 * l2)
        variance_1 += weight * d1 * d1
        third_1 += weight * d1 * d1 * d1
        fourth_1 += weight * d1 * d1 * d1 * d1
        cross += weight * d1 * d2
        square_2 += weight * d2 * d2
        mixed += weight * d1 * d1 * d2
        cross_3 += weight * d1 * l3
    second = variance_1 - product
    return (
        top + math.log(step * _INV_SQRT_2PI * total),
        1.0 - average,
        second,
        third + 3.0 * cross + third_1,
        fourth + 4.0 * cross_3 + 3.0 * square_2 + 6.0 * mixed + fourth_1 - 3.0 * variance_1 * variance_1,
    )


@kernel
def _complement(value, first, second, third, fourth):
    """log(1 − eʰ) and its first four derivatives, from those of h."""
    p = math.exp(value)
    r = p / (1.0 - p)
    f2 = r * (1.0 + r)
    f3 = f2 * (1.0 + 2.0 * r)
    f4 = f2 * (1.0 + 6.0 * f2)
    square = first * first
    return (
        math.log1p(-p),
        -r * first,
        -r * second - f2 * square,
        -r * third - 3.0 * f2 * first * second - f3 * square * first,
        -r * fourth
        - f2 * (4.0 * first * third + 3.0 * second * second)
        - 6.0 * f3 * square * second
        - f4 * square * square,
    )


@kernel
def average(mean, variance, y, parameters, out):
    """log ∫ σ(sf) N(f | μ, D) df and its first four derivatives in μ into `out` (5, n)."""
    for i in range(len(mean)):
        sign = _sign(y[i])
        likely = sign * mean[i] > 0.0
        value, first, second, third, fourth = _unlikely(-abs(mean[i]) * abs(sign), variance[i])
        if likely:
            value, first, second, third, fourth = _complement(value, first, second, third, fourth)
            sign = -sign
        out[0, i] = value
        out[1, i] = sign * first
        out[2, i] = second
        out[3, i] = sign * third
        out[4, i] = fourth


@kernel
def average_log(mean, variance, y, parameters, out):
    """∫ log σ(sf) N(f | m, v) df and its derivatives in m and v into `out` (3, n)."""
    for i in range(len(mean)):
        sign = _sign(y[i])
        sd = math.sqrt(variance[i])
        strip = min(math.pi / max(sd, 1e-300), math.sqrt(-2.0 * _LOG_ERROR))
        step = 2.0 * math.pi * strip / (0.5 * strip * strip - _LOG_ERROR)
        nodes = int((_RANGE + min(sd, 40.0)) / step) + 1
        value = 0.0
        first = 0.0
        second = 0.0
        for k in range(-nodes, nodes + 1):
            z = k * step
            weight = math.exp(-0.5 * z * z)
            log_p, p, other = _log_logistic(sign * mean[i] + sd * z)
            value += weight * log_p
            first += weight * other
            second += weight * p * other
        factor = step * _INV_SQRT_2PI
        out[0, i] = factor * value
        out[1, i] = factor * sign * first
        out[2, i] = -0.5 * factor * second


@kernel
def bound(mean, variance, y, parameters, out):
    """The bound of Jaakkola and Jordan (2000) at its best, log σ(ς) + ½ (sm − ς), ς² = m² + v, into `out` (3, n).

    The quadratic function below log σ(sf) is log σ(ς) + ½ (sf − ς) − λ (f² − ς²), λ = tanh(ς/2) / 4ς; derivatives of
    the bound are those of its average with ς held.
    """
    for i in range(len(mean)):
        sign = _sign(y[i])
        width = math.sqrt(mean[i] * mean[i] + variance[i])
        log_p, p, other = _log_logistic(width)
        # (σ(ς) − ½) / 2ς; its series where the difference has no digits.
        half = (p - other) / (4.0 * width) if width > 1e-3 else 0.125 - width * width / 96.0
        out[0, i] = log_p + 0.5 * (sign * mean[i] - width)
        out[1, i] = 0.5 * sign - 2.0 * half * mean[i]
        out[2, i] = -half * sign * sign
