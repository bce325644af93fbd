"""Ordered categories, p(y = k | f) = F(κ_(k+1) − f) − F(κ_k − f) with cutpoints κ_1 < ... < κ_(K−1), κ_0 = −∞, κ_K = ∞.

F is Φ, the normal distribution function, or σ, the logistic function. The parameters (K − 1, n) are the cutpoints of
each point. Arrays as in `pymc_gpep.likelihoods.local_computations`. Write a for the upper bound κ_(k+1) − f and b for
the lower bound. Results are NaN for categories above K − 1, and for cutpoints that are not ascending.

The average of F(a) − F(b) over a normal f is a difference of averages of F. So log averages follow from averages of F.
For the logistic function p = σ(a) σ(−b) (1 − exp(b − a)). The last factor does not depend on f, so E log p follows from
E log σ.

With stopping ratios, p(y = k | f) = F(κ_k − f) ∏_{j<k} (1 − F(κ_j − f)) with cutpoints κ_0 … κ_(K−2) in any order. The
last category has only the product. F is symmetric, so log(1 − F(u)) = log F(−u).
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.special.logistic_average import (
    ROOM,
    average_log_logistic,
    log_complement,
    log_logistic,
    log_logistic_normal,
)
from pymc_gpep.kernels.special.normal import LOG_2PI, log_ndtr_derivatives, write_derivatives

_NARROW = 1e-3  # If an interval is narrower, in standard deviations, a series replaces the difference.
_WIDE = 1e8  # If the normal variance is larger, only three moments of the logistic density are used.


@kernel
def _bounds(f, category, parameters, i):
    """Return the bounds a and b of a category minus f, and the width a − b, at point i. NaN for invalid input."""
    last = parameters.shape[0]
    if category < 0 or category > last:
        return math.nan, math.nan, math.nan
    for k in range(1, last):  # Cutpoints of all categories must be ascending.
        if not parameters[k, i] > parameters[k - 1, i]:
            return math.nan, math.nan, math.nan
    upper = parameters[category, i] if category < last else math.inf
    lower = parameters[category - 1, i] if category > 0 else -math.inf
    return upper - f, lower - f, upper - lower


@kernel
def _bounds_of_average(mean, variance, category, parameters, i):
    """Return the result of `_bounds`; NaN also if mean or variance is not finite, or the variance is negative."""
    usable = 0.0 <= variance < math.inf and math.isfinite(mean)
    return _bounds(mean if usable else math.nan, category, parameters, i)


@kernel
def _log_difference(upper, lower):
    """Return log(eᵘ − eˡ) and four derivatives, from u = `upper[0]` > l = `lower[0]` and their derivatives."""
    value, first, second, third, fourth = log_complement(
        lower[0] - upper[0], lower[1] - upper[1], lower[2] - upper[2], lower[3] - upper[3], lower[4] - upper[4]
    )
    return upper[0] + value, upper[1] + first, upper[2] + second, upper[3] + third, upper[4] + fourth


@kernel
def _log_interval(a, b, width):
    """Return log(Φ(a) − Φ(b)) with a − b = `width`, and its first four derivatives in a common shift of a and b.

    An interval right of 0 is reflected, so that Φ keeps its digits. Over a narrow interval the difference would lose
    digits, and the density is approximated by a quadratic function.
    """
    if width * (1.0 + abs(a)) < _NARROW:
        middle, square = 0.5 * (a + b), width * width / 12.0
        value = math.log(width) - 0.5 * (middle * middle + LOG_2PI) + 0.5 * square * (middle * middle - 1.0)
        return value, (square - 1.0) * middle, square - 1.0, 0.0, 0.0
    turned = a + b > 0.0
    upper, lower = (-b, -a) if turned else (a, b)
    terms = log_ndtr_derivatives(upper)
    if lower > -math.inf:
        terms = _log_difference(terms, log_ndtr_derivatives(lower))
    value, first, second, third, fourth = terms
    return (value, -first, second, -third, fourth) if turned else terms


@kernel
def _log_logistic_interval(a, b, width, variance, room):
    """Return log(E σ(a − f) − E σ(b − f)), f ~ N(0, `variance`), and derivatives as in `_log_interval`.

    As a function of f, σ(a − f) − σ(b − f) has the area a − b, the mean (a + b)/2 and the variance π²/3 + (a − b)²/12.
    If the normal density is much wider, only these three numbers are needed.
    """
    middle = 0.5 * (a + b)
    narrow = width * (math.sqrt(variance) + abs(middle)) < _NARROW * variance
    if narrow and variance > _WIDE and abs(middle) < _NARROW * variance:
        whole = variance + math.pi * math.pi / 3.0 + width * width / 12.0
        value = math.log(width) - 0.5 * (middle / whole * middle + LOG_2PI + math.log(whole))
        return value, -middle / whole, -1.0 / whole, 0.0, 0.0
    turned = a + b > 0.0
    upper, lower = (-b, -a) if turned else (a, b)
    terms = log_logistic_normal(upper, variance, room)
    if lower > -math.inf:
        terms = _log_difference(terms, log_logistic_normal(lower, variance, room))
    value, first, second, third, fourth = terms
    return (value, -first, second, -third, fourth) if turned else terms


@kernel
def probit_derivatives(f, y, parameters, out):
    """Write log p(y_i | f_i) of ordered categories with F = Φ and its first three derivatives into `out` (4, n)."""
    for i in range(len(f)):
        a, b, width = _bounds(f[i], y[i], parameters, i)
        write_derivatives(out, i, -1.0, _log_interval(a, b, width))


@kernel
def probit_parameter_derivatives(f, y, parameters, out):
    """Write derivatives in each cutpoint of log p, ∂ log p/∂f and ∂² log p/∂f² into `out` (K − 1, 3, n), for F = Φ.

    ∂ log p/∂κ is φ(a)/p for the upper cutpoint, and −φ(b)/p for the lower cutpoint.
    """
    out[:] = 0.0
    for i in range(len(f)):
        a, b, width = _bounds(f[i], y[i], parameters, i)
        if math.isnan(a):
            out[:, :, i] = math.nan
            continue
        value, first, second, _, _ = _log_interval(a, b, width)
        for side in range(2):
            row = y[i] - side
            bound = b if side else a
            if math.isfinite(bound):
                ratio = math.exp(-0.5 * (bound * bound + LOG_2PI) - value) * (1.0 - 2.0 * side)
                rate = bound + first
                out[row, 0, i] = ratio
                out[row, 1, i] = ratio * rate
                out[row, 2, i] = ratio * (rate * rate - 1.0 - second)


@kernel
def probit_average(mean, variance, y, parameters, out):
    """Write log ∫ p(y | f) N(f | m, v) df for F = Φ and its first four derivatives in m into `out` (5, n).

    The integral is Φ(a/√(1 + v)) − Φ(b/√(1 + v)), with the bounds a and b at f = m.
    """
    for i in range(len(mean)):
        scale = 1.0 / math.sqrt(1.0 + variance[i]) if variance[i] >= 0.0 else math.nan
        a, b, width = _bounds(mean[i], y[i], parameters, i)
        write_derivatives(out, i, -scale, _log_interval(scale * a, scale * b, scale * width))


@kernel
def probit_average_slopes(mean, variance, y, parameters, out):
    """Write the derivatives of `probit_average` in each cutpoint into `out` (K − 1, n)."""
    out[:] = 0.0
    for i in range(len(mean)):
        scale = 1.0 / math.sqrt(1.0 + variance[i]) if variance[i] >= 0.0 else math.nan
        a, b, width = _bounds(mean[i], y[i], parameters, i)
        value = _log_interval(scale * a, scale * b, scale * width)[0]
        if math.isnan(value):
            out[:, i] = math.nan
            continue
        for side in range(2):
            bound = scale * (b if side else a)
            if math.isfinite(bound):
                ratio = scale * math.exp(-0.5 * (bound * bound + LOG_2PI) - value)
                out[y[i] - side, i] = -ratio if side else ratio


@kernel
def _logistic_terms(bound):
    """Return log σ(x), σ(−x), q(x) = σ(x) σ(−x) and q′(x) at x = `bound`."""
    log_p, p, other = log_logistic(bound)
    return log_p, other, p * other, p * other * (other - p)


@kernel
def logit_derivatives(f, y, parameters, out):
    """Write log p(y_i | f_i) of ordered categories with F = σ and its first three derivatives into `out` (4, n)."""
    for i in range(len(f)):
        a, b, width = _bounds(f[i], y[i], parameters, i)
        above, slope_a, q_a, third_a = _logistic_terms(a)
        below, slope_b, q_b, third_b = _logistic_terms(-b)
        out[0, i] = above + below + math.log(-math.expm1(-width))
        out[1, i] = slope_b - slope_a
        out[2, i] = -q_a - q_b
        out[3, i] = third_a - third_b


@kernel
def logit_parameter_derivatives(f, y, parameters, out):
    """Write the results of `probit_parameter_derivatives` into `out`, for F = σ in place of Φ."""
    out[:] = 0.0
    for i in range(len(f)):
        a, b, width = _bounds(f[i], y[i], parameters, i)
        if math.isnan(a):
            out[:, :, i] = math.nan
            continue
        gap = 1.0 / math.expm1(width)
        for side in range(2):
            bound = -b if side else a
            if math.isfinite(bound):
                _, slope, q, third = _logistic_terms(bound)
                sign = 1.0 - 2.0 * side
                out[y[i] - side, 0, i] = sign * (slope + gap)
                out[y[i] - side, 1, i] = q
                out[y[i] - side, 2, i] = -sign * third


@kernel
def logit_average(mean, variance, y, parameters, out):
    """Write log ∫ p(y | f) N(f | m, v) df for F = σ and its first four derivatives in m into `out` (5, n)."""
    room = np.empty(ROOM)
    for i in range(len(mean)):
        a, b, width = _bounds_of_average(mean[i], variance[i], y[i], parameters, i)
        if math.isnan(a):
            out[:, i] = math.nan
            continue
        write_derivatives(out, i, -1.0, _log_logistic_interval(a, b, width, variance[i], room))


@kernel
def logit_average_slopes(mean, variance, y, parameters, out):
    """Write the derivatives of `logit_average` in each cutpoint into `out` (K − 1, n)."""
    room = np.empty(ROOM)
    out[:] = 0.0
    for i in range(len(mean)):
        a, b, width = _bounds_of_average(mean[i], variance[i], y[i], parameters, i)
        if math.isnan(a):
            out[:, i] = math.nan
            continue
        value = _log_logistic_interval(a, b, width, variance[i], room)[0]
        for side in range(2):
            bound = b if side else a
            if math.isfinite(bound):
                log_p, slope, _, _, _ = log_logistic_normal(-abs(bound), variance[i], room)
                ratio = math.exp(log_p - value) * slope
                out[y[i] - side, i] = -ratio if side else ratio


@kernel
def logit_average_log(mean, variance, y, parameters, out):
    """Write ∫ log p(y | f) N(f | m, v) df for F = σ and its derivatives in m and v into `out` (3, n)."""
    room = np.empty(ROOM)
    for i in range(len(mean)):
        a, b, width = _bounds_of_average(mean[i], variance[i], y[i], parameters, i)
        if math.isnan(a):
            out[:, i] = math.nan
            continue
        out[0, i] = math.log(-math.expm1(-width))
        out[1:, i] = 0.0
        for side in range(2):
            bound = -b if side else a
            if math.isfinite(bound):
                value, slope, curvature = average_log_logistic(bound, variance[i], room)
                out[0, i] += value
                out[1, i] += slope if side else -slope
                out[2, i] += 0.5 * curvature


@kernel
def logit_average_log_slopes(mean, variance, y, parameters, out):
    """Write the derivatives of `logit_average_log` in each cutpoint into `out` (K − 1, n)."""
    room = np.empty(ROOM)
    out[:] = 0.0
    for i in range(len(mean)):
        a, b, width = _bounds_of_average(mean[i], variance[i], y[i], parameters, i)
        if math.isnan(a):
            out[:, i] = math.nan
            continue
        gap = 1.0 / math.expm1(width)
        for side in range(2):
            bound = -b if side else a
            if math.isfinite(bound):
                _, slope, _ = average_log_logistic(bound, variance[i], room)
                out[y[i] - side, i] = -(slope + gap) if side else slope + gap


@kernel
def _log_distribution(x, normal):
    """Return log F and its first three derivatives at x; F is Φ if `normal` is true, else the logistic function."""
    if normal:
        value, first, second, third, _ = log_ndtr_derivatives(x)
        return value, first, second, third
    log_p, other, q, rate = _logistic_terms(x)
    return log_p, other, -q, -rate


@kernel
def stopping_derivatives(f, y, parameters, normal, out):
    """Write log p(y_i | f_i) of stopping ratios and three derivatives into `out` (4, n); F = Φ if `normal`, else σ."""
    last = parameters.shape[0]
    for i in range(len(f)):
        out[:, i] = 0.0 if 0 <= y[i] <= last else math.nan
        for j in range(min(y[i] + 1, last)):
            sign = 1.0 if j == y[i] else -1.0
            value, first, second, third = _log_distribution(sign * (parameters[j, i] - f[i]), normal)
            out[0, i] += value
            out[1, i] -= sign * first
            out[2, i] += second
            out[3, i] -= sign * third


@kernel
def stopping_parameter_derivatives(f, y, parameters, normal, out):
    """Write derivatives in each cutpoint of log p, ∂ log p/∂f and ∂² log p/∂f² into `out`, for stopping ratios."""
    last = parameters.shape[0]
    for i in range(len(f)):
        out[:, :, i] = 0.0 if 0 <= y[i] <= last else math.nan
        for j in range(min(y[i] + 1, last)):
            sign = 1.0 if j == y[i] else -1.0
            _, first, second, third = _log_distribution(sign * (parameters[j, i] - f[i]), normal)
            out[j, 0, i] += sign * first
            out[j, 1, i] -= second
            out[j, 2, i] += sign * third
