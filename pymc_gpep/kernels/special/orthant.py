"""The probability that each of c jointly normal utilities is the largest: c orthant probabilities in c − 1 dimensions.

Up to three utilities have a closed form (`pymc_gpep.kernels.special.bivariate`), and for four one integral over it
remains (`pymc_gpep.kernels.special.trivariate`). With more, rules over common factors of the classes come first
(`pymc_gpep.kernels.special.common_factors`). Where these do not reach, Genz's separation of variables with the
variables reordered (Genz and Bretz 2009, chapter 4) turns the probability into an integral over the unit cube. Minimax
exponential tilting (Botev 2017) makes the integrand nearly constant, and scrambled Sobol points in growing number
estimate it. The estimates of the classes are independent, so that their sum says something about each.

Throughout, the probability wanted is P(x_1 < b_1, ..., x_d < b_d) of x ~ N(0, S), d = c − 1.
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.special.bivariate import bivariate, ndtr
from pymc_gpep.kernels.special.normal import log_ndtr_and_hazard
from pymc_gpep.kernels.special.tabulated_normal import cdf_and_density, quantile
from pymc_gpep.kernels.special.trivariate import SMALL, STACK, small_trivariate, trivariate

SEQUENCES = 8
"""Independent scrambles of the Sobol points, from whose spread their error is estimated."""

BITS = 30
"""Binary digits of the points' coordinates."""

LAST_LEVEL = 13
"""log2 of the most points of a sequence."""

_FIRST_LEVEL = 5
_STANDARD_ERRORS = 3.0  # reported as the error
_UNIT = 0.5**BITS
_TABULATED = 5.0  # where the table has the last digits but two


@kernel
def _order_and_factor(s, b, expected):
    """Cholesky factor of `s` into its lower triangle, its variables and `b` reordered; False where it has none.

    The next variable is always the one least likely to be within its bound, given that those before it are at their
    expected values (Gibson, Glasbey and Elston 1994).
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
        # Swap variables i and best: entries left of column i belong to the factor, the others to the matrix.
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
def _solve_positive_definite(a, x):
    """Overwrite `x` with a⁻¹ x, and the lower triangle of `a` with its Cholesky factor."""
    d = a.shape[0]
    for i in range(d):
        for j in range(i + 1):
            total = a[i, j]
            for k in range(j):
                total -= a[i, k] * a[j, k]
            a[i, j] = math.sqrt(total) if i == j else total / a[j, j]
    for i in range(d):
        for k in range(i):
            x[i] -= a[i, k] * x[k]
        x[i] /= a[i, i]
    for i in range(d - 1, -1, -1):
        for k in range(i + 1, d):
            x[i] -= a[k, i] * x[k]
        x[i] /= a[i, i]


@kernel
def _tilt(lower, bound, mu, a, matrix, t, trial, residual, hazards, step):
    """Compute the shift `mu` of each driving normal variable by minimax tilting.

    Botev's saddle point in the variables and in mu comes down to d equations when all bounds are upper ones. Let L be
    unit lower triangular and A = L Lᵀ. Let t_k be the argument of Φ that bounds variable k at the saddle point, and λ
    the hazard φ/Φ at t. The equations read

        t − (A − I) λ(t) = bound,    mu = −(L − I)ᵀ λ,

    the condition for a minimum of a convex function of λ, so that damped Newton steps lead there.
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
            fall = max(hazards[i] * (t[i] + hazards[i]), 1e-10)  # of the hazard
            step[i] = residual[i]
            for j in range(i + 1):
                matrix[i, j] = a[i, j]
            matrix[i, i] += (1.0 - fall) / fall
        _solve_positive_definite(matrix, step)
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
    """t − (A − I) λ(t) − bound, and its sum of squares."""
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
    """Add the tilted integrand at points `first` to `last` of each sequence, shifted, to its sum.

    The sequences go side by side, so that the processor has as many independent sums to work on.
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
    """The class with the second largest variance among those not at the last level, or −1.

    The sum to 1 fixes one probability by the others: the least certain one need not be known any better.
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
    """Make the estimates sum to 1, and return the largest error then.

    The correction is the most likely one: shared in proportion to the variances. The error is several standard errors
    of the result. It is more by as much as the sum was further from 1 than the variances explain. Where there are no
    variances the probabilities are scaled, and the error is how far from 1 the sum was.
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
    """Bounds and covariance of x_j = v_j − v_k over the other classes j; v ~ N(mean, cov + I)."""
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
    """`largest_probabilities` for three classes, each in closed form, and not made to sum to 1."""
    s, b = np.empty((2, 2)), np.empty(2)
    for i in range(mean.shape[0]):
        for k in range(3):
            probabilities[i, k] = np.nan
            if _is_finite(mean[i], cov[i]):
                _prepare(mean[i], cov[i], k, s, b)
                probabilities[i, k] = bivariate(b[0], b[1], s[0, 0], s[0, 1], s[1, 1])


@kernel
def largest_of_four(mean, cov, probabilities):
    """`largest_probabilities` for four classes, each by one quadrature or two, and not made to sum to 1."""
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
    """Return mean and variance of the mean of the estimates by sequences, from their sums over n points."""
    mean = 0.0
    for q in range(SEQUENCES):
        mean += sums[q] / n / SEQUENCES
    variance = 0.0
    for q in range(SEQUENCES):
        variance += (sums[q] / n - mean) ** 2 / SEQUENCES
    return mean, variance / (SEQUENCES - 1)


@kernel
def largest_probabilities(mean, cov, points, shifts, tolerance, probabilities, errors):
    """P(v_k is the largest of v), v ~ N(mean, cov + I), for every one of five or more classes k and many points.

    Parameters
    ----------
    mean : (m, c) array
    cov : (m, c, c) array
        Both triangles are read.
    points : (2**LAST_LEVEL, c − 2, SEQUENCES) array of int
        Independently scrambled Sobol sequences in units of 2**−BITS.
    shifts : (c, c − 2, SEQUENCES) array of int
        Random numbers from 0 to 2**BITS − 1, which make the estimates of the classes independent.
    tolerance : float
        Absolute error of each probability that is aimed for.
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
