"""Ordered categories, p(y = k | f) = F(κ_(k+1) − f) − F(κ_k − f) with cutpoints κ_1 < ... < κ_(K−1), κ_0 = −∞, κ_K = ∞.

F is Φ or the logistic function; the rows of the parameters are the cutpoints, at each point. Arrays as in
`pymc_gpep.likelihoods.local_computations`. Write a for the upper bound κ_(k+1) − f and b for the lower one. Categories
beyond K − 1 and cutpoints that do not ascend give NaN.
"""

import math

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.special.log_complement import log_complement
from pymc_gpep.kernels.special.logistic_average import log_logistic
from pymc_gpep.kernels.special.normal import LOG_2PI, log_ndtr_derivatives

__all__ = [
    "logit_derivatives",
    "logit_parameter_derivatives",
    "probit_derivatives",
    "probit_parameter_derivatives",
]


@kernel
def _bounds(f, category, parameters, i):
    """a and b at point i."""
    last = parameters.shape[0]
    if category < 0 or category > last:
        return math.nan, math.nan
    upper = parameters[category, i] - f if category < last else math.inf
    lower = parameters[category - 1, i] - f if category > 0 else -math.inf
    return (upper, lower) if upper > lower else (math.nan, math.nan)


@kernel
def _log_interval(a, b):
    """log(Φ(a) − Φ(b)) and its first three derivatives in −f where a and b are both shifted by that.

    An interval right of 0 is turned over, so that Φ keeps its digits; then log(Φ(a) − Φ(b)) = log Φ(a) + log(1 − eᵈ)
    with d = log Φ(b) − log Φ(a).
    """
    turned = a + b > 0.0
    upper, lower = (-b, -a) if turned else (a, b)
    value, first, second, third, fourth = log_ndtr_derivatives(upper)
    if lower > -math.inf:
        value_b, first_b, second_b, third_b, fourth_b = log_ndtr_derivatives(lower)
        rest, rest_1, rest_2, rest_3, _ = log_complement(
            value_b - value, first_b - first, second_b - second, third_b - third, fourth_b - fourth
        )
        value += rest
        first += rest_1
        second += rest_2
        third += rest_3
    return (value, -first, second, -third) if turned else (value, first, second, third)


@kernel
def probit_derivatives(f, y, parameters, out):
    """log p(y_i | f_i) and its first three derivatives for F = Φ into `out` (4, n)."""
    for i in range(len(f)):
        a, b = _bounds(f[i], y[i], parameters, i)
        value, first, second, third = _log_interval(a, b)
        out[0, i] = value
        out[1, i] = -first
        out[2, i] = second
        out[3, i] = -third


@kernel
def probit_parameter_derivatives(f, y, parameters, out):
    """The derivatives in each cutpoint of log p and of its first two derivatives in f, F = Φ, into `out` (K − 1, 3, n).

    Those of log p are φ(a)/p and −φ(b)/p.
    """
    out[:] = 0.0
    for i in range(len(f)):
        a, b = _bounds(f[i], y[i], parameters, i)
        if math.isnan(a):
            out[:, :, i] = math.nan
            continue
        value, first, second, _ = _log_interval(a, b)
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
def _logistic_terms(bound):
    """log σ, σ(−x), q = σ(x) σ(−x) and q′ at x."""
    log_p, p, other = log_logistic(bound)
    return log_p, other, p * other, p * other * (other - p)


@kernel
def logit_derivatives(f, y, parameters, out):
    """log p(y_i | f_i) and its first three derivatives for the logistic F into `out` (4, n).

    F(a) − F(b) = σ(a) σ(−b) (1 − exp(b − a)), of which the last factor does not depend on f.
    """
    for i in range(len(f)):
        a, b = _bounds(f[i], y[i], parameters, i)
        above, slope_a, q_a, third_a = _logistic_terms(a)
        below, slope_b, q_b, third_b = _logistic_terms(-b)
        out[0, i] = above + below + math.log(-math.expm1(b - a))
        out[1, i] = slope_b - slope_a
        out[2, i] = -q_a - q_b
        out[3, i] = third_a - third_b


@kernel
def logit_parameter_derivatives(f, y, parameters, out):
    """As `probit_parameter_derivatives`, for the logistic F."""
    out[:] = 0.0
    for i in range(len(f)):
        a, b = _bounds(f[i], y[i], parameters, i)
        if math.isnan(a):
            out[:, :, i] = math.nan
            continue
        gap = math.exp(b - a) / -math.expm1(b - a)
        for side in range(2):
            bound = -b if side else a
            if math.isfinite(bound):
                _, slope, q, third = _logistic_terms(bound)
                sign = 1.0 - 2.0 * side
                out[y[i] - side, 0, i] = sign * (slope + gap)
                out[y[i] - side, 1, i] = q
                out[y[i] - side, 2, i] = -sign * third
