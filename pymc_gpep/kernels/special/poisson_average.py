"""log E Poisson(y; eᵃ), a ~ N(m, v), and its first four derivatives in m.

The integrand in t, from its mode a₀ = log c on, is exp(−c (eᵗ − 1 − t) − t²/2v), since y − c = (a₀ − m)/v there. The
trapezoid rule in τ with t = scale · sinh τ integrates it, with twice the nodes until the digits agree. Digits double
with the nodes, so that the error left is about the square of the difference.
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.special.normal import log_ndtr_derivatives

_FEWEST, _MOST = 32, 8192  # nodes
_AGREEMENT = 1e-7  # of a rule with one of half its nodes
_ZERO = 1e-12  # what counts as zero of terms of the order of 1
_DROP = 45.0  # of the logarithm of the integrand from its mode to the ends of the rule
_LONGEST = 200  # steps of a search
_POINT = 1e-10  # what a variance adds to the logarithm, below which the normal density is a point
_NOTHING = -40.0  # logarithm of the rate's second moment over its first, up to which log E exp(−r) is −E r
_STEP = 1e12  # variance to which exp(−eᵃ), one less a distribution function of variance π²/6, is a step
_INV_SQRT_2PI = 1.0 / math.sqrt(2.0 * math.pi)
_SQRT_HALF = math.sqrt(0.5)
_EULER = 0.5772156649015329  # minus the mean of that distribution
_WIDE = 10.0  # variance from which on cumulants of a serve in any case
_TERMS = 9  # of the series of eᵗ − 1 − t
_RIGHT = 8.0  # standard deviations of a wide density: up to here E exp(−eᵃ) is no smaller than its rounding

# exp(−eᵃ) = P(g > a) for a g with the density exp(g − eᵍ), narrow and analytic: nodes of the trapezoid rule for it.
_NODES = np.arange(-40.0, 4.5, 0.25)
_WEIGHTS = 0.25 * np.exp(_NODES - np.exp(_NODES))

ROOM = (3, _MOST + 1)
"""Shape of the room that an average wants."""


@kernel
def _beyond_linear(t):
    """eᵗ − 1 − t."""
    if abs(t) > 0.1:
        return math.expm1(t) - t
    total = 1.0
    for k in range(_TERMS, 2, -1):
        total = 1.0 + total * t / k
    return 0.5 * t * t * total


@kernel
def _mode(centre, variance):
    """The root of a + v eᵃ = `centre`: Newton's method, from above on a convex function."""
    a = centre
    if centre > 0.0:
        a = min(centre, max(0.0, math.log(centre / variance)))
    for _ in range(_LONGEST):
        rise = variance * math.exp(a)
        step = (a + rise - centre) / (1.0 + rise)
        a -= step
        if abs(step) <= 1e-15 * (1.0 + abs(a)):
            break
    return a


@kernel
def _rates(t, mode, rate):
    """Return r − c and r − c − c t at a = mode + t.

    `rate` is c = exp(mode), which may underflow where r does not.
    """
    if abs(t) > 0.1:
        excess = math.exp(mode + t) - rate
        return excess, excess - rate * t
    return rate * math.expm1(t), rate * _beyond_linear(t)


@kernel
def _exponent(t, mode, rate, variance):
    return -_rates(t, mode, rate)[1] - 0.5 * t * t / variance


@kernel
def _distance(sign, mode, rate, variance, start):
    """To where the logarithm of the integrand is about 1 below the mode's."""
    found = start
    for _ in range(_LONGEST):
        fallen = -_exponent(sign * found, mode, rate, variance)
        if not fallen <= 2.0:
            found *= 0.6
        elif fallen < 0.5:
            found *= 1.5
        else:
            break
    return found


@kernel
def _end(sign, mode, rate, variance, scale):
    """τ from which on nothing counts."""
    tau = 2.0
    for _ in range(_LONGEST):
        if not -_exponent(sign * scale * math.sinh(tau), mode, rate, variance) < _DROP:
            break
        tau += 0.5
    return sign * tau


@kernel
def _look(mode, rate, variance, scale, low, high, count, room):
    """t, r − c and the integrand's weight at the nodes 0…count into `room`."""
    step = (high - low) / count
    growth = math.exp(low)
    ratio = math.exp(step)
    for k in range(count + 1):
        t = 0.5 * scale * (growth - 1.0 / growth)
        excess, beyond = _rates(t, mode, rate)
        weight = math.exp(-beyond - 0.5 * t * t / variance)
        room[0, k] = t
        room[1, k] = excess if weight > 0.0 else 0.0  # it may be infinite
        room[2, k] = weight * 0.5 * (growth + 1.0 / growth) if weight > 0.0 else 0.0
        growth *= ratio


@kernel
def _terms(rate, pull, variance, measure, count, every, room, out):
    """Compute the log of the integral, without its value at the mode, and four derivatives in m.

    The sums are over every `every`-th node. The results are written into `out` (6,), and after them the number that
    cumulants are powers of, for their rounding. `pull` is (a₀ − m)/v, and `measure` is the distance between nodes. Let
    r = eᵃ, ℓ′ = y − r and ℓ″ = ℓ‴ = −r. Derivatives are E ℓ′, E ℓ″ + Var ℓ′, E ℓ‴ + 3 Cov(ℓ″, ℓ′) + κ₃(ℓ′) and so on.
    Where N is wide they are cumulants of a, which cancel where it is narrow.
    """
    total = 0.0
    average = 0.0
    excess = 0.0  # of r over c
    for k in range(0, count + 1, every):
        total += room[2, k]
        average += room[2, k] * room[0, k]
        excess += room[2, k] * room[1, k]
    average /= total
    excess /= total
    d_two = d_three = d_four = g_two = g_three = g_four = cross = 0.0
    for k in range(0, count + 1, every):
        weight = room[2, k] / total
        d = (room[0, k] - average) / variance
        g = excess - room[1, k]
        d_two += weight * d * d
        d_three += weight * d * d * d
        d_four += weight * d * d * d * d
        g_two += weight * g * g
        g_three += weight * g * g * g
        g_four += weight * g * g * g * g
        cross += weight * d * g
    out[0] = math.log(total * measure * every)
    if d_two * variance < 0.5 or variance > _WIDE:
        out[1] = pull + average / variance
        out[2] = d_two - 1.0 / variance
        out[3] = d_three
        out[4] = d_four - 3.0 * d_two * d_two
        out[5] = math.sqrt(d_two)
    else:
        mean_rate = rate + excess
        out[1] = pull - excess
        out[2] = g_two - mean_rate
        out[3] = 3.0 * g_two + g_three - mean_rate
        out[4] = cross + 6.0 * g_two + 6.0 * g_three + g_four - 3.0 * g_two * g_two
        out[5] = math.sqrt(g_two)


@kernel
def _none_of_wide(mean, v):
    """The logarithm of E exp(−eᵃ), a ~ N(m, v), v wide, as one less E Φ((m − g)/√v), and its derivatives in m."""
    scale = 1.0 / math.sqrt(v)
    some = first = second = third = fourth = 0.0  # probability of a count, and its derivatives
    for k in range(len(_NODES)):
        x = scale * (mean - _NODES[k])
        density = _WEIGHTS[k] * scale * _INV_SQRT_2PI * math.exp(-0.5 * x * x)
        some += _WEIGHTS[k] * 0.5 * math.erfc(-x * _SQRT_HALF)
        first += density
        second -= density * x * scale
        third += density * (x * x - 1.0) * scale**2
        fourth -= density * x * (x * x - 3.0) * scale**3
    none = some - 1.0  # minus the probability of no count: derivatives of its logarithm follow from these ratios
    a, b, c, d = first / none, second / none, third / none, fourth / none
    return (
        math.log1p(-some),
        a,
        b - a * a,
        c - 3.0 * a * b + 2.0 * a**3,
        d - 4.0 * a * c - 3.0 * b * b + 12.0 * a * a * b - 6.0 * a**4,
    )


@kernel
def log_poisson_normal(mean, v, y, room):
    """The logarithm and its first four derivatives in the mean, with a `room` of `ROOM`.

    NaN where the rules do not agree.
    """
    if y == 0.0 and mean + 1.5 * v < _NOTHING:
        rate = math.exp(mean + 0.5 * v)
        return -rate, -rate, -rate, -rate, -rate
    if y == 0.0 and v >= _STEP:
        scale = 1.0 / math.sqrt(v + math.pi * math.pi / 6.0)
        value, first, second, third, fourth = log_ndtr_derivatives(-scale * (mean + _EULER))
        return value, -scale * first, scale**2 * second, -(scale**3) * third, scale**4 * fourth
    if y == 0.0 and v > _WIDE and mean < _RIGHT * math.sqrt(v):
        return _none_of_wide(mean, v)
    constant = math.lgamma(y + 1.0)
    rate = math.exp(mean)
    if v * (1.0 + rate + (y - rate) ** 2) < _POINT:
        return y * mean - rate - constant, y - rate, -rate, -rate, -rate
    a = _mode(mean + v * y, v)
    rate = math.exp(a)
    pull = (a - mean) / v if v * rate > 1.0 else y - rate  # the one that cancels less
    width = 1.0 / math.sqrt(rate + 1.0 / v)
    scale = min(_distance(-1.0, a, rate, v, width), _distance(1.0, a, rate, v, width))
    low = _end(-1.0, a, rate, v, scale)
    high = _end(1.0, a, rate, v, scale)
    coarse, fine = np.empty(6), np.empty(6)
    count = _FEWEST
    agree = False
    while not agree and count < _MOST:
        count *= 2
        _look(a, rate, v, scale, low, high, count, room)
        measure = scale * (high - low) / count
        _terms(rate, pull, v, measure, count, 2, room, coarse)
        _terms(rate, pull, v, measure, count, 1, room, fine)
        agree = True
        zero, power = _ZERO, _ZERO
        for k in range(5):
            if not abs(fine[k] - coarse[k]) <= _AGREEMENT * abs(fine[k]) + zero + power:
                agree = False
            zero /= math.sqrt(max(v, 1.0))
            power *= fine[5]
    if not agree:
        return math.nan, math.nan, math.nan, math.nan, math.nan
    value = fine[0] + y * a - rate - constant - 0.5 * pull * pull * v - 0.5 * math.log(2.0 * math.pi * v)
    return value, fine[1], fine[2], fine[3], fine[4]
