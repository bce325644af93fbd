"""Class probabilities of dependent utilities, as averages over common factors. Given the factors they are independent.

The covariance of the utilities is V = D + L Lᵀ with a diagonal D. D is as large as possible such that V − D is positive
semi-definite on differences between classes, on which probabilities depend. Given z ~ N(0, I), the utilities m + L z +
√D ε are independent. If the dependence of classes is weak, probabilities vary little with z, and rules of low degree
suffice.
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.linalg.small_matrices import lower_factor, solve_with_factor
from pymc_gpep.kernels.special.largest_of_independent import (
    FROM,
    MOST_NODES,
    ROOM,
    largest_of_tabulated,
    node_step,
    tabulate,
)

_MOST_STEPS = 100
_ACCURACY = 0.01  # Newton's method ends when the sum of the variances D is accurate to this share.
_ROUNDING = 1e-10  # Smaller variances of factors count as 0, relative to the mean variance.
_FIRST = 4  # The spread of this number of rules decides whether the other rules are evaluated.
_HOPELESS = 2.0  # If the expected error exceeds the tolerance by this factor, no more rules are used.


@kernel
def _centre(a):
    """Subtract the means over rows and columns from a square matrix."""
    c = a.shape[0]
    for i in range(c):
        a[i] -= np.sum(a[i]) / c
    for j in range(c):
        a[:, j] -= np.sum(a[:, j]) / c


@kernel
def _inverse(a, lower, inverse):
    """Invert a symmetric matrix by its Cholesky factor; return False if the matrix is not positive definite."""
    c = a.shape[0]
    for i in range(c):
        for j in range(i + 1):
            total = a[i, j]
            for k in range(j):
                total -= lower[i, k] * lower[j, k]
            if i > j:
                lower[i, j] = total / lower[j, j]
            elif total > 0.0:
                lower[i, i] = math.sqrt(total)
            else:
                return False
    for column in range(c):
        for i in range(c):
            total = 1.0 if i == column else 0.0
            for k in range(i):
                total -= lower[i, k] * inverse[k, column]
            inverse[i, column] = total / lower[i, i]
        for i in range(c - 1, -1, -1):
            total = inverse[i, column]
            for k in range(i + 1, c):
                total -= lower[k, i] * inverse[k, column]
            inverse[i, column] = total / lower[i, i]
    return True


@kernel
def _pivoted_root(a, smallest, root):
    """Write `root` (c, c − 1) with root rootᵀ = a, and overwrite a; return False if a variance is below −`smallest`."""
    c, columns = root.shape
    root[:] = 0.0
    for rank in range(columns):
        pivot = 0
        for k in range(c):
            if a[k, k] < -smallest:
                return False
            if a[k, k] > a[pivot, pivot]:
                pivot = k
        if not a[pivot, pivot] > smallest:
            break
        scale = 1.0 / math.sqrt(a[pivot, pivot])
        for k in range(c):
            root[k, rank] = a[k, pivot] * scale
        for k in range(c):
            for j in range(c):
                a[k, j] -= root[k, rank] * root[j, rank]
    return True


@kernel
def split_covariance(v, variance, root, room):
    """Split the covariance v into `variance` (c,) and `root` (c, c − 1).

    Then v = diag(variance) + root rootᵀ on differences between classes. The sum of the variances D_k is as large as
    possible such that v − D is positive semi-definite on differences (minimum trace factor analysis, Bentler 1972).
    Newton steps maximise Σ D_k + μ log |v − D| + μ Σ log D_k. The weight μ falls until the sum is within 1 % of its
    maximum.

    Parameters
    ----------
    v : (c, c) array
        Positive definite. Overwritten, centred.
    variance, root : (c,) and (c, c − 1) array
        Overwritten.
    room : (5, c, c) array

    Returns
    -------
    bool
        False if `v` is not positive definite on differences.
    """
    c = v.shape[0]
    rest, lower, m, hessian, step = room[0], room[1], room[2], room[3], room[4, 0]
    _centre(v)
    common = np.trace(v) / c
    if not common > 0.0:
        return False
    variance[:] = 0.0
    barrier = 0.0
    for iteration in range(_MOST_STEPS):
        # Add a variance along the vector 1, so that the matrix is invertible.
        _rest(v, variance, rest)
        rest += common / c
        if not _inverse(rest, lower, m):
            return False
        m -= 1.0 / (common * c)
        if iteration == 0:  # At this start v − D is positive definite, since D^½ m D^½ has the trace ½.
            for k in range(c):
                variance[k] = 0.5 / (m[k, k] * c)
            barrier = np.sum(variance) / c
            continue
        for k in range(c):
            step[k] = 1.0 + barrier * (1.0 / variance[k] - m[k, k])
            for j in range(c):
                hessian[k, j] = barrier * m[k, j] * m[k, j]
            hessian[k, k] += barrier / (variance[k] * variance[k])
        decrement = solve_with_factor(lower_factor(hessian), c, step) / barrier
        length = 1.0 if decrement < 0.0625 else 1.0 / (1.0 + math.sqrt(decrement))
        for k in range(c):
            variance[k] += length * step[k]
        if decrement < 0.25:
            if 2.0 * c * barrier < _ACCURACY * np.sum(variance):
                break
            barrier *= 0.1
    _rest(v, variance, rest)
    return _pivoted_root(rest, _ROUNDING * common, root)


@kernel
def _rest(v, variance, rest):
    c = v.shape[0]
    rest[:] = 0.0
    for k in range(c):
        rest[k, k] = -variance[k]
    _centre(rest)
    rest += v


@kernel
def _spread(estimates, deviations):
    """Return the largest error of the mean of r estimates (r, c): its standard error times `deviations[r]`."""
    rules, c = estimates.shape
    worst = 0.0
    for k in range(c):
        worst = max(worst, np.var(estimates[:, k]) / (rules - 1))
    return deviations[rules] * math.sqrt(worst)


@kernel
def average_over_factors(
    mean, cov, normals, weights, common, noise_weights, noise_means, noise_variances, tolerance, deviations,
    probabilities, errors,
):  # fmt: skip
    """Compute P(v_k is the largest of v), v = f + noise, f ~ N(mean, cov), for every class k and many points.

    Parameters
    ----------
    mean : (m, c) array
    cov : (m, c, c) array
        Both triangles are read; the matrices may be singular.
    normals, weights : (r, q, c − 1) and (r, q) array
        r independent unbiased rules for a standard normal average, weights summing to 1.
    common : float
        Variance of the normal part of the noise of every utility.
    noise_weights, noise_means, noise_variances : (components,) array
        Normal mixture for the rest of the noise; weights sum to 1 and may be negative.
    tolerance : float
        Target error. If the first four rules predict a larger error for all rules, no more rules are evaluated.
    deviations : (r + 1,) array
        The reported error is this number of standard errors, by the number of rules used.
    probabilities : (m, c) array
        Overwritten. They sum to 1; NaN if the input is not finite or the covariance is not positive definite.
    errors : (m,) array
        Overwritten with the estimated error of the least certain probability. It is the error from the spread of the
        rules, plus the distance of the sum of the probabilities from 1.
    """
    m, c = mean.shape
    rules, points = weights.shape
    noise = 0.0
    for j in range(noise_weights.shape[0]):
        noise += noise_weights[j] * (noise_variances[j] + noise_means[j] ** 2)
        for i in range(noise_weights.shape[0]):
            noise -= noise_weights[j] * noise_means[j] * noise_weights[i] * noise_means[i]
    v, room = np.empty((c, c)), np.empty((5, c, c))
    root = np.empty((c, c - 1))
    rows = np.empty((6, c))
    variance, width, low, high, moved, p = rows[0], rows[1], rows[2], rows[3], rows[4], rows[5]
    of_factors = np.empty((c - 1, c))
    of_largest, tables = np.empty(MOST_NODES + 16), np.empty(c * ROOM)
    shapes = np.empty((c, 2), np.uint64)
    estimates = np.empty((rules, c))
    for i in range(m):
        probabilities[i] = np.nan
        errors[i] = np.nan
        v[:] = cov[i]
        for k in range(c):
            v[k, k] += common
        if not (math.isfinite(np.sum(mean[i]) + np.sum(v)) and split_covariance(v, variance, root, room)):
            continue
        for k in range(c):
            width[k] = math.sqrt(variance[k] + noise)
            for j in range(c - 1):
                of_factors[j, k] = root[k, j]
        step = node_step(width)
        for k in range(c):
            low[k] = FROM * width[k]
            high[k] = tabulate(
                variance[k], noise_weights, noise_means, noise_variances, width[k], step,
                shapes[k], tables[k * ROOM : (k + 1) * ROOM],
            )  # fmt: skip
        estimates[:] = 0.0
        done = rules
        reaches = deviations[rules] / deviations[min(_FIRST, rules)] * math.sqrt(_FIRST / rules)
        for rule in range(rules):
            for q in range(points):
                for k in range(c):
                    moved[k] = mean[i, k]
                for j in range(c - 1):
                    z = normals[rule, q, j]
                    for k in range(c):
                        moved[k] += of_factors[j, k] * z
                largest_of_tabulated(moved, low, high, step, shapes, tables, p, of_largest)
                for k in range(c):
                    estimates[rule, k] += weights[rule, q] * p[k]
            if rule + 1 == _FIRST and reaches * _spread(estimates[:_FIRST], deviations) > _HOPELESS * tolerance:
                done = _FIRST
                break
        used = estimates[:done]
        total = 0.0
        kept = 0.0
        for k in range(c):
            estimate = np.mean(used[:, k])
            total += estimate
            probabilities[i, k] = max(estimate, 0.0)
            kept += probabilities[i, k]
        probabilities[i] /= kept
        errors[i] = _spread(used, deviations) + abs(total - 1.0)
