"""Moments of an observation, by formulas for PyMC's distributions or by integrals of the density."""

from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.distributions.censored import CensoredRV
from pymc.distributions.continuous import (
    AsymmetricLaplaceRV,
    ExGaussianRV,
    HalfCauchyRV,
    HalfStudentTRV,
    KumaraswamyRV,
    MoyalRV,
    SkewNormalRV,
    WaldRV,
    WeibullBetaRV,
)
from pymc.distributions.discrete import DiscreteUniformRV
from pymc.distributions.distribution import DiracDeltaRV
from pymc.distributions.mixture import _BaseMixtureRV
from pymc.distributions.truncated import TruncatedRV
from pytensor.graph.op import Op
from pytensor.tensor.random.basic import (
    BetaBinomialRV,
    BetaRV,
    BinomialRV,
    CauchyRV,
    ExponentialRV,
    GammaRV,
    GeometricRV,
    GumbelRV,
    HalfNormalRV,
    InvGammaRV,
    LaplaceRV,
    LogisticRV,
    LogNormalRV,
    NegBinomialRV,
    NormalRV,
    ParetoRV,
    PoissonRV,
    StudentTRV,
    TriangularRV,
    UniformRV,
)
from pytensor.tensor.variable import TensorConstant, TensorVariable
from scipy.special import expit

from pymc_gpep.array_types import Array
from pymc_gpep.likelihoods.log_probabilities import distribution_parts, log_above

type _Pair = tuple[TensorVariable, TensorVariable]


def mean_and_square(variable: TensorVariable) -> _Pair:
    """Return graphs of the mean of a random variable and of its square, given its parameters.

    An infinite moment is ∞. A mean that does not exist is NaN.

    Raises
    ------
    NotImplementedError
        If the distribution has no formula here.
    """
    op, *given = distribution_parts(variable)
    if isinstance(op, _BaseMixtureRV):
        return _mixture(variable)
    if isinstance(op, TruncatedRV):
        return _positive_counts(*given)
    if isinstance(op, DiracDeltaRV):
        value = _number(variable.owner.inputs[-1])
        return value, value**2
    if isinstance(op, CensoredRV):
        raise NotImplementedError
    parameters = [_number(each) for each in given]
    if raw := _raw(op, *parameters):
        return raw
    mean, variance = _central(op, *parameters)
    return mean, cast(TensorVariable, variance + mean**2)


def _number(variable: TensorVariable) -> TensorVariable:
    return cast(TensorVariable, variable.astype("float64"))


def _mixture(variable: TensorVariable) -> _Pair:
    """Return the moments of a mixture, as averages over its components."""
    _, weights, *components = variable.owner.inputs
    pairs = [mean_and_square(each) for each in components]
    if len(pairs) == 1:
        (pair,) = pairs
    else:
        pair = tuple(pt.stack(pt.broadcast_arrays(*each), axis=-1) for each in zip(*pairs, strict=True))
    first, second = (pt.sum(pt.switch(pt.eq(weights, 0.0), 0.0, weights * each), axis=-1) for each in pair)
    return first, second


def _positive_counts(base: TensorVariable, lower: TensorVariable, upper: TensorVariable) -> _Pair:
    """Return the moments of a count without 0, as in hurdle models."""
    ends = [each.data if isinstance(each, TensorConstant) else np.array(np.nan) for each in (lower, upper)]
    counts = isinstance(base.owner.op, PoissonRV | NegBinomialRV | BinomialRV)
    if not counts or not ((ends[0] > 0.0) & (ends[0] <= 1.0)).all() or not (ends[1] >= 1e300).all():
        raise NotImplementedError
    log_share = log_above(base, pt.constant(0.0))
    first, second = (pt.exp(pt.log(each) - log_share) for each in mean_and_square(base))
    return first, second


def _exists(condition: TensorVariable, value: TensorVariable, otherwise: float) -> TensorVariable:
    return cast(TensorVariable, pt.switch(condition, value, otherwise))


def _raw(op: Op, *p: TensorVariable) -> _Pair | None:
    """Return the mean and the mean square, if these are simpler than the variance; else None."""
    match op:
        case CauchyRV():
            return 0.0 * p[0] + np.nan, 0.0 * p[0] + np.inf
        case HalfCauchyRV():
            return 0.0 * p[-1] + np.inf, 0.0 * p[-1] + np.inf
        case LogNormalRV():
            mu, sigma = p
            return pt.exp(mu + 0.5 * sigma**2), pt.exp(2.0 * (mu + sigma**2))
        case WeibullBetaRV():
            alpha, beta = p
            log_beta = pt.log(beta)
            return pt.exp(log_beta + pt.gammaln(1.0 + 1.0 / alpha)), pt.exp(
                2.0 * log_beta + pt.gammaln(1.0 + 2.0 / alpha)
            )
        case KumaraswamyRV():
            a, b = p
            first, second = (
                pt.exp(pt.log(b) + pt.gammaln(1.0 + k / a) + pt.gammaln(b) - pt.gammaln(1.0 + k / a + b))
                for k in (1.0, 2.0)
            )
            return first, second
        case ParetoRV():
            alpha, m = p
            first, second = (_exists(pt.gt(alpha, k), m**k * alpha / (alpha - k), np.inf) for k in (1.0, 2.0))
            return first, second
        case InvGammaRV():
            alpha, beta = p
            return (
                _exists(pt.gt(alpha, 1.0), beta / (alpha - 1.0), np.inf),
                _exists(pt.gt(alpha, 2.0), beta**2 / ((alpha - 1.0) * (alpha - 2.0)), np.inf),
            )
        case StudentTRV():
            nu, mu, sigma = p
            spread = _exists(pt.gt(nu, 2.0), sigma**2 * nu / (nu - 2.0), np.inf)
            return _exists(pt.gt(nu, 1.0), mu + 0.0 * nu, np.nan), mu**2 + spread
        case HalfStudentTRV():
            nu, sigma = p
            log_ratio = pt.gammaln(0.5 * (nu + 1.0)) - pt.gammaln(0.5 * nu)
            mean = 2.0 * sigma * pt.sqrt(nu / np.pi) * pt.exp(log_ratio) / (nu - 1.0)
            return (
                _exists(pt.gt(nu, 1.0), mean, np.inf),
                _exists(pt.gt(nu, 2.0), sigma**2 * nu / (nu - 2.0), np.inf),
            )
    return None


def _central(op: Op, *p: TensorVariable) -> _Pair:
    """Return the mean and the variance; raise NotImplementedError without a formula."""
    match op:
        case NormalRV():
            mu, sigma = p
            return mu, sigma**2
        case LaplaceRV():
            mu, b = p
            return mu, 2.0 * b**2
        case LogisticRV():
            mu, s = p
            return mu, (np.pi * s) ** 2 / 3.0
        case AsymmetricLaplaceRV():
            b, kappa, mu = p
            return mu - (kappa - 1.0 / kappa) / b, (1.0 + kappa**4) / (kappa * b) ** 2
        case ExGaussianRV():
            mu, sigma, nu = p
            return mu + nu, sigma**2 + nu**2
        case GumbelRV():
            mu, beta = p
            return mu + np.euler_gamma * beta, (np.pi * beta) ** 2 / 6.0
        case MoyalRV():
            mu, sigma = p
            return mu + (np.euler_gamma + np.log(2.0)) * sigma, (np.pi * sigma) ** 2 / 2.0
        case SkewNormalRV():
            mu, sigma, alpha = p
            shift = alpha / pt.sqrt(1.0 + alpha**2) * np.sqrt(2.0 / np.pi)
            return mu + sigma * shift, sigma**2 * (1.0 - shift**2)
        case HalfNormalRV():
            loc, sigma = p
            return loc + np.sqrt(2.0 / np.pi) * sigma, (1.0 - 2.0 / np.pi) * sigma**2
        case ExponentialRV():
            (scale,) = p
            return scale, scale**2
        case GammaRV():
            alpha, scale = p
            return alpha * scale, alpha * scale**2
        case WaldRV():
            mu, lam, alpha = p
            return mu + alpha, mu**3 / lam
        case BetaRV():
            alpha, beta = p
            total = alpha + beta
            return alpha / total, alpha / total * (beta / total) / (total + 1.0)
        case UniformRV():
            lower, upper = p
            return 0.5 * (lower + upper), (upper - lower) ** 2 / 12.0
        case TriangularRV():
            lower, c, upper = p
            spread = lower**2 + c**2 + upper**2 - lower * c - lower * upper - c * upper
            return (lower + c + upper) / 3.0, spread / 18.0
        case PoissonRV():
            (mu,) = p
            return mu, mu
        case NegBinomialRV():
            n, prob = p
            mean = n * (1.0 - prob) / prob
            return mean, mean / prob
        case BinomialRV():
            n, prob = p
            return n * prob, n * prob * (1.0 - prob)
        case BetaBinomialRV():
            n, alpha, beta = p
            total = alpha + beta
            mean = n * (alpha / total)
            return mean, mean * (beta / total) * (total + n) / (total + 1.0)
        case GeometricRV():
            (prob,) = p
            return 1.0 / prob, (1.0 - prob) / prob**2
        case DiscreteUniformRV():
            lower, upper = p
            return 0.5 * (lower + upper), ((upper - lower + 1.0) ** 2 - 1.0) / 12.0
    raise NotImplementedError


type _LogDensity = Callable[[NDArray[Any]], Array]
"""Function that returns log p (k, n) at observations (k, n)."""

_TRIED = np.concatenate([[0.0], *(sign * np.geomspace(1e-6, 1e8, 57) for sign in (-1.0, 1.0))])
_DROP = 60.0  # A density is negligible where its log is this much below the mode.
_LONGEST = 1100  # Largest number of doublings of a distance.
_GOLDEN = 0.5 * (np.sqrt(5.0) - 1.0)
_FEWEST, _MOST = 32, 1024  # Smallest and largest number of quadrature nodes on each side of a mode.
_MOST_COUNTS = 4096  # Largest number of counts of which each is a term of the sum.
_EACH = 256.0  # Number of counts on each side of the mode that are single terms, if there are more counts.
_PANEL = 64  # Number of steps in each panel of counts that are not single terms.
_PARTS = 8  # Number of blocks of counts, to save memory.
# Largest relative change of an integral, when its nodes are doubled, that counts as converged.
_INTEGRAL_TOLERANCE = 1e-7
_NORMALISED = 1e-4  # Largest error of ∫ p dy that counts as 0.
_HEAVY = 8.0  # Largest exponent a of a power tail, P(Y > y) ∝ y⁻ᵃ, whose integral is added.
_SLOWEST = 0.01  # A moment of order k is infinite if the exponent a of the tail is below k plus this number.
_REACH, _FAR = 9.0, 45.0  # Range of a latent value, in standard deviations: its initial and its largest half-width.
_STEP = 1.0  # Initial step between latent values, in standard deviations.
_FINEST = 0.02
_CONVERGED = 1e-6  # Largest relative change of an average that counts as converged.
_TINY = 1e-14  # Relative size of a term at an end of the range that counts as 0.
_UNSEEN = 1e-6  # Largest share of extrapolated terms in an average.
_STRAIGHT = 1e-5  # Largest change of slope at which a log moment counts as a straight line.
_HUGE = 690.0  # An infinite moment counts as overflow if the preceding log moment exceeds this value.
_ROWS = 64  # Number of rows in a block, if moments have no formulas.


def average_moments(
    moments: Callable[[Array, NDArray[np.intp]], Array], mean: Array, sd: Array, together: int = _ROWS
) -> Array:
    """Return the mean of an observation and of its square, (2, m), averaged over normal latent values.

    The average is a sum over evenly spaced latent values, which converges fast. If a moment is not a number at a latent
    value, it is extrapolated from latent values nearer to the mean. If the share of extrapolated terms is not
    negligible, the average is NaN.

    Parameters
    ----------
    moments : callable
        Function that returns moments (2, k) for latent values (k,) and row numbers (k,).
    mean, sd : array (m,)
        Means and standard deviations of the latent values.
    together : int
        Number of rows in a block, to save memory.
    """
    out = np.full((2, len(mean)), np.nan)
    for begin in range(0, len(mean), together):
        rows = np.arange(begin, min(begin + together, len(mean)))
        point = sd[rows] == 0.0
        if point.any():
            out[:, rows[point]] = moments(mean[rows[point]], rows[point])
        if (wide := rows[~point]).size:
            out[:, wide] = _averaged(moments, mean[wide], sd[wide], wide)
    return out


def _averaged(
    moments: Callable[[Array, NDArray[np.intp]], Array], mean: Array, sd: Array, rows: NDArray[np.intp]
) -> Array:
    def at(z: Array, chosen: NDArray[np.intp]) -> Array:
        f = mean[chosen] + sd[chosen] * z[:, None]
        return moments(f.ravel(), np.tile(rows[chosen], len(z))).reshape(2, len(z), -1)

    every = np.arange(len(rows))
    reach, z = _REACH, np.arange(-_REACH, _REACH + 0.5 * _STEP, _STEP)
    values = at(z, every)
    while reach < _FAR and not _ended(z, values):
        further = np.arange(reach + _STEP, 1.6 * reach + _STEP, _STEP)
        reach = further[-1]
        values = np.concatenate([at(-further[::-1], every), values, at(further, every)], axis=1)
        z = np.concatenate([-further[::-1], z, further])
    out = np.full((2, len(rows)), np.nan)
    left, step = every, _STEP
    before = _sum(z, values)
    while step > _FINEST and left.size:
        step *= 0.5
        between = z[:-1] + step
        fine = np.empty((2, 2 * len(z) - 1, left.size))
        fine[:, ::2], fine[:, 1::2] = values, at(between, left)
        z = np.linspace(z[0], z[-1], fine.shape[1])
        now = _sum(z, fine)
        with np.errstate(invalid="ignore"):
            scale = np.stack([np.sqrt(np.abs(now[1])), np.abs(now[1])])
            same = (now == before) | np.isnan(now) & np.isnan(before) | (np.abs(now - before) <= _CONVERGED * scale)
        done = same.all(axis=0)
        out[:, left[done]] = now[:, done]
        left, before, values = left[~done], now[:, ~done], fine[:, :, ~done]
    return out


def _log_terms(z: Array, values: Array) -> tuple[Array, NDArray[np.bool_], NDArray[np.bool_]]:
    """Return log terms of sums (k, m), a mask of extrapolated terms, and a mask of infinite terms.

    A log moment is extrapolated by a straight line from the last finite log moments. If the finite log moments lie on a
    straight line, the extrapolation is exact, and its terms are not in the mask.
    """
    with np.errstate(all="ignore"):
        log = np.log(np.abs(values))
    seen = np.isfinite(values)
    guess, infinite = ~seen & ~np.isposinf(log), np.isposinf(log)
    middle = len(z) // 2
    for side in (range(middle, len(z)), range(middle, -1, -1)):
        last, slope, bend = np.full((3, log.shape[1]), np.nan)
        for i in side:
            with np.errstate(invalid="ignore"):
                rise = log[i] - last
                bend = np.where(seen[i], np.abs(rise - slope), bend)
            beyond = ~seen[i] & ~np.isnan(last)
            infinite[i] &= ~(beyond & (last > _HUGE))
            guess[i] &= ~(beyond & (bend <= _STRAIGHT))
            slope = np.where(seen[i], rise, slope)
            last = np.where(seen[i], log[i], np.where(beyond, last + np.nan_to_num(slope, neginf=0.0), last))
            log[i] = np.where(beyond, last, log[i])
    return log - 0.5 * z[:, None] ** 2, guess, infinite


def _ended(z: Array, values: Array) -> bool:
    """Return whether the terms of all sums are negligible at both ends of the range."""
    for each in values:
        log, _, infinite = _log_terms(z, each)
        with np.errstate(invalid="ignore"):
            top = np.nanmax(np.where(np.isfinite(log), log, -np.inf), axis=0)
            ends = np.fmax(log[0], log[-1]) > top + np.log(_TINY)
        if (ends & ~infinite.any(axis=0)).any():
            return False
    return True


def _sum(z: Array, values: Array) -> Array:
    """Return averages (2, m) of moments (2, k, m) at latent values z (k,)."""
    out = []
    for each in values:
        log, guess, infinite = _log_terms(z, each)
        with np.errstate(all="ignore"):
            sign = np.where(np.isfinite(each), np.sign(each), np.where(np.signbit(each), -1.0, 1.0))
            top = np.nanmax(np.where(np.isfinite(log), log, -np.inf), axis=0)
            top = np.where(np.isfinite(top), top, 0.0)
            terms = np.where(np.isneginf(log), 0.0, np.exp(log - top))
            whole = terms.sum(axis=0)
            average = (sign * terms).sum(axis=0) * np.exp(top) * (z[1] - z[0]) / np.sqrt(2.0 * np.pi)
            lost = ~(np.where(guess, terms, 0.0).sum(axis=0) <= _UNSEEN * whole)
            average = np.where(infinite.any(axis=0), np.inf, average)
        out.append(np.where(lost, np.nan, average))
    return np.stack(out)


def _places(f: Array, round_off: bool) -> Array:
    """Return sorted trial observations (k, n) of many sizes, including f, exp(f) and expit(f)."""
    with np.errstate(over="ignore"):
        likely = np.stack([f, np.exp(np.minimum(f, 40.0)), expit(f), -f])
    places = np.concatenate([np.repeat(_TRIED[:, None], f.size, 1), likely])
    return np.asarray(np.sort(np.round(places) if round_off else places, axis=0))


def _mode(log_density: _LogDensity, places: Array, values: Array, round_off: bool) -> tuple[Array, Array]:
    """Return the mode of an observation near the best of several places, and its log density, by golden sections."""
    at, columns, last = values.argmax(axis=0), np.arange(values.shape[1]), len(places) - 1
    low, high = (places[np.clip(at + step, 0, last), columns] for step in (-1, 1))
    best, top = places[at, columns], values[at, columns]
    for _ in range(60):
        width = high - low
        inner = np.stack([high - _GOLDEN * width, low + _GOLDEN * width])
        left, right = np.nan_to_num(log_density(np.round(inner) if round_off else inner), nan=-np.inf, posinf=-np.inf)
        for place, value in ((inner[0], left), (inner[1], right)):
            better = value > top
            best, top = np.where(better, np.round(place) if round_off else place, best), np.where(better, value, top)
        # Keep the half that contains the best place.
        keep_left = best < inner[1] if round_off else np.where(left == right, best < inner[1], left > right)
        low, high = np.where(keep_left, low, inner[0]), np.where(keep_left, inner[1], high)
        if (high - low <= 1e-9 * (np.abs(high) + np.abs(low))).all():
            break
    return best, top


def _ends(log_density: _LogDensity, mode: Array, top: Array, step: Array) -> tuple[Array, Array]:
    """Return the ends of a range around a mode. The density is negligible outside."""
    ends = []
    for sign in (-1.0, 1.0):
        inside, reach = np.zeros_like(mode), step.copy()
        for _ in range(_LONGEST):
            value = log_density((mode + sign * reach)[None])[0]
            short = np.isfinite(value) & (value > top - _DROP) & (reach < 1e250)
            if not short.any():
                break
            inside = np.where(short, reach, inside)
            reach = np.where(short, 2.0 * reach, reach)
        for _ in range(80):  # Bisect the end of the support.
            middle = 0.5 * (inside + reach)
            counts = np.isfinite(log_density((mode + sign * middle)[None])[0])
            inside, reach = np.where(counts, np.maximum(middle, inside), inside), np.where(counts, reach, middle)
        ends.append(mode + sign * reach)
    return ends[0], ends[1]


def _width(log_density: _LogDensity, mode: Array, top: Array) -> Array:
    """Return the approximate distance from the mode at which the log density is lower by 1."""
    found = np.maximum(1.0, np.abs(mode)) * 0.1
    for _ in range(_LONGEST):
        value = np.nan_to_num(log_density(mode + np.stack([-found, found])), nan=-np.inf, posinf=-np.inf)
        fallen = top - value.max(axis=0)
        factor = np.where(fallen > 3.0, 0.5, np.where((fallen < 0.1) & (found < 1e200), 2.0, 1.0))
        if (factor == 1.0).all() or (found < 1e-250).any():
            break
        found = found * factor
    return found


def _tails(
    log_density: _LogDensity, mode: Array, top: Array, ends: tuple[Array, Array], round_off: bool
) -> tuple[Array, NDArray[np.bool_]]:
    """Return ∫ p yᵏ dy, k < 3, (3, n) beyond the ends for a density with power tails, and a mask of infinite integrals.

    An infinite integral is ∞. If the mean is a sum of ∞ and −∞, it is NaN.
    """
    found, infinite = np.zeros((2, 3, mode.size))
    for end in ends:
        length, sign = np.abs(end - mode), np.sign(end - mode)
        places = mode + np.array([[1.0], [0.5]]) * (end - mode)
        log_p, log_half = log_density(np.round(places) if round_off else places)
        exponent = (log_half - log_p) / np.log(2.0) - 1.0
        heavy = np.isfinite(exponent) & (exponent < _HEAVY) & (log_p < top - 0.9 * _DROP)
        about_mode = [
            np.where(exponent > k + _SLOWEST, np.exp(log_p) * length ** (k + 1) / (exponent - k) * sign**k, 0.0)
            for k in range(3)
        ]
        powers = np.stack(
            [
                about_mode[0],
                mode * about_mode[0] + about_mode[1],
                mode**2 * about_mode[0] + 2.0 * mode * about_mode[1] + about_mode[2],
            ]
        )
        found = found + np.where(heavy, powers, 0.0)
        for k in range(3):
            slow = heavy & (exponent <= k + _SLOWEST)
            found[k] = np.where(slow, found[k] + np.inf * sign**k, found[k])
            infinite[k] += slow
    return found, infinite > 0.0


def number_moments(log_density: _LogDensity, f: Array) -> Array:
    """Return the mean of a real observation and of its square, (2, n), at latent values (n,); NaN without convergence.

    If the integral of p is 1 − p(0), then p(0) is a probability, as in hurdle models.
    """
    with np.errstate(all="ignore"):
        places = _places(f, round_off=False)
        values = np.nan_to_num(log_density(places), nan=-np.inf, posinf=-np.inf)
        at_zero = np.exp(np.where(places == 0.0, values, -np.inf).max(axis=0))
        values = np.where(places == 0.0, -np.inf, values)
        mode, top = _mode(log_density, places, values, round_off=False)
        width = _width(log_density, mode, top)
        low, high = _ends(log_density, mode, top, width)
        tails, infinite = _tails(log_density, mode, top, (low, high), round_off=False)
        out = np.full((2, f.size), np.nan)
        before: Array | None = None
        count = _FEWEST
        while count <= _MOST:
            t = np.linspace(-4.5, 4.5, count)[:, None]
            u = 0.5 * np.pi * np.sinh(t)
            part = expit(2.0 * u)  # Position between the two ends, accurate near both.
            slope = np.pi * np.cosh(t) * part * expit(-2.0 * u) * (t[1] - t[0])
            total: Any = 0.0
            for end in (low, high):
                length = end - mode
                y = np.where(part < 0.5, mode + length * part, end - length * expit(-2.0 * u))
                value = log_density(y)
                p = np.where(np.isfinite(value), np.exp(value), 0.0) * slope * np.abs(length)
                total = total + np.stack([p.sum(0), (p * y).sum(0), (p * y * y).sum(0)])
            if before is not None:
                spread = np.where(infinite[2], np.abs(total[1]) + total[0] * width, np.sqrt(total[0] * total[2]))
                size = np.stack([total[0], spread, total[2]])  # The scale of errors is not the mean, which may be 0.
                done = (infinite | (np.abs(total - before) <= _INTEGRAL_TOLERANCE * (size + 1e-12))).all(axis=0)
                wholes = np.stack([total[0], total[0] + at_zero]) + tails[0]
                right = np.abs(wholes - 1.0) < _NORMALISED
                done &= right.any(axis=0)
                whole = np.where(right[0], *wholes)
                out = np.where(done & np.isnan(out), (total + tails)[1:] / whole, out)
                if done.all():
                    break
            before = total
            count *= 2
    return out


def count_moments(log_density: _LogDensity, f: Array) -> Array:
    """Return the moments of a count. Its distribution may have two modes, for example with excess zeros."""
    with np.errstate(all="ignore"):
        places = _places(f, round_off=True)
        values = np.nan_to_num(log_density(places), nan=-np.inf, posinf=-np.inf)
        mode, top = _mode(log_density, places, values, round_off=True)
        ends = _whole_ends(log_density, mode, top)
        beyond = np.where((places < ends[0]) | (places > ends[1]), _peaks(values), -np.inf)
        other, its_top = _mode(log_density, places, beyond, round_off=True)
        total, windows = np.zeros((3, f.size)), [(mode, *ends)]
        if (counts := its_top > top - _DROP).any():
            low, high = _whole_ends(log_density, other, its_top)
            # Make the ranges of the two modes disjoint.
            low = np.where(other > mode, np.maximum(low, ends[1] + 1.0), low)
            high = np.where(counts, np.where(other < mode, np.minimum(high, ends[0] - 1.0), high), low - 1.0)
            windows.append((other, low, high))
        for centre, low, high in windows:
            for offsets, weights in _offsets(float(np.max(np.maximum(high - centre, centre - low), initial=0.0))):
                y = centre + offsets[:, None]
                value = log_density(y)
                p = np.where(np.isfinite(value) & (y >= low) & (y <= high), np.exp(value), 0.0) * weights[:, None]
                total += np.stack([p.sum(axis=0), (p * y).sum(axis=0), (p * y * y).sum(axis=0)])
        tails, _ = _tails(log_density, mode, top, ends, round_off=True)
        whole, *moments = total + tails
        return np.where(np.abs(whole - 1.0) < _NORMALISED, np.stack(moments) / whole, np.nan)


def _peaks(values: Array) -> Array:
    """Return values (k, n) at sorted places, replaced by −∞ except at local maxima."""
    walled = np.pad(values, ((1, 1), (0, 0)), constant_values=-np.inf)
    return np.where((values > walled[:-2]) & (values >= walled[2:]), values, -np.inf)


def _offsets(longest: float) -> Iterator[tuple[Array, Array]]:
    """Yield distances of integers from a mode, with weights of a sum over all integers, in blocks to save memory.

    Near the mode each integer is a term. Beyond, panels of Simpson's rule have equal numbers of nodes, and each panel
    is twice as long as the previous panel.
    """
    near = longest if longest < _MOST_COUNTS else _EACH
    exact = np.arange(-near, near + 1.0)
    weights = np.ones(exact.size)
    if near < longest:
        weights[[0, -1]] = 0.5
    yield from zip(np.array_split(exact, _PARTS), np.array_split(weights, _PARTS), strict=True)
    while near < longest:
        step = near / _PANEL
        offsets = near + step * np.arange(_PANEL + 1)
        weights = step / 3.0 * np.r_[1.0, np.tile([4.0, 2.0], _PANEL // 2 - 1), 4.0, 1.0]
        yield np.r_[-offsets[::-1], offsets], np.r_[weights[::-1], weights]
        near *= 2.0


def _whole_ends(log_density: _LogDensity, mode: Array, top: Array) -> tuple[Array, Array]:
    ends = []
    for sign in (-1.0, 1.0):
        reach = np.ones_like(mode)
        for _ in range(64):
            value = log_density((mode + sign * reach)[None])[0]
            short = np.isfinite(value) & (value > top - _DROP) & (reach < 1e12)
            if not short.any():
                break
            reach = np.where(short, 2.0 * reach, reach)
        ends.append(mode + sign * reach)
    return ends[0], ends[1]
