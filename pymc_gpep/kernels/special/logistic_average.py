"""Averages of the logistic function σ over a normal variable, and σ as a mixture of normal distributions.

Throughout H(m) = log E σ(f) for f ~ N(m, v). Because σ(f) = eᶠ σ(−f),

    H(m) = m + v/2 + H(−m − v)   and   H(m) = log(1 − exp H(−m)).

`log_logistic_normal` is accurate. Both equations reduce every mean to −v/2 ≤ m ≤ 0, where no term is small. The
probability of the less likely class is integrated, and that of the other class follows without a loss of digits. A
normal density much narrower than σ takes Gauss–Hermite nodes, a narrow density a trapezoid rule about the mode of the
integrand. For a wide density σ is nearly a step, and nodes are dense about 0
(`pymc_gpep.kernels.special.unimodal_average`).

The mixture (`log_logistic_mixture`) is faster. It has a bounded absolute error, and normal tails. The same equations
replace m by a mean with a larger H, if |m| > v/2. Therefore H and its derivatives do not lose digits in a tail.
"""

import math

import numpy as np
from numba.core import types

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.external import scipy_function
from pymc_gpep.kernels.special.normal import log_ndtr_and_hazard, log_ndtr_derivatives
from pymc_gpep.kernels.special.tabulated_normal import cdf_and_density
from pymc_gpep.kernels.special.unimodal_average import FURTHEST, WIDEST, sinh_rule, trapezoid_step


@kernel
def log_complement(value, first, second, third, fourth):
    """Return log(1 − eʰ) and four derivatives, from h = `value` and its derivatives. A small eʰ keeps its digits."""
    r = math.exp(value) / -math.expm1(value)
    f2 = r * (1.0 + r)
    f3 = f2 * (1.0 + 2.0 * r)
    f4 = f2 * (1.0 + 6.0 * f2)
    square = first * first
    return (
        math.log1p(-math.exp(value)) if value < -0.6931471805599453 else math.log(-math.expm1(value)),
        -r * first,
        -r * second - f2 * square,
        -r * third - 3.0 * f2 * first * second - f3 * square * first,
        -r * fourth
        - f2 * (4.0 * first * third + 3.0 * second * second)
        - 6.0 * f3 * square * second
        - f4 * square * square,
    )


_WIDE = 4.0  # For larger variances nodes are dense about 0.
_LOG_ERROR = math.log(1e-20)  # Log error of a rule. Each derivative multiplies the error by 2π / step, about 15.
_RANGE = 8.5  # A standard normal variable exceeds this with probability 1e-17.
_SMALLEST_LOG = -745.0  # The exponential of a smaller number underflows.
_NEGLIGIBLE = -42.0  # Nodes with a smaller exponent are left out.
_INV_SQRT_2PI = 1.0 / math.sqrt(2.0 * math.pi)
_SQRT_HALF = math.sqrt(0.5)
_erfcx = scipy_function("special.cython_special", "__pyx_fuse_1erfcx", types.float64(types.float64))

# For f < 0 and m ≥ −v/2, N(f) σ(f) falls at least like exp(f/2).
_NODES, _WEIGHTS = sinh_rule(4.0, 0.11, -90.0, FURTHEST)
_WEIGHTS = _WEIGHTS / (1.0 + np.exp(-_NODES))


ROOM = (2, len(_NODES))
"""Shape of the workspace `room` of an average, larger than for the nodes of a narrow normal."""


def _alternating_weights(terms: int) -> np.ndarray:
    """Return weights w with which a sum of few terms, Σ_k w_k a_k, approximates the series Σ_k (−1)ᵏ a_k.

    The error is 6^−terms a_0 for moments a_k of a measure on [0, 1] (Cohen, Rodriguez Villegas and Zagier 2000,
    algorithm 1).
    """
    total = ((3.0 + math.sqrt(8.0)) ** terms + (3.0 - math.sqrt(8.0)) ** terms) / 2.0
    weights = np.empty(terms)
    b, c = -1.0, -total
    for k in range(terms):
        c = b - c
        weights[k] = c / total
        b *= (k + terms) * (k - terms) / ((k + 0.5) * (k + 1.0))
    return weights


# log(1 + u) = Σ (−1)ᵏ u^(k+1) / (k + 1) for all u in [0, 1]
_SOFTPLUS = _alternating_weights(18) / np.arange(1, 19)


@kernel
def log_logistic(x):
    """Return log σ(x), σ(x) and σ(−x)."""
    ratio = math.exp(-abs(x))
    larger = 1.0 / (1.0 + ratio)
    if x > 0.0:
        return -math.log1p(ratio), larger, ratio * larger
    return x - math.log1p(ratio), ratio * larger, larger


def _narrow_rules() -> tuple[np.ndarray, ...]:
    """Return nodes and weights (2, n) of averages over N(0, 1) that have errors of 1e-14 for σ(m + sd z), m ≤ 0.

    Gauss–Hermite nodes are fewest for small sd. Trapezoid rules cover modes of N(z) σ(m + sd z)ᵏ, k ≤ 2, up to 2 sd.
    """
    rules = [np.stack(np.polynomial.hermite_e.hermegauss(n)) for n in _HERMITE_NODES]
    for sd in _NARROW_SDS[len(rules) :]:
        z = np.arange(-_RANGE, _RANGE + 2.0 * sd, trapezoid_step(sd, math.pi, 1.0, _LOG_ERROR))
        rules.append(np.stack([z, np.exp(-0.5 * z * z)]))
    return tuple(rule / [[1.0], [rule[1].sum()]] for rule in rules)


_HERMITE_NODES = (7, 10, 14, 20, 28)
_NARROW_SDS = (0.1, 0.18, 0.3, 0.42, 0.57, 0.75, 1.0, 1.4, 2.0)  # Largest standard deviation for each rule.
_NARROW_RULES = _narrow_rules()
_LEAST_MEAN = -30.0  # Means below it take the trapezoid rule with scaled weights, since σ(f) may underflow.


@kernel
def _tilted_mode(mean, variance):
    """Return the mode f = mean + variance σ(−f) of N(f | mean, variance) σ(f), by Newton's method in a bracket."""
    low = mean
    high = mean + variance
    f = min(0.0, high)
    for _ in range(100):
        _, p, other = log_logistic(f)
        excess = mean + variance * other - f
        if excess > 0.0:
            low = f
        else:
            high = f
        step = excess / (1.0 + variance * p * other)
        f += step
        if not (low <= f <= high):
            f = 0.5 * (low + high)
        if abs(step) <= 0.1 * math.sqrt(variance):
            break
    return f


@kernel
def _trapezoid(mean, sd):
    """Return first node z, step and number of nodes of a rule for N(f) σ(f), and the largest log N(f) σ(f).

    Here f = mean + sd z. The range also covers N(f) σ(f)². Its mode is larger by up to sd².
    """
    step = trapezoid_step(sd, math.pi, 1.0, _LOG_ERROR)  # σ has poles at ±iπ.
    mode = _tilted_mode(mean, sd * sd)
    centre = (mode - mean) / sd if sd > 0.0 else 0.0
    nodes = int((2.0 * _RANGE + sd) / step) + 2
    return centre - _RANGE, step, nodes, log_logistic(mode)[0] - 0.5 * centre * centre


@kernel
def _slopes(p, weights, nodes):
    """Return Σ w, and four derivatives of H, for weights w at nodes with p = σ(f).

    Let ℓ = log σ, and take cumulants under the density proportional to N(f) σ(f). The derivatives are E ℓ′,
    E ℓ″ + Var ℓ′, E ℓ‴ + 3 Cov(ℓ″, ℓ′) + κ₃(ℓ′) and so on.
    """
    total = 0.0
    mean_p = 0.0
    mean_q = 0.0  # Mean of −ℓ″ = σ(f) σ(−f).
    for k in range(nodes):
        total += weights[k]
        mean_p += weights[k] * p[k]
        mean_q += weights[k] * p[k] * (1.0 - p[k])
    mean_p /= total
    mean_q /= total
    variance = 0.0
    third = 0.0
    fourth = 0.0
    for k in range(nodes):
        slope = mean_p - p[k]  # ℓ′ minus its mean.
        q = p[k] * (1.0 - p[k])
        cross = slope * slope + mean_q - q
        variance += weights[k] * slope * slope
        third += weights[k] * (slope * (cross + 2.0 * (mean_q - q)) - q * (1.0 - 2.0 * p[k]))
        fourth += weights[k] * (
            -q * (1.0 - 6.0 * q + 4.0 * slope * (1.0 - 2.0 * p[k]))
            + 3.0 * (mean_q - q) ** 2
            + slope * slope * (6.0 * (mean_q - q) + slope * slope)
        )
    variance /= total
    return total, 1.0 - mean_p, variance - mean_q, third / total, fourth / total - 3.0 * variance * variance


@kernel
def _narrow(mean, sd, weights, p):
    """Return H(mean ≤ 0) and four derivatives, with workspaces `weights` and `p` for the nodes."""
    if mean > _LEAST_MEAN:
        index = 0
        while sd > _NARROW_SDS[index]:
            index += 1
        rule = _NARROW_RULES[index]
        nodes = rule.shape[1]
        for k in range(nodes):
            p[k] = 1.0 / (1.0 + math.exp(-mean - sd * rule[0, k]))
            weights[k] = rule[1, k] * p[k]
        total, first, second, third, fourth = _slopes(p, weights, nodes)
        return math.log(total), first, second, third, fourth
    start, step, nodes, top = _trapezoid(mean, sd)
    for k in range(nodes):
        z = start + k * step
        log_p, p[k], _ = log_logistic(mean + sd * z)
        weights[k] = math.exp(log_p - 0.5 * z * z - top)
    total, first, second, third, fourth = _slopes(p, weights, nodes)
    return top + math.log(step * _INV_SQRT_2PI * total), first, second, third, fourth


@kernel
def _wide(mean, variance, weights):
    """Return H(mean) = log E σ(f) and four derivatives for −variance / 2 ≤ mean ≤ 0 and a large variance.

    For variances above `WIDEST`, σ counts as a step, with an error of the order (m / v)².
    """
    if variance >= WIDEST:
        scale = 1.0 / math.sqrt(variance)
        value, first, second, third, fourth = log_ndtr_derivatives(scale * mean)
        return value, scale * first, scale**2 * second, scale**3 * third, scale**4 * fourth
    rate = -mean / variance
    half = 0.5 / variance
    total = 0.0
    average = 0.0
    end = 0
    for k in range(len(_NODES)):
        f = _NODES[k]
        exponent = -f * (rate + half * f)
        if f > 0.0 and exponent < _NEGLIGIBLE:
            break
        weights[k] = _WEIGHTS[k] * math.exp(exponent)
        total += weights[k]
        average += weights[k] * f
        end = k + 1
    average /= total
    second = 0.0
    third = 0.0
    fourth = 0.0
    for k in range(end):
        d = _NODES[k] - average
        square = weights[k] * d * d
        second += square
        third += square * d
        fourth += square * d * d
    second /= total
    third /= total
    fourth = fourth / total - 3.0 * second * second
    precision = 1.0 / variance
    return (
        0.5 * rate * mean + math.log(total * _INV_SQRT_2PI * math.sqrt(precision)),
        rate + average * precision,
        (second * precision - 1.0) * precision,
        third * precision**3,
        fourth * precision**4,
    )


@kernel
def _complement(value, first, second, third, fourth):
    """Return log E σ(f) and its derivatives at the mean −m, from the same at the mean m."""
    value, first, second, third, fourth = log_complement(value, first, second, third, fourth)
    return value, -first, second, -third, fourth


@kernel
def _unlikely(mean, variance, room):
    """Return H(m) = log E σ(f) and four derivatives, for a `mean` m ≤ 0."""
    if variance < _WIDE:
        return _narrow(mean, math.sqrt(variance), room[0], room[1])
    # H(m) = m + v/2 + H(−m − v), and H(−x) = log(1 − exp H(x)). Shift m by v until a quadrature applies.
    shifts = 0
    shifted = mean
    while -shifted > 0.5 * variance and shifted + variance < 0.0:
        shifted += variance
        shifts += 1
        if shifted + 0.5 * variance < _SMALLEST_LOG:
            break
    if shifts > 0 and shifted + 0.5 * variance < _SMALLEST_LOG:  # exp H, the only use of H below, underflows.
        terms = (-math.inf, 1.0, 0.0, 0.0, 0.0)
    elif -shifted > 0.5 * variance:
        value, first, second, third, fourth = _wide(-shifted - variance, variance, room[0])
        terms = (value + shifted + 0.5 * variance, 1.0 - first, second, -third, fourth)
    else:
        terms = _wide(shifted, variance, room[0])
    for _ in range(shifts):
        shifted -= variance
        value, first, second, third, fourth = _complement(*terms)
        terms = (value + shifted + 0.5 * variance, 1.0 - first, second, -third, fourth)
    return terms


@kernel
def log_logistic_normal(mean, variance, room):
    """Return log E σ(f) for f ~ N(mean, variance), and four derivatives in the mean. `room` is scratch space."""
    terms = _unlikely(-abs(mean), variance, room)
    return _complement(*terms) if mean > 0.0 else terms


@kernel
def _softplus_normal(mean, variance, room):
    """Return E log(1 + eᶠ) for f ~ N(mean, variance), mean ≤ 0, and two derivatives in the mean."""
    sd = math.sqrt(variance)
    if variance < _WIDE:
        first, step, nodes, _ = _trapezoid(mean, sd)
        value = 0.0
        slope = 0.0
        curvature = 0.0
        for k in range(nodes):
            z = first + k * step
            log_other, other, sigma = log_logistic(-mean - sd * z)
            weight = math.exp(-0.5 * z * z)
            value -= weight * log_other
            slope += weight * sigma
            curvature += weight * sigma * other
        factor = step * _INV_SQRT_2PI
        return factor * value, factor * slope, factor * curvature
    log_p, first, _, _, _ = _unlikely(mean, variance, room)
    slope = math.exp(log_p)
    # log(1 + eᶠ) = max(f, 0) + log(1 + exp(−|f|)); the second term is a series on each side of 0.
    log_tail, hazard = log_ndtr_and_hazard(mean / sd)
    value = math.exp(log_tail) * (mean + sd * hazard)
    at_zero = 0.5 * math.exp(-0.5 * mean * mean / variance)
    for k in range(len(_SOFTPLUS)):
        j = k + 1.0
        inside = (mean + j * variance) / sd * _SQRT_HALF
        term = at_zero * _erfcx((j * variance - mean) / sd * _SQRT_HALF)
        if inside > 0.0:
            term += at_zero * _erfcx(inside)
        else:
            term += 0.5 * math.exp(j * (mean + 0.5 * j * variance)) * math.erfc(inside)
        value += _SOFTPLUS[k] * term
    return value, slope, slope * first


@kernel
def average_log_logistic(mean, variance, room):
    """Return E log σ(f), f ~ N(mean, variance), and its first two derivatives in the mean."""
    value, slope, curvature = _softplus_normal(-abs(mean), variance, room)
    return min(mean, 0.0) - value, slope if mean > 0.0 else 1.0 - slope, -curvature


MIXTURE_ERROR = 1.5e-10
"""Largest difference between the logistic function and the mixture."""

# Mixture Σ w Φ(s x) ≈ σ(x), as by Monahan and Stefanski (1992), who use up to eight terms. It is fitted by weighted
# least squares, with larger weights where the difference was largest.
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
_SHARES = np.array(
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
_REACH = 8.9  # Largest absolute argument of the table, in standard deviations.


@kernel
def scale_mixture(variance, scales):
    """Write scales into `scales`. With them the mixture gives averages over normals with this variance."""
    for i in range(len(scales)):
        scales[i] = _SCALES[i] / math.sqrt(1.0 + _SCALES[i] * _SCALES[i] * variance)


@kernel
def mixture_scales(variance):
    """Return the scales that `scale_mixture` writes."""
    scales = np.empty_like(_SCALES)
    scale_mixture(variance, scales)
    return scales


@kernel
def logistic_of_normal(mean, scales):
    """Return E σ(d) for d ~ N(mean, variance), and its slope in the mean. `scales` is mixture_scales(variance)."""
    value = 0.0
    slope = 0.0
    for i in range(len(_SCALES)):
        s = scales[i] * mean
        if s > _REACH:
            value += _SHARES[i]
        elif s > -_REACH:
            cdf, density = cdf_and_density(s)
            value += _SHARES[i] * cdf
            slope += _SHARES[i] * scales[i] * density
    return value, slope


@kernel
def _average(mean, scales):
    """Return E σ(d) for normal d and two derivatives in the mean of d, by the mixture."""
    tail = 0.0
    slope = 0.0
    curvature = 0.0
    for i in range(len(scales)):
        s = abs(scales[i] * mean)
        if s < _REACH:
            p, density = cdf_and_density(-s)
            weight = _SHARES[i]
            tail += weight * p
            slope += weight * scales[i] * density
            curvature -= weight * scales[i] ** 3 * density
    return 1.0 - tail if mean > 0.0 else tail, slope, curvature * mean


@kernel
def log_logistic_mixture(mean, variance, scales):
    """Return log E σ(f) and two derivatives in the mean, by the mixture. `scales` is mixture_scales(variance)."""
    if mean < -0.5 * variance:
        value, slope, curvature = _average(-mean - variance, scales)
        ratio = slope / value
        return mean + 0.5 * variance + math.log(value), 1.0 - ratio, curvature / value - ratio * ratio
    if mean > 0.5 * variance:
        value, slope, curvature = _average(mean - variance, scales)
        rest = math.exp(0.5 * variance - mean)  # E σ(−d) = rest · value.
        kept = 1.0 - rest * value
        first = rest * (value - slope) / kept
        second = -rest * (value - 2.0 * slope + curvature) / kept
        return math.log1p(-rest * value), first, second - first * first
    value, slope, curvature = _average(mean, scales)
    ratio = slope / value
    return math.log(value), ratio, curvature / value - ratio * ratio


_ERROR_OF_MEAN = math.log(1e-16)
_RANGE_OF_MEAN = 9.0  # A standard normal variable exceeds this with probability 1e-19.
_WIDE_FOR_MEAN = 8.0  # From this standard deviation on, equal panels are used.
_PANEL = 4.0  # Width of a panel: 16 Gauss-Legendre nodes have an error of 1e-17, since σ has poles at ±iπ.
_PANELS = 10  # Number of panels. They end at 40, where σ(−40) < 1e-17 is negligible.
_PANEL_NODES, _PANEL_WEIGHTS = np.polynomial.legendre.leggauss(16)


@kernel
def _narrow_mean(mean, sd):
    """Return E σ(−d) and E σ(d) by the trapezoid rule in z = (d − mean) / sd, with a step for an error of 1e-16."""
    step = trapezoid_step(sd, math.pi, 0.5, _ERROR_OF_MEAN)
    nodes = int(_RANGE_OF_MEAN / step) + 1
    above = 0.0
    below = 0.0
    for i in range(-nodes, nodes + 1):
        z = i * step
        weight = math.exp(-0.5 * z * z)
        ratio = math.exp(-abs(mean + sd * z))
        larger = weight / (1.0 + ratio)
        if mean + sd * z > 0.0:
            above += larger
            below += larger * ratio
        else:
            above += larger * ratio
            below += larger
    factor = step * _INV_SQRT_2PI
    return factor * below, factor * above


@kernel
def _wide_mean(mean, sd):
    """Return E σ(−d) and E σ(d) for a wide normal d. The difference between σ and a step is integrated on panels.

    With the density N of d, E σ(d) = P(d > 0) + ∫₀^∞ σ(−x) (N(−x) − N(x)) dx.
    """
    difference = 0.0
    for panel in range(_PANELS):
        for node, weight in zip(_PANEL_NODES, _PANEL_WEIGHTS):  # noqa: B905  numba knows no strict
            x = _PANEL * (panel + 0.5 * (1.0 + node))
            left = (x + mean) / sd
            right = (x - mean) / sd
            density = math.exp(-0.5 * left * left) - math.exp(-0.5 * right * right)
            difference += weight * density / (1.0 + math.exp(x))
    difference *= 0.5 * _PANEL * _INV_SQRT_2PI / sd
    return 0.5 * math.erfc(mean / sd * _SQRT_HALF) - difference, 0.5 * math.erfc(-mean / sd * _SQRT_HALF) + difference


@kernel
def logistic_normal(mean, sd):
    """Return E σ(−d) and E σ(d), d ~ N(mean, sd²), with errors of about 1e-16. Their sum is 1 up to rounding."""
    return _narrow_mean(mean, sd) if sd < _WIDE_FOR_MEAN else _wide_mean(mean, sd)
