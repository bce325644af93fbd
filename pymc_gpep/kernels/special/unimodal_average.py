"""Averages of a function with features about 0, and of exp of a concave function, over a normal of any width.

`sinh_rule` has nodes f = c sinh(jh), which are dense about 0 and extend far: it is the trapezoid rule in τ = jh. It
integrates N(f | m, v) L(f) if L has features of width c about 0 and is smooth far from 0, relative to the distance. The
number of nodes grows as log v, and the values of L at the nodes can be tabulated. The normal density is analytic in τ
and decays for |Im τ| < π/4. Along Im τ = η it is larger by up to exp(m² sin²η / 2v cos 2η) than on the real line. The
error factor exp(−2πη/h) of the rule must outweigh this growth (Trefethen and Weideman 2014, theorem 5.1).

`log_unimodal_normal` is log E exp ℓ(g) for five kinds of ℓ:

    LOGISTIC: ℓ = a log σ(g) + b log σ(−g)         SOME: ℓ = log(1 − exp(−eᵍ))

    NORMAL: ℓ = a log Φ(g) + b log Φ(−g)           SOME_AND_NONE: ℓ = a log(1 − exp(−eᵍ)) − b eᵍ

    RATE: ℓ = a g − eᵍ

All are concave. The integrand as a function of the distance t from its mode g₀ is exp(ℓ(g₀ + t) − ℓ(g₀) − ℓ′(g₀) t −
t²/2v). It is summed by the trapezoid rule in τ, t = shift + scale · sinh τ, whose number of nodes doubles until results
agree. Since digits double with the nodes, the error is about the square of the last difference. Nodes are dense about
the mode. Under a normal density so wide that such nodes would miss the bend of ℓ, nodes are dense about the bend.
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import inlined_kernel, kernel
from pymc_gpep.kernels.special.normal import log_ndtr_derivatives

FURTHEST = 1e12
"""Largest node of a rule for any width."""

WIDEST = 1e20
"""Largest variance of a normal density for which nodes up to `FURTHEST` suffice. For wider densities L is a step."""


def sinh_rule(scale: float, step: float, lowest: float, highest: float) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes between `lowest` and `highest`, in ascending order, and the weights of the rule."""
    first, last = (math.asinh(end / scale) / step for end in (lowest, highest))
    tau = step * np.arange(math.ceil(first), math.floor(last) + 1)
    return scale * np.sinh(tau), step * scale * np.cosh(tau)


@kernel
def trapezoid_step(sd, pole, share, log_error):
    """Return the step of the trapezoid rule for N(z) L(m + sd z) with this log error, if L has poles at ±i `pole`."""
    # N(i strip) is at most the inverse of the error, to the power share².
    strip = min(pole / max(sd, 1e-300), share * math.sqrt(-2.0 * log_error))
    return 2.0 * math.pi * strip / (0.5 * strip * strip - log_error)


LOGISTIC, SOME, NORMAL, SOME_AND_NONE, RATE = 0, 1, 2, 3, 4

_FEWEST, _MOST = 16, 8192  # Number of nodes of the first rule; largest number of nodes of a rule.
_AGREEMENT = 1e-7  # The number of nodes doubles until the relative change of results is below this.
_ZERO = 1e-12  # Largest term that counts as zero, relative to terms of the order of 1.
_DROP = 45.0  # A rule ends where the log integrand is below its maximum by this.
_LONGEST = 300  # Largest number of steps of a search.
_POINT = 1e-10  # A variance with a smaller effect on the logarithm counts as 0.
_WIDE = 10.0  # For larger variances, derivatives are always computed from cumulants of g.
_BROAD = 4.0  # If the integrand is wider, the bend of ℓ counts as narrow.
_SERIES = 0.1  # For smaller rates a series replaces differences that cancel.
_TERMS = 9  # Number of terms of the series of eᵗ − 1 − t.
_NOTHING = -40.0  # If log(E r² / E r), r = eᵍ, is below this, log E exp(−r) is −E r to rounding.
_STEP = 1e12  # For larger variances exp(−eᵍ) counts as a step; its transition has variance π²/6.
_EULER = 0.5772156649015329  # Euler's constant: minus the mean of the transition of exp(−eᵍ).
_RIGHT = 8.0  # Up to this distance, in standard deviations, E exp(−eᵍ) exceeds its rounding error.
_INV_SQRT_2PI = 1.0 / math.sqrt(2.0 * math.pi)
_SQRT_HALF = math.sqrt(0.5)

# exp(−eᵍ) = P(h > g) for a variable h with the narrow and analytic density exp(h − eʰ). These are its nodes.
_NODES = np.arange(-40.0, 4.5, 0.25)
_WEIGHTS = 0.25 * np.exp(_NODES - np.exp(_NODES))

ROOM = (5, _MOST + 1)
"""Shape of the workspace `room` of an average."""


@kernel
def _log_logistics(g):
    """Return log σ(g), log σ(−g), σ(g) and σ(−g) for the logistic function σ."""
    ratio = math.exp(-abs(g))
    larger = 1.0 / (1.0 + ratio)
    near = -math.log1p(ratio)
    if g > 0.0:
        return near, near - g, larger, ratio * larger
    return near + g, near, ratio * larger, larger


@kernel
def _some(g):
    """Return log(1 − exp(−r)), r = eᵍ, and four derivatives in g.

    The first derivative is r / (eʳ − 1) = 1 − r/2 + r²/12 − …. For small r the series preserves digits.
    """
    r = math.exp(g)
    if r < _SERIES:
        square = r * r
        c2, c4, c6, c8 = square / 12.0, -(square**2) / 720.0, square**3 / 30240.0, -(square**4) / 1209600.0
        first = 1.0 - 0.5 * r + c2 + c4 + c6 + c8
        second = -0.5 * r + 2.0 * c2 + 4.0 * c4 + 6.0 * c6 + 8.0 * c8
        third = -0.5 * r + 4.0 * c2 + 16.0 * c4 + 36.0 * c6 + 64.0 * c8
        fourth = -0.5 * r + 8.0 * c2 + 64.0 * c4 + 216.0 * c6 + 512.0 * c8
        # log((1 − e⁻ʳ) / r) = −r/2 + r²/24 − ... is the integral over g of the first derivative minus 1.
        return g - 0.5 * r + 0.5 * c2 + 0.25 * c4 + c6 / 6.0 + 0.125 * c8, first, second, third, fourth
    if r > 700.0:
        return 0.0, 0.0, 0.0, 0.0, 0.0
    first = r / math.expm1(r)
    rate = 1.0 - r - first
    second = first * rate
    rate_slope = -r - second
    third = second * rate + first * rate_slope
    fourth = third * rate + 2.0 * second * rate_slope + first * (-r - third)
    return math.log(-math.expm1(-r)), first, second, third, fourth


@kernel
def log_density_derivatives(kind, a, b, g):
    """Return the function ℓ of this kind at g, and its first four derivatives. NaN for invalid powers a, b."""
    if kind == SOME:
        return _some(g)
    if not (a >= 0.0 and b >= 0.0):
        return math.nan, math.nan, math.nan, math.nan, math.nan
    if kind == NORMAL:
        p0, p1, p2, p3, p4 = log_ndtr_derivatives(g)
        q0, q1, q2, q3, q4 = log_ndtr_derivatives(-g)
        return a * p0 + b * q0, a * p1 - b * q1, a * p2 + b * q2, a * p3 - b * q3, a * p4 + b * q4
    if kind == SOME_AND_NONE:
        p0, p1, p2, p3, p4 = _some(g)
        rate = b * math.exp(g) if b > 0.0 else 0.0
        return a * p0 - rate, a * p1 - rate, a * p2 - rate, a * p3 - rate, a * p4 - rate
    if kind == RATE:
        rate = math.exp(g)
        return a * g - rate, a - rate, -rate, -rate, -rate
    log_p, log_q, p, q = _log_logistics(g)
    curvature = -(a + b) * p * q
    return (
        a * log_p + b * log_q,
        a * q - b * p,
        curvature,
        curvature * (q - p),
        curvature * (1.0 - 6.0 * p * q),
    )


@kernel
def _beyond_linear(small, t):
    """Return log(1 + p (eᵗ − 1)) − p t, p ≤ ½: log(1 + eᵍ) minus its tangent, at distance t from σ(g) = p."""
    if t < 50.0:
        return math.log1p(small * math.expm1(t)) - small * t
    if small == 0.0:
        return 0.0
    odds = math.log(small) + t
    return (odds if odds > 40.0 else math.log1p(math.exp(odds) - small)) - small * t


@kernel
def _rates(t, mode, rate):
    """Return r − c and r − c − c t for the rate r at mode + t.

    `rate` is c = exp(mode), which may underflow although r does not.
    """
    if abs(t) > 0.1:
        excess = math.exp(mode + t) - rate
        return excess, excess - rate * t
    total = 1.0
    for k in range(_TERMS, 2, -1):
        total = 1.0 + total * t / k
    return rate * math.expm1(t), rate * 0.5 * t * t * total


@kernel
def _exponent(kind, a, b, mode, at_mode, t, v):
    """Return the log integrand at distance t from the mode, minus its value at the mode.

    `at_mode` has ℓ and ℓ′ at the mode g₀. For LOGISTIC, further entries are p = min(σ(g₀), σ(−g₀)), and s = ±1 with
    p = σ(s g₀). For RATE, the third entry is the rate exp(g₀).
    """
    if kind == RATE:
        return -_rates(t, mode, at_mode[2])[1] - 0.5 * t * t / v
    if kind != LOGISTIC:
        return log_density_derivatives(kind, a, b, mode + t)[0] - at_mode[0] - at_mode[1] * t - 0.5 * t * t / v
    small, sign = at_mode[2], at_mode[3]
    return -(a + b) * _beyond_linear(small, sign * t) - 0.5 * t * t / v


@inlined_kernel
def _mode_of_rate(centre, v):
    """Return the root of g + v eᵍ = `centre`, by Newton's method from above, since the function is convex."""
    g = centre
    if centre > 0.0:
        g = min(centre, max(0.0, math.log(centre / v)))
    for _ in range(_LONGEST):
        rise = v * math.exp(g)
        step = (g + rise - centre) / (1.0 + rise)
        g -= step
        if abs(step) <= 1e-15 * (1.0 + abs(g)):
            break
    return g


@inlined_kernel
def _mode(kind, a, b, mean, v):
    """Return the mode of N(g | mean, v) exp ℓ(g), the root of m + v ℓ′(g) = g, by Newton's method in a bracket."""
    if kind == RATE:
        return _mode_of_rate(mean + v * a, v)
    low = mean - (0.0 if kind == SOME else b * v)
    high = mean + (v if kind == SOME else a * v)
    if kind == NORMAL:  # The slope is unbounded but decreasing in g.
        pull = v * log_density_derivatives(kind, a, b, mean)[1]
        low, high = mean + min(pull, 0.0), mean + max(pull, 0.0)
    elif kind == SOME_AND_NONE:
        low = min(mean, 0.0) - b * v
    g = min(max(0.0, low), high)
    for _ in range(_LONGEST):
        _, slope, curvature, _, _ = log_density_derivatives(kind, a, b, g)
        excess = mean + v * slope - g
        if excess > 0.0:
            low = g
        else:
            high = g
        new = g + excess / (1.0 - v * curvature)
        if not (low <= new <= high):
            new = 0.5 * (low + high)
        step = abs(new - g)
        g = new
        if step <= 1e-15 * (1.0 + abs(g)):
            break
    return g


@inlined_kernel
def _distance(sign, kind, a, b, mode, at_mode, v, start):
    """Return the distance from the mode at which the log integrand is about 1 below its maximum."""
    found = start
    for _ in range(_LONGEST):
        fallen = -_exponent(kind, a, b, mode, at_mode, sign * found, v)
        if not fallen <= 2.0:
            found *= 0.6
        elif fallen < 0.5:
            found *= 1.5
        else:
            break
    return found


@kernel
def _end(sign, kind, a, b, mode, at_mode, v, shift, scale):
    """Return the value of τ, right or left, beyond which the integrand is negligible."""
    tau = 1.5 if shift == 0.0 else 0.0  # Start 2 scales from the mode, since sinh 1.5 ≈ 2.
    beyond = -sign * shift  # Distance from the centre of the nodes to the mode.
    if beyond > 0.0:
        tau = math.asinh(beyond / scale)
    for _ in range(_LONGEST):
        tau += 0.5
        if not -_exponent(kind, a, b, mode, at_mode, shift + sign * scale * math.sinh(tau), v) < _DROP:
            break
    return sign * tau


@inlined_kernel
def _slopes(kind, a, b, g):
    """Return the first three derivatives at g of the function ℓ of this kind."""
    if kind != LOGISTIC:
        _, first, second, third, _ = log_density_derivatives(kind, a, b, g)
        return first, second, third
    ratio = math.exp(-abs(g))
    larger = 1.0 / (1.0 + ratio)
    smaller = ratio * larger
    p, q = (larger, smaller) if g > 0.0 else (smaller, larger)
    curvature = -(a + b) * p * q
    return a * q - b * p, curvature, curvature * (q - p)


@inlined_kernel
def _look(kind, a, b, mode, at_mode, v, shift, scale, low, high, count, first, room):
    """Write t, three derivatives of ℓ and weights of the integrand at the nodes 0…count into `room`.

    For RATE the derivatives are differences from the derivatives at the mode. If `first` is 0, all nodes are computed.
    If `first` is 1, `room` holds count/2 + 1 nodes: they move to even positions, and only odd nodes are computed.
    """
    step = (high - low) / count
    for k in range(count // 2 if first else -1, 0, -1):
        for j in range(5):
            room[j, 2 * k] = room[j, k]
    every = 1 + first
    growth = math.exp(low + first * step)
    ratio = math.exp(every * step)
    for k in range(first, count + 1, every):
        t = shift + 0.5 * scale * (growth - 1.0 / growth)
        excess = 0.0
        if kind == RATE:
            excess, beyond = _rates(t, mode, at_mode[2])
            weight = math.exp(-beyond - 0.5 * t * t / v)
        else:
            weight = math.exp(_exponent(kind, a, b, mode, at_mode, t, v))
        room[0, k] = t
        if weight > 0.0:
            if kind == RATE:
                room[1, k] = room[2, k] = room[3, k] = -excess
            else:
                room[1, k], room[2, k], room[3, k] = _slopes(kind, a, b, mode + t)
            room[4, k] = weight * 0.5 * (growth + 1.0 / growth)
        else:
            for j in range(1, 5):
                room[j, k] = 0.0
        growth *= ratio


@inlined_kernel
def _terms(pull, v, measure, count, slope, curvature, room, out):
    """Compute the log integral, relative to the mode, and four derivatives in m.

    They are written to `out` (6,), followed by the scale of rounding errors of cumulants. `pull` is (g₀ − m)/v, and
    `measure` the distance between nodes. `slope` is added to ℓ′ of `room`, and `curvature` to its ℓ″ and ℓ‴. The
    derivatives are E ℓ′, E ℓ″ + Var ℓ′, E ℓ‴ + 3 Cov(ℓ″, ℓ′) + κ₃(ℓ′) and so on. For a wide normal density they are
    computed from cumulants of g. For a narrow density, such differences would lose digits.
    """
    total = 0.0
    average = 0.0
    e1 = 0.0
    e2 = 0.0
    e3 = 0.0
    for k in range(count + 1):
        weight = room[4, k]
        total += weight
        average += weight * room[0, k]
        e1 += weight * room[1, k]
        e2 += weight * room[2, k]
        e3 += weight * room[3, k]
    average /= total
    e1 /= total
    e2 /= total
    e3 /= total
    d_two = d_three = d_four = two = third = fourth = 0.0
    for k in range(count + 1):
        weight = room[4, k] / total
        if weight == 0.0:
            continue
        d = (room[0, k] - average) / v
        d1, d2, d3 = room[1, k] - e1, room[2, k] - e2, room[3, k] - e3
        square = d * d
        d_two += weight * square
        d_three += weight * square * d
        d_four += weight * square * square
        square = d1 * d1
        two += weight * square
        third += weight * (3.0 * d2 + square) * d1
        fourth += weight * (d3 * (d + 3.0 * d1) + 3.0 * d2 * d2 + square * (6.0 * d2 + square))
    out[0] = math.log(total * measure)
    if d_two * v < 0.5 or v > _WIDE:
        out[1] = pull + average / v
        out[2] = d_two - 1.0 / v
        out[3] = d_three
        out[4] = d_four - 3.0 * d_two * d_two
        out[5] = math.sqrt(d_two)
    else:
        out[1] = slope + e1
        out[2] = curvature + e2 + two
        out[3] = curvature + e3 + third
        out[4] = fourth - 3.0 * two * two
        out[5] = math.sqrt(two)


@inlined_kernel
def _powers(mode, count, room):
    """Return averages of log σ(g) and log σ(−g) under the integrand: slopes of the logarithm in a and b."""
    total = 0.0
    of_p = 0.0
    of_q = 0.0
    for k in range(count + 1):
        weight = room[4, k]
        if weight > 0.0:
            log_p, log_q, _, _ = _log_logistics(mode + room[0, k])
            total += weight
            of_p += weight * log_p
            of_q += weight * log_q
    return of_p / total, of_q / total


@inlined_kernel
def _none_of_wide(mean, v):
    """Return log E exp(−eᵍ) = log(1 − E Φ((m − h)/√v)) for large v, and four derivatives in m. See `_NODES` for h."""
    scale = 1.0 / math.sqrt(v)
    some = first = second = third = fourth = 0.0  # Probability of a count above 0, and its derivatives.
    for k in range(len(_NODES)):
        x = scale * (mean - _NODES[k])
        density = _WEIGHTS[k] * scale * _INV_SQRT_2PI * math.exp(-0.5 * x * x)
        some += _WEIGHTS[k] * 0.5 * math.erfc(-x * _SQRT_HALF)
        first += density
        second -= density * x * scale
        third += density * (x * x - 1.0) * scale**2
        fourth -= density * x * (x * x - 3.0) * scale**3
    none = some - 1.0  # Minus the probability of count 0. a … d are its derivatives, divided by the probability.
    a, b, c, d = first / none, second / none, third / none, fourth / none
    return (
        math.log1p(-some),
        a,
        b - a * a,
        c - 3.0 * a * b + 2.0 * a**3,
        d - 4.0 * a * c - 3.0 * b * b + 12.0 * a * a * b - 6.0 * a**4,
    )


@inlined_kernel
def _none(mean, v):
    """Return whether log E exp(−eᵍ) has a formula without a mode, and its value with four derivatives in m."""
    if mean + 1.5 * v < _NOTHING:
        rate = math.exp(mean + 0.5 * v)
        return True, (-rate, -rate, -rate, -rate, -rate)
    if v >= _STEP:
        scale = 1.0 / math.sqrt(v + math.pi * math.pi / 6.0)
        value, first, second, third, fourth = log_ndtr_derivatives(-scale * (mean + _EULER))
        return True, (value, -scale * first, scale**2 * second, -(scale**3) * third, scale**4 * fourth)
    if v > _WIDE and mean < _RIGHT * math.sqrt(v):
        return True, _none_of_wide(mean, v)
    return False, (0.0, 0.0, 0.0, 0.0, 0.0)


@kernel
def log_unimodal_normal(kind, a, b, mean, v, room):
    """Return log E exp ℓ(g), g ~ N(mean, v), four derivatives in the mean, and derivatives in a and b.

    All are NaN if the rules do not agree, or if a, b or the variance is negative or an argument is not finite.
    """
    missing = math.nan
    if not (0.0 <= v < math.inf and math.isfinite(mean) and 0.0 <= a < math.inf and 0.0 <= b < math.inf):
        return missing, missing, missing, missing, missing, missing, missing
    if kind == LOGISTIC and a == 0.0 and b == 0.0 and v == 0.0:
        log_p, log_q, _, _ = _log_logistics(mean)
        return 0.0, 0.0, 0.0, 0.0, 0.0, log_p, log_q
    if kind == RATE and a == 0.0:
        known, (value, first, second, third, fourth) = _none(mean, v)
        if known:
            return value, first, second, third, fourth, missing, missing
    value, first, second, third, fourth = log_density_derivatives(kind, a, b, mean)
    if v * (1.0 - second + first * first) < _POINT:
        log_p, log_q, _, _ = _log_logistics(mean)
        return value, first, second, third, fourth, log_p, log_q
    mode = _mode(kind, a, b, mean, v)
    value, slope, curvature, _, _ = log_density_derivatives(kind, a, b, mode)
    pull = (mode - mean) / v if -v * curvature > 1.0 else slope  # Use the expression with less cancellation.
    base = (0.0, 0.0)
    if kind == RATE:
        at_mode, base = (value, slope, -curvature, 1.0), (pull, curvature)
    else:
        _, _, p, q = _log_logistics(mode)
        at_mode = (value, slope, min(p, q), 1.0 if p <= q else -1.0)
    width = 1.0 / math.sqrt(1.0 / v - curvature)
    scale, shift = math.inf, 0.0
    for sign in (-1.0, 1.0):
        scale = min(scale, _distance(sign, kind, a, b, mode, at_mode, v, width))
    low = _end(-1.0, kind, a, b, mode, at_mode, v, shift, scale)
    high = _end(1.0, kind, a, b, mode, at_mode, v, shift, scale)
    bend = -mode
    if kind == LOGISTIC:
        bend += math.log(max(a, 1.0)) - math.log(max(b, 1.0))
    if kind != RATE and scale > _BROAD and scale * math.sinh(low) < bend < scale * math.sinh(high):
        shift, scale = bend, 2.0
        low = _end(-1.0, kind, a, b, mode, at_mode, v, shift, scale)
        high = _end(1.0, kind, a, b, mode, at_mode, v, shift, scale)
    coarse, fine = np.full(6, math.nan), np.full(6, math.nan)
    count = _FEWEST // 2
    agree = False
    while not agree and count < _MOST:
        count *= 2
        coarse[:] = fine
        _look(kind, a, b, mode, at_mode, v, shift, scale, low, high, count, int(count > _FEWEST), room)
        _terms(pull, v, scale * (high - low) / count, count, base[0], base[1], room, fine)
        agree = True
        zero, power = _ZERO, _ZERO
        for k in range(5):
            if not abs(fine[k] - coarse[k]) <= _AGREEMENT * abs(fine[k]) + zero + power:
                agree = False
            zero /= math.sqrt(max(v, 1.0))
            power *= fine[5]
    if not agree:
        return missing, missing, missing, missing, missing, missing, missing
    of_p, of_q = _powers(mode, count, room) if kind == LOGISTIC else (missing, missing)
    value += fine[0] - 0.5 * pull * pull * v - 0.5 * math.log(2.0 * math.pi * v)
    return value, fine[1], fine[2], fine[3], fine[4], of_p, of_q


_SMOOTH = 0.7  # If the integrand is narrower, `log_rate_normal` uses a single trapezoid rule.
_SPACING, _FEWEST_DIGITS = 0.5, 1e-12  # Distance between nodes of the single rule, in widths; negligible weight.
_SURE = 1e-6, 1e5  # Smallest variance and largest rate at the mode for the single rule of `log_rate_normal`.


@kernel
def log_rate_normal(a, mean, v, room):
    """Return log E exp(a g − eᵍ) and its first two derivatives in the mean to nine digits.

    If the integrand is narrow, one trapezoid rule about its mode suffices. Otherwise `log_unimodal_normal` is used.
    """
    if _SURE[0] < v < math.inf and a >= 0.0 and math.isfinite(mean):
        mode = _mode_of_rate(mean + v * a, v)
        rate = math.exp(mode)
        width = 1.0 / math.sqrt(1.0 / v + rate)
        if width < _SMOOTH and rate < _SURE[1]:
            half, step = 0.5 / v, _SPACING * width
            total, first, second, excess, square = 1.0, 0.0, 0.0, 0.0, 0.0
            for sign in (-1.0, 1.0):
                growth, ratio, t = 1.0, math.exp(sign * step), 0.0
                weight = 1.0
                while weight > _FEWEST_DIGITS:
                    growth *= ratio
                    t += sign * step
                    more = growth - 1.0
                    weight = math.exp(-half * t * t - rate * (more - t))
                    total += weight
                    first += weight * t
                    second += weight * t * t
                    excess += weight * more
                    square += weight * more * more
            first /= total
            second = second / total - first * first
            excess *= rate / total
            square = square * rate * rate / total - excess * excess
            pull = (mode - mean) / v if v * rate > 1.0 else a - rate
            value = a * mode - rate - 0.5 * pull * pull * v + math.log(total * step * _INV_SQRT_2PI / math.sqrt(v))
            if second < 0.5 * v:
                return value, pull + first / v, (second / v - 1.0) / v
            return value, a - rate - excess, square - rate - excess
    value, slope, curvature, _, _, _, _ = log_unimodal_normal(RATE, a, 0.0, mean, v, room)
    return value, slope, curvature
