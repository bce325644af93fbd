"""The softmax averaged over a normal distribution of the latent values: c probabilities from one integral.

Only differences between the classes matter, which takes one dimension off. Another is done in closed form. Given the
differences among the other classes, the probability of class l is the logistic function of a normal variable. That
leaves c − 2 dimensions: no dimension for two classes, one quadrature for three, and with more scrambled Sobol points in
growing number. The class l is the one with the largest conditional variance, so that the rest is smooth.
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import inlined_kernel, kernel
from pymc_gpep.kernels.special.logistic_normal import logistic_normal
from pymc_gpep.kernels.special.softmax_sobol import sobol_average

_NEGATIVE = 1e-6  # of the largest variance: a negative variance beyond this is no rounding error
_EPS = np.finfo(np.float64).eps

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)
_RANGE = 9.0  # of a standard normal variable, to 1e-18
_PANELS = 6  # that quadrature starts with
_QUADRATURE_TOLERANCE = 1e-10
_MAX_INTERVALS = 64
_INV_SQRT_2PI = 1.0 / math.sqrt(2.0 * math.pi)


@kernel
def _set_apart(mean, cov, own, mu, s):
    """Mean and covariance, into `mu` and `s`, of all latent values less the average of those of classes but `own`."""
    c = mean.shape[0]
    others = 1.0 / (c - 1)
    average = (np.sum(mean) - mean[own]) * others
    for k in range(c):
        mu[k] = mean[k] - average
        row = 0.0
        for j in range(c):
            s[k, j] = cov[k, j]
            if j != own:
                row += cov[k, j] * others
        for j in range(c):
            s[k, j] -= row
    for j in range(c):
        column = 0.0
        for k in range(c):
            if k != own:
                column += s[k, j] * others
        for k in range(c):
            s[k, j] -= column


@kernel
def _condition(s, own, smallest, root):
    """Factor the covariance `s`, which is overwritten, with class `own` last.

    Column by column of `root` (c, rank) takes the largest variance left among the other classes. Returns the rank and
    the variance of class `own` given the others.
    """
    c = s.shape[0]
    for rank in range(c - 1):
        pivot = -1
        for k in range(c):
            if k != own and (pivot < 0 or s[k, k] > s[pivot, pivot]):
                pivot = k
        if rank == c - 2 or not s[pivot, pivot] > smallest:
            return rank, max(s[own, own], 0.0)
        scale = 1.0 / math.sqrt(s[pivot, pivot])
        for k in range(c):
            root[k, rank] = s[k, pivot] * scale
        for k in range(c):
            for j in range(c):
                s[k, j] -= root[k, rank] * root[j, rank]
    return 0, max(s[own, own], 0.0)


@kernel
def _among_others(mu, root, rank, z, own, f):
    """Softmax among the classes but `own` into `f`; returns the mean of f_own less the log of their sum."""
    c = mu.shape[0]
    top = -np.inf
    for k in range(c):
        f[k] = mu[k]
        for q in range(rank):
            f[k] += root[k, q] * z[q]
        if k != own:
            top = max(top, f[k])
    total = 0.0
    for k in range(c):
        if k != own:
            f[k] = math.exp(f[k] - top)
            total += f[k]
    for k in range(c):
        if k != own:
            f[k] /= total
    return f[own] - top - math.log(total)


@kernel
def _add(weight, below, above, f, own, sums):
    for k in range(f.shape[0]):
        sums[k] += weight * (above if k == own else below * f[k])


@kernel
def _piece(left, right, mu, root, rank, sd, own, z, f, sums):
    """Integral over z from `left` to `right` into `sums` (c,)."""
    sums[:] = 0.0
    half = 0.5 * (right - left)
    for node, weight in zip(_NODES, _WEIGHTS):  # noqa: B905  numba knows no strict
        z[0] = left + half * (1.0 + node)
        below, above = logistic_normal(_among_others(mu, root, rank, z, own, f), sd)
        _add(half * _INV_SQRT_2PI * weight * math.exp(-0.5 * z[0] * z[0]), below, above, f, own, sums)


@inlined_kernel
def _quadrature(mu, root, rank, sd, own, z, f, ends, values, first, second, probabilities):
    """Adaptive Gauss-Legendre quadrature over one variable into `probabilities`; returns an estimate of the error."""
    width = 2.0 * _RANGE / _PANELS
    for i in range(_PANELS):
        ends[i] = (i * width - _RANGE, (i + 1) * width - _RANGE)
        _piece(ends[i, 0], ends[i, 1], mu, root, rank, sd, own, z, f, values[i])
    depth = _PANELS
    error = 0.0
    probabilities[:] = 0.0
    while depth > 0:
        depth -= 1
        left, right = ends[depth]
        middle = 0.5 * (left + right)
        _piece(left, middle, mu, root, rank, sd, own, z, f, first)
        _piece(middle, right, mu, root, rank, sd, own, z, f, second)
        change = 0.0
        for k in range(mu.shape[0]):
            change = max(change, abs(first[k] + second[k] - values[depth, k]))
        if change < _QUADRATURE_TOLERANCE or depth + 2 > _MAX_INTERVALS or middle in (left, right):
            probabilities += first + second
            error += change
        else:
            ends[depth] = (left, middle)
            values[depth] = first
            ends[depth + 1] = (middle, right)
            values[depth + 1] = second
            depth += 2
    return error


@kernel
def softmax_average(mean, cov, normals, tolerance, probabilities, errors):
    """Compute E softmax(f), f ~ N(mean, cov), at many points.

    Parameters
    ----------
    mean : (m, c) array
    cov : (m, c, c) array
        Both triangles are read; it may be singular.
    normals : (sequences, blocks, c − 2, points of a block) array of 32-bit numbers
        Independently scrambled Sobol sequences, made standard normal. Not used with three classes or fewer.
    tolerance : float
        Absolute error of each probability that the Sobol points aim for.
    probabilities : (m, c) array
        Overwritten. They sum to 1; NaN where the input has NaN or `cov` is not positive semi-definite.
    errors : (m,) array
        Overwritten with the estimated error of the least certain probability. Where Sobol points are used it is half an
        interval of 99 per cent. Where quadrature is used it is the change under refinement, and with two classes
        rounding.
    """
    m, c = mean.shape
    rows = np.empty((3, c))
    mu, f, z = rows[0], rows[1], rows[2]
    rows = np.empty((2, c, c))
    s, root = rows[0], rows[1]
    ends, values = np.empty((_MAX_INTERVALS + 2, 2)), np.empty((_MAX_INTERVALS + 2, c))
    rows = np.empty((2, c))
    first, second = rows[0], rows[1]
    for i in range(m):
        probabilities[i] = np.nan
        errors[i] = np.nan
        if not math.isfinite(np.sum(mean[i]) + np.sum(cov[i])):
            continue
        largest = np.max(np.abs(cov[i]))
        smallest = c * _EPS * largest
        own = 0
        best = -1.0
        negative = 0.0
        for k in range(c):
            _set_apart(mean[i], cov[i], k, mu, s)
            negative = min(negative, s[k, k])
            _, variance = _condition(s, k, smallest, root)
            if variance > best:
                own = k
                best = variance
        if negative < -_NEGATIVE * largest:
            continue
        _set_apart(mean[i], cov[i], own, mu, s)
        rank, variance = _condition(s, own, smallest, root)
        if rank == 0:
            below, above = logistic_normal(_among_others(mu, root, rank, z, own, f), math.sqrt(variance))
            probabilities[i] = 0.0
            _add(1.0, below, above, f, own, probabilities[i])
            errors[i] = abs(below + above - 1.0)
        elif rank == 1:
            errors[i] = _quadrature(
                mu, root, rank, math.sqrt(variance), own, z, f, ends, values, first, second, probabilities[i]
            )
        else:
            errors[i] = sobol_average(mu, root, rank, variance, own, normals, tolerance, probabilities[i])
        probabilities[i] /= np.sum(probabilities[i])
