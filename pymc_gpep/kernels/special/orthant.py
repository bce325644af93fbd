"""Probabilities that jointly normal variables are all below bounds, and that each utility is the largest.

Throughout, the probability is P(x_1 < b_1, ..., x_d < b_d) for x ~ N(0, S). The utility v_k of class k is the largest
if all d = c − 1 differences v_j − v_k are below 0.

For two variables Owen's T function gives a closed form, a difference of larger terms. Its absolute error is 1e-16, so
small probabilities lose all digits. Then `bivariate` integrates positive terms. Let h and k be the bounds in units of
the standard deviations, ρ the correlation, and r = √(1 − ρ²). The probability is the integral over s > 0 of
φ(h − s) Φ((k − ρ (h − s)) / r). The logarithm of this integrand is concave with a curvature of 1 or more.
Gauss-Legendre rules integrate it on pieces that are narrower than its variation.

For three variables (`trivariate`), Plackett's identity gives the product of a univariate and a bivariate probability,
plus one integral. The integral is over the angle by which the first variable turns towards the second and third (Genz,
2004, section 3). Its terms may have either sign, so a small probability loses its digits. `small_trivariate` integrates
positive terms over the first variable instead.

For more than four classes, rules over common factors are tried first (`pymc_gpep.kernels.special.common_factors`). If
they do not reach the tolerance, `largest_probabilities` reorders and separates the variables (Genz and Bretz 2009,
chapter 4). The probability is then an integral over the unit cube. Minimax exponential tilting (Botev 2017) makes the
integrand nearly constant, and scrambled Sobol points in growing number estimate it. The estimates of the classes are
independent, so the distance of their sum from 1 measures the error.
"""

import math

import numpy as np
from numba.core import types

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.external import scipy_function
from pymc_gpep.kernels.linalg.small_matrices import lower_factor, solve_with_factor
from pymc_gpep.kernels.special.normal import hazard, log_ndtr, log_ndtr_and_hazard
from pymc_gpep.kernels.special.tabulated_normal import cdf_and_density, quantile

_SQRT_HALF = math.sqrt(0.5)
_LOG_ROOT_2PI = 0.5 * math.log(2.0 * math.pi)

_owens_t = scipy_function("special.cython_special", "owens_t", types.float64(types.float64, types.float64))

_SMALL = 1e-8  # The closed form loses half its digits for smaller probabilities.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)
_FALL = 40.0  # The integral ends where the log integrand is below its maximum by this.
_REACH = math.sqrt(2.0 * _FALL)  # Distance from the mode to the ends, for a curvature of 1.
_LEAST_LOG = -740.0  # The exponential of a smaller number counts as 0.
_HALVINGS = 60
_WIDTH = 1.5  # Width of a piece, in standard deviations.
_FLAT = 8.3  # For larger x, Φ(x) is 1 in double precision.
_PIECES = 4  # The integral has at least this number of pieces.


@kernel
def ndtr(x):
    """Return Φ(x)."""
    return 0.5 * math.erfc(-x * _SQRT_HALF)


@kernel
def closed_form(b1, b2, s11, s12, s22):
    """Return P(x₁ < b₁, x₂ < b₂) for normal x with variances s11, s22 and covariance s12 (Owen 1956)."""
    # At a bound of 0 the formula is undefined but has a limit: use a bound near 0.
    b1 = 1e-300 if b1 == 0.0 else b1
    b2 = 1e-300 if b2 == 0.0 else b2
    h = b1 / math.sqrt(s11)
    k = b2 / math.sqrt(s22)
    rest = s22 - s12 * s12 / s11
    if rest <= 0.0:  # The variables are proportional.
        return ndtr(min(h, k)) if s12 > 0.0 else max(ndtr(h) - ndtr(-k), 0.0)
    root = math.sqrt(s11 * rest)
    value = 0.5 * (ndtr(h) + ndtr(k))
    value -= _owens_t(h, (b2 * s11 - s12 * b1) / (b1 * root))
    value -= _owens_t(k, (b1 * s22 - s12 * b2) / (b2 * root))
    if (b1 < 0.0) != (b2 < 0.0):
        value -= 0.5
    return 0.0 if value < 0.0 else value


@kernel
def bivariate(b1, b2, s11, s12, s22):
    """Return P(x₁ < b₁, x₂ < b₂) with a relative error of 1e-8, however small it is."""
    value = closed_form(b1, b2, s11, s12, s22)
    if value < _SMALL:
        h, k = b1 / math.sqrt(s11), b2 / math.sqrt(s22)
        rho = s12 / math.sqrt(s11 * s22)
        r = math.sqrt((s22 - s12 * s12 / s11) / s22)
        return _small(h, (k - rho * h) / r, rho / r)
    return value


@kernel
def _log_integrand(s, h, offset, rate):
    """Return log(φ(h − s) Φ(offset + rate s)) + ½ log 2π."""
    return log_ndtr(offset + rate * s) - 0.5 * (h - s) * (h - s)


@kernel
def _mode(h, offset, rate):
    """Return the mode of φ(h − s) Φ(offset + rate s) in s, by bisection."""
    low = 0.0
    # A normal hazard φ / Φ at z is at most 1 + max(−z, 0).
    high = max(h, 0.0) + max(rate, 0.0) * (1.0 + max(-offset, 0.0))
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        if h - middle + rate * hazard(offset + rate * middle) > 0.0:
            low = middle
        else:
            high = middle
    return high


@kernel
def _end(mode, top, furthest, h, offset, rate):
    """Return the s between `mode` and `furthest` beyond which the integrand is negligible; else `furthest`."""
    inside, outside = mode, furthest
    for _ in range(_HALVINGS):
        middle = 0.5 * (inside + outside)
        if _log_integrand(middle, h, offset, rate) > top - _FALL:
            inside = middle
        else:
            outside = middle
    return outside


@kernel
def _small(h, offset, rate):
    """Return the integral over s > 0 of φ(h − s) Φ(offset + rate s)."""
    mode = _mode(h, offset, rate)
    top = _log_integrand(mode, h, offset, rate)
    if not top > _LEAST_LOG:
        return 0.0
    s = _end(mode, top, max(0.0, mode - _REACH), h, offset, rate)
    end = _end(mode, top, mode + _REACH, h, offset, rate)
    widest = min(_WIDTH, (end - s) / _PIECES)
    total = 0.0
    while s < end:
        width = min(widest, end - s)
        # A piece on which Φ varies must be narrow.
        if offset + rate * (s if rate > 0.0 else s + width) < _FLAT:
            width = min(width, _WIDTH / max(abs(rate), _WIDTH))
        for q in range(_NODES.shape[0]):
            at = s + 0.5 * width * (1.0 + _NODES[q])
            total += 0.5 * width * _WEIGHTS[q] * math.exp(_log_integrand(at, h, offset, rate) - top)
        s += width
    return math.exp(top - _LOG_ROOT_2PI) * total


SMALL = 1e-10
"""Smaller results of `trivariate` are inaccurate. `small_trivariate` replaces them."""

_INV_SQRT_2PI = 1.0 / math.sqrt(2.0 * math.pi)

_ROUGH_NODES, _ROUGH_WEIGHTS = np.polynomial.legendre.leggauss(8)
_RANGE = 9.0  # A standard normal variable exceeds this with probability 1e-19.
_QUADRATURE_TOLERANCE = 1e-11
_DIFFERENCE = 1e-10  # A piece is divided if two rules on it differ by more. The finer rule is more exact.
_FURTHEST = 40.0  # Bounds are limited to this many standard deviations, where Φ is 1 or 0.
_MAX_INTERVALS = 64

STACK = (_MAX_INTERVALS + 2, 3)
"""Shape of the workspace `stack` of `trivariate` and `small_trivariate`."""


@kernel
def _cdf(z):
    if z >= _RANGE:
        return 1.0
    return cdf_and_density(z)[0] if z > -_RANGE else 0.0


@kernel
def _turning(t, a2, a3, r, h1, h2, h3):
    """Return the derivative in t of P(x < b), if variables 1 and j = 2, 3 have the correlations sin(t a_j)."""
    s2, c2 = math.sin(t * a2), math.cos(t * a2)
    s3, c3 = math.sin(t * a3), math.cos(t * a3)
    v2, v3 = c2 * c2, c3 * c3
    rest = r - s2 * s3
    root = math.sqrt(max(v2 * v3 - rest * rest, 1e-300))
    third = (h3 * v2 - h1 * (s3 - s2 * r) - h2 * rest) / (root * c2)
    second = (h2 * v3 - h1 * (s2 - s3 * r) - h3 * rest) / (root * c3)
    with_second = a2 * math.exp(-0.5 * (h1 * h1 + h2 * h2 - 2.0 * s2 * h1 * h2) / v2) * _cdf(third)
    return with_second + a3 * math.exp(-0.5 * (h1 * h1 + h3 * h3 - 2.0 * s3 * h1 * h3) / v3) * _cdf(second)


@kernel
def _turning_piece(left, width, nodes, weights, a2, a3, r, h1, h2, h3):
    total = 0.0
    for q in range(nodes.shape[0]):
        total += weights[q] * _turning(left + 0.5 * width * (1.0 + nodes[q]), a2, a3, r, h1, h2, h3)
    return total * width / (4.0 * math.pi)


@kernel
def _correlation(s, i, j):
    return min(max(s[i, j] / math.sqrt(s[i, i] * s[j, j]), -1.0), 1.0)


@kernel
def _bound(b, s, i):
    return min(max(b[i] / math.sqrt(s[i, i]), -_FURTHEST), _FURTHEST)


@kernel
def trivariate(b, s, stack):
    """Return P(x < b) for three normal variables with the covariance `s`, with an error of 1e-10."""
    h1, h2, h3 = _bound(b, s, 0), _bound(b, s, 1), _bound(b, s, 2)
    r12, r13, r23 = _correlation(s, 0, 1), _correlation(s, 0, 2), _correlation(s, 1, 2)
    # The bivariate probability is of the two variables with the largest correlation.
    if abs(r12) >= max(abs(r13), abs(r23)):
        h1, h3, r12, r23 = h3, h1, r23, r12
    elif abs(r13) >= abs(r23):
        h1, h2, r13, r23 = h2, h1, r23, r13
    a2, a3 = math.asin(r12), math.asin(r13)
    total = _cdf(h1) * closed_form(h2, h3, 1.0, r23, 1.0)
    left, depth = 0.0, 1
    stack[0, 0] = 1.0
    while depth > 0:
        width = stack[depth - 1, 0] - left
        rough = _turning_piece(left, width, _ROUGH_NODES, _ROUGH_WEIGHTS, a2, a3, r23, h1, h2, h3)
        fine = _turning_piece(left, width, _NODES, _WEIGHTS, a2, a3, r23, h1, h2, h3)
        if abs(fine - rough) < _DIFFERENCE or depth == _MAX_INTERVALS:
            total += fine
            left += width
            depth -= 1
        else:
            stack[depth, 0] = left + 0.5 * width
            depth += 1
    return total


@kernel
def _small_piece(left, right, b, lower, s22, s23, s33):
    total = 0.0
    half = 0.5 * (right - left)
    for i in range(_NODES.shape[0]):
        z = left + half * (1.0 + _NODES[i])
        inner = closed_form(b[1] - lower[1, 0] * z, b[2] - lower[2, 0] * z, s22, s23, s33)
        total += _WEIGHTS[i] * math.exp(-0.5 * z * z) * inner
    return half * _INV_SQRT_2PI * total


@kernel
def small_trivariate(b, lower, stack):
    """Return P(x < b) for S = L Lᵀ, L = `lower` and x = L z, by quadrature over z₁.

    Pieces end where the mean of x₂ or x₃ given z₁ equals its bound, since the integrand may be steep there.
    """
    s22 = lower[1, 1] ** 2
    s23 = lower[1, 1] * lower[2, 1]
    s33 = lower[2, 1] ** 2 + lower[2, 2] ** 2
    top = min(b[0] / lower[0, 0], _RANGE)
    bottom = min(top, 0.0) - _RANGE
    one, two = b[1] / lower[1, 0], b[2] / lower[2, 0]
    one = min(max(one, bottom), top) if one == one else top
    two = min(max(two, bottom), top) if two == two else top
    depth = 0
    for left, right in ((bottom, min(one, two)), (min(one, two), max(one, two)), (max(one, two), top)):
        if left < right:
            stack[depth, 0] = left
            stack[depth, 1] = right
            stack[depth, 2] = _small_piece(left, right, b, lower, s22, s23, s33)
            depth += 1
    total = 0.0
    while depth > 0:
        depth -= 1
        left, right, whole = stack[depth, 0], stack[depth, 1], stack[depth, 2]
        middle = 0.5 * (left + right)
        first = _small_piece(left, middle, b, lower, s22, s23, s33)
        second = _small_piece(middle, right, b, lower, s22, s23, s33)
        if abs(first + second - whole) < _QUADRATURE_TOLERANCE or depth + 2 > _MAX_INTERVALS:
            total += first + second
        else:
            stack[depth, 1] = middle
            stack[depth, 2] = first
            stack[depth + 1, 0] = middle
            stack[depth + 1, 1] = right
            stack[depth + 1, 2] = second
            depth += 2
    return total


SEQUENCES = 8
"""Number of independently scrambled Sobol sequences. The spread of their estimates measures the error."""

BITS = 30
"""Number of binary digits of the coordinates of points."""

LAST_LEVEL = 13
"""A sequence has at most 2 to this power points."""

_FIRST_LEVEL = 5
_STANDARD_ERRORS = 3.0  # The reported error is this number of standard errors.
_UNIT = 0.5**BITS
_TABULATED = 5.0  # For larger |x|, Φ(x) is not read from a table, since tails need more digits.


@kernel
def _order_and_factor(s, b, expected):
    """Reorder variables in `s` and `b`, and write the Cholesky factor into `s`. Return whether there is a factor.

    The next variable is the least likely to be within its bound, given the expected values of the variables before it
    (Gibson, Glasbey and Elston 1994).
    """
    d = s.shape[0]
    for i in range(d):
        best = i
        smallest = np.inf
        for j in range(i, d):
            variance = s[j, j]
            mean = 0.0
            for k in range(i):
                variance -= s[j, k] ** 2
                mean += s[j, k] * expected[k]
            if not variance > 0.0:
                return False
            bound = (b[j] - mean) / math.sqrt(variance)
            if bound < smallest:
                best = j
                smallest = bound
        # Swap variables i and best. Columns before i hold the factor, columns from i on hold the matrix.
        b[i], b[best] = b[best], b[i]
        for k in range(i):
            s[i, k], s[best, k] = s[best, k], s[i, k]
        if best != i:
            s[i, i], s[best, best] = s[best, best], s[i, i]
            for k in range(i + 1, best):
                s[k, i], s[best, k] = s[best, k], s[k, i]
            for k in range(best + 1, d):
                s[k, i], s[k, best] = s[k, best], s[k, i]
        for j in range(i, d):
            total = s[j, i]
            for k in range(i):
                total -= s[j, k] * s[i, k]
            s[j, i] = math.sqrt(total) if j == i else total / s[i, i]
        expected[i] = -log_ndtr_and_hazard(smallest)[1]
    return True


@kernel
def _tilt(lower, bound, mu, a, matrix, t, trial, residual, hazards, step):
    """Compute the shift `mu` of each standard normal variable by minimax tilting.

    Botev's saddle point in the variables and in mu reduces to d equations, since all bounds are upper bounds. Let L be
    unit lower triangular and A = L Lᵀ. Let t_k be the argument of Φ that bounds variable k at the saddle point, and λ
    the hazard φ/Φ at t. The equations read

        t − (A − I) λ(t) = bound,    mu = −(L − I)ᵀ λ,

    the condition for the minimum of a convex function of λ. So damped Newton steps converge to the minimum.
    """
    d = bound.shape[0]
    for i in range(d):
        for j in range(i + 1):
            total = 0.0
            for k in range(j + 1):
                total += lower[i, k] * lower[j, k]
            a[i, j] = total
            a[j, i] = total
    t[:] = bound
    squares = _tilt_residual(a, bound, t, hazards, residual)
    for _ in range(50):
        if not squares > 1e-8:
            break
        for i in range(d):
            fall = max(hazards[i] * (t[i] + hazards[i]), 1e-10)  # Minus the slope of the hazard.
            step[i] = residual[i]
            for j in range(i + 1):
                matrix[i, j] = a[i, j]
            matrix[i, i] += (1.0 - fall) / fall
        solve_with_factor(lower_factor(matrix), d, step)
        for i in range(d):
            step[i] /= max(hazards[i] * (t[i] + hazards[i]), 1e-10)
        factor = 1.0
        better = False
        while not better and factor > 1e-6:
            for i in range(d):
                trial[i] = t[i] - factor * step[i]
            lowered = _tilt_residual(a, bound, trial, hazards, residual)
            better = lowered < squares
            factor *= 0.5
        if not better:
            break
        t[:] = trial
        squares = lowered
    _tilt_residual(a, bound, t, hazards, residual)
    for j in range(d):
        mu[j] = 0.0
        for k in range(j + 1, d):
            mu[j] -= lower[k, j] * hazards[k]


@kernel
def _tilt_residual(a, bound, t, hazards, residual):
    """Write the residual t − (A − I) λ(t) − bound of the equations of `_tilt`. Return its sum of squares."""
    d = bound.shape[0]
    for i in range(d):
        hazards[i] = log_ndtr_and_hazard(t[i])[1]
    squares = 0.0
    for i in range(d):
        total = t[i] + hazards[i] - bound[i]
        for j in range(d):
            total -= a[i, j] * hazards[j]
        residual[i] = total
        squares += total * total
    return squares


@kernel
def _add_points(points, first, last, shift, lower, bound, mu, z, room, sums):
    """Add values of the tilted integrand at points `first` to `last` of each sequence to `sums` (SEQUENCES,).

    All sequences are computed together, so the processor can compute independent sums in parallel.
    """
    d = bound.shape[0]
    limit, cdf, product, exponent = room
    for i in range(first, last):
        product[:] = 1.0
        exponent[:] = 0.0
        for k in range(d):
            limit[:] = bound[k] - mu[k]
            for j in range(k):
                coefficient = lower[k, j]
                for q in range(SEQUENCES):
                    limit[q] -= coefficient * z[j, q]
            for q in range(SEQUENCES):
                x = limit[q]
                cdf[q] = cdf_and_density(x)[0] if abs(x) < _TABULATED else ndtr(x)
                product[q] *= cdf[q]
            if k < d - 1:
                half = 0.5 * mu[k]
                for q in range(SEQUENCES):
                    deviation = quantile(((points[i, k, q] ^ shift[k, q]) + 0.5) * _UNIT * cdf[q])
                    exponent[q] -= mu[k] * (half + deviation)
                    z[k, q] = mu[k] + deviation
        for q in range(SEQUENCES):
            sums[q] += product[q] * math.exp(exponent[q]) if product[q] > 0.0 else 0.0


@kernel
def _next_to_refine(variances, levels):
    """Return the class to refine next, or −1 if no class is left.

    Since probabilities sum to 1, the probability with the largest variance follows from the others. The next is chosen.
    """
    largest = 0
    for k in range(len(variances)):
        if variances[k] > variances[largest]:
            largest = k
    chosen = -1
    for k in range(len(variances)):
        if k != largest and levels[k] < LAST_LEVEL and (chosen < 0 or variances[k] > variances[chosen]):
            chosen = k
    return chosen


@kernel
def _sum_to_one(probabilities, variances):
    """Correct estimates of probabilities so that their sum is 1. Return the largest error of the result.

    The most likely correction of each estimate is in proportion to its variance. The error is several standard errors
    of the result, plus the part of the sum's distance from 1 that variances do not explain. If all variances are 0, the
    probabilities are scaled, and the error is the sum's distance from 1.
    """
    excess = -1.0
    total = 0.0
    for k in range(len(variances)):
        excess += probabilities[k]
        total += variances[k]
    error = abs(excess)
    scale = 1.0 + excess
    if total > 0.0:
        worst = 0.0
        scale = 0.0
        for k in range(len(variances)):
            share = variances[k] / total
            probabilities[k] = max(0.0, probabilities[k] - share * excess)
            scale += probabilities[k]
            worst = max(worst, variances[k] * (1.0 - share))
        error = math.sqrt(worst) * max(_STANDARD_ERRORS, abs(excess) / math.sqrt(total))
    for k in range(len(variances)):
        probabilities[k] /= scale
    return error


@kernel
def _prepare(mean, cov, k, s, b):
    """Write bounds and covariance of x_j = v_j − v_k for the other classes j; v ~ N(mean, cov + I)."""
    d = b.shape[0]
    for p in range(d):
        i = p if p < k else p + 1
        b[p] = mean[k] - mean[i]
        for q in range(d):
            j = q if q < k else q + 1
            s[p, q] = cov[i, j] - cov[i, k] - cov[k, j] + cov[k, k] + (2.0 if p == q else 1.0)


@kernel
def _is_finite(mean, cov):
    total = 0.0
    for i in range(mean.shape[0]):
        total += mean[i]
        for j in range(mean.shape[0]):
            total += cov[i, j]
    return math.isfinite(total)


@kernel
def largest_of_three(mean, cov, probabilities):
    """Compute probabilities as `largest_probabilities`, for three classes in closed form. They are not normalised."""
    s, b = np.empty((2, 2)), np.empty(2)
    for i in range(mean.shape[0]):
        for k in range(3):
            probabilities[i, k] = np.nan
            if _is_finite(mean[i], cov[i]):
                _prepare(mean[i], cov[i], k, s, b)
                probabilities[i, k] = bivariate(b[0], b[1], s[0, 0], s[0, 1], s[1, 1])


@kernel
def largest_of_four(mean, cov, probabilities):
    """Compute probabilities as `largest_probabilities`, for four classes by quadrature. They are not normalised."""
    s, b, expected = np.empty((3, 3)), np.empty(3), np.empty(3)
    stack = np.empty(STACK)
    for i in range(mean.shape[0]):
        for k in range(4):
            probabilities[i, k] = np.nan
            if _is_finite(mean[i], cov[i]):
                _prepare(mean[i], cov[i], k, s, b)
                value = trivariate(b, s, stack)
                if value < SMALL:
                    value = small_trivariate(b, s, stack) if _order_and_factor(s, b, expected) else max(value, 0.0)
                probabilities[i, k] = value


@kernel
def _mean_and_error(sums, n):
    """Return the mean over sequences of the estimates `sums` / n, and the variance of the mean."""
    mean = 0.0
    for q in range(SEQUENCES):
        mean += sums[q] / n / SEQUENCES
    variance = 0.0
    for q in range(SEQUENCES):
        variance += (sums[q] / n - mean) ** 2 / SEQUENCES
    return mean, variance / (SEQUENCES - 1)


@kernel
def largest_probabilities(mean, cov, points, shifts, tolerance, probabilities, errors):
    """Compute P(v_k is the largest of v), v ~ N(mean, cov + I), for five or more classes k and many points.

    Parameters
    ----------
    mean : (m, c) array
    cov : (m, c, c) array
        Both triangles are read.
    points : (2**LAST_LEVEL, c − 2, SEQUENCES) array of int
        Independently scrambled Sobol sequences in units of 2**−BITS.
    shifts : (c, c − 2, SEQUENCES) array of int
        Random numbers from 0 to 2**BITS − 1. They make the estimates of the classes independent.
    tolerance : float
        Target absolute error of each probability.
    probabilities : (m, c) array
        Overwritten. They sum to 1; NaN where `cov` + I is not positive definite.
    errors : (m,) array
        Overwritten with the estimated error of the least certain probability, three standard errors.
    """
    m, c = mean.shape
    d = c - 1
    s = np.empty((c, d, d))
    b, mu = np.empty((c, d)), np.empty((c, d))
    sums = np.empty((c, SEQUENCES))
    variances, levels = np.empty(c), np.empty(c, np.int64)
    a, matrix = np.empty((d, d)), np.empty((d, d))
    expected = np.empty(d)
    z, room = np.empty((d, SEQUENCES)), np.empty((4, SEQUENCES))
    t, trial, residual, hazards, step = np.empty(d), np.empty(d), np.empty(d), np.empty(d), np.empty(d)

    for i in range(m):
        valid = _is_finite(mean[i], cov[i])
        for k in range(c):
            _prepare(mean[i], cov[i], k, s[k], b[k])
            if not _order_and_factor(s[k], b[k], expected):
                valid = False
                continue
            for p in range(d):
                b[k, p] /= s[k, p, p]
                for q in range(p):
                    s[k, p, q] /= s[k, p, p]
                s[k, p, p] = 1.0
            _tilt(s[k], b[k], mu[k], a, matrix, t, trial, residual, hazards, step)
        if not valid:
            probabilities[i] = np.nan
            errors[i] = np.nan
            continue
        sums[:] = 0.0
        n = 1 << _FIRST_LEVEL
        for k in range(c):
            levels[k] = _FIRST_LEVEL
            _add_points(points, 0, n, shifts[k], s[k], b[k], mu[k], z, room, sums[k])
            probabilities[i, k], variances[k] = _mean_and_error(sums[k], n)
        while True:
            total = 0.0
            largest = 0.0
            for k in range(c):
                total += variances[k]
                largest = max(largest, variances[k])
            if not _STANDARD_ERRORS * math.sqrt(total - largest) > tolerance:
                break
            k = _next_to_refine(variances, levels)
            if k < 0:
                break
            n = 1 << levels[k]
            levels[k] += 1
            _add_points(points, n, 2 * n, shifts[k], s[k], b[k], mu[k], z, room, sums[k])
            probabilities[i, k], variances[k] = _mean_and_error(sums[k], 2 * n)
        errors[i] = _sum_to_one(probabilities[i], variances)
