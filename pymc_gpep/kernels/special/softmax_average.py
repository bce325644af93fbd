"""Averages of the softmax over normal latent values, by quadrature of one variable or by Sobol points.

Only differences between the classes matter, which removes one dimension. A second dimension has a closed form. Given
the differences between the other classes, the probability of class l is the logistic function of a normal variable. The
remaining integral has c − 2 dimensions. It takes one quadrature for three classes, and scrambled Sobol points in
growing number for more classes. The class l has the largest conditional variance, so the integrand is smooth.

For Sobol points (`sobol_average`) the logistic function of a normal variable is interpolated in a table. Numbers have
32 bits, which suffices for five digits of the averages. The variables are rotated so that variables with the largest
effect on the probabilities come first. There Sobol points are best (Constantine 2015, *Active Subspaces*, chapter 3).
"""

import math

import numpy as np
from numpy.polynomial import Chebyshev, Polynomial
from scipy.special import stdtrit

from pymc_gpep.kernels.compile import inlined_kernel, kernel
from pymc_gpep.kernels.linalg.small_matrices import eigenvectors
from pymc_gpep.kernels.special.logistic_average import logistic_normal, logistic_of_normal, mixture_scales

SEQUENCES = 8
"""Number of independent estimates of a probability. Their spread measures the error."""
BLOCK = 128
"""Number of points that are computed together. Their arrays fit into the cache of a processor core."""

_FIRST = 2  # The first estimate uses this number of blocks, enough for events of probability 0.001.
_STANDARD_ERRORS = float(stdtrit(SEQUENCES - 1, 0.995))  # Half width of a 99 % interval (Student's t).
_ROUNDING = 5e-7
_LARGEST = 1e30  # Larger numbers are scaled down, so that their sums do not overflow in 32 bits.

_CELLS = 512
_LOGISTIC_TAIL, _NORMAL_TAIL = 21.0, 6.0  # Beyond these distances the tails have mass 1e-9.

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)
_LOWEST = np.float32(-80.0)  # Smaller arguments of exp are replaced by this, so no result is subnormal.
_LOG2_E = np.float32(1.0 / math.log(2.0))
_TO_INTEGER = np.float32(1.5 * 2.0**23)  # Adding this number rounds to an integer.
_BIAS, _ONE_EXPONENT = np.float32(127.0), np.float32(2.0**23)
_C0, _C1, _C2, _C3, _C4, _C5, _C6 = map(
    np.float32, Chebyshev.interpolate(np.exp2, 6, [-0.5, 0.5]).convert(kind=Polynomial).coef
)


@kernel
def _exponentials(x):
    """Overwrite numbers x ≤ 0 of 32 bits with eˣ, to rounding; results are at least e⁻⁸⁰.

    The code has no branch and no call, so the compiler can use vector instructions.
    """
    for i in range(x.shape[0]):
        y = (x[i] if x[i] > _LOWEST else _LOWEST) * _LOG2_E
        whole = (y + _TO_INTEGER) - _TO_INTEGER
        r = y - whole
        fraction = _C0 + r * (_C1 + r * (_C2 + r * (_C3 + r * (_C4 + r * (_C5 + r * _C6)))))
        x[i] = fraction * np.int32((whole + _BIAS) * _ONE_EXPONENT).view(np.float32)


@kernel
def _latent_values(mu, root, rank, z, f):
    """Write latent values f = mu + root z at the points z, by four columns of the root at a time."""
    for k in range(f.shape[0]):
        of_class = f[k]
        of_class[:] = mu[k]
        j = 0
        while j + 4 <= rank:
            r0, r1, r2, r3 = root[k, j], root[k, j + 1], root[k, j + 2], root[k, j + 3]
            z0, z1, z2, z3 = z[j], z[j + 1], z[j + 2], z[j + 3]
            for i in range(f.shape[1]):
                of_class[i] += r0 * z0[i] + r1 * z1[i] + r2 * z2[i] + r3 * z3[i]
            j += 4
        while j < rank:
            r0, z0 = root[k, j], z[j]
            for i in range(f.shape[1]):
                of_class[i] += r0 * z0[i]
            j += 1


@kernel
def _block(mu, root, rank, own, z, table, low, per_unit, f, top, total):
    """Write probabilities of all classes into `f` (c, BLOCK), at points `z` (rank or more, BLOCK)."""
    c, block = f.shape
    _latent_values(mu, root, rank, z, f)
    top[:] = f[1] if own == 0 else f[0]
    for k in range(c):
        if k != own:
            of_class = f[k]
            for i in range(block):
                top[i] = of_class[i] if of_class[i] > top[i] else top[i]
    total[:] = _ZERO
    for k in range(c):
        if k != own:
            of_class = f[k]
            for i in range(block):
                of_class[i] -= top[i]
            _exponentials(of_class)
            for i in range(block):
                total[i] += of_class[i]
    last = np.float32(table.shape[0]) - np.float32(0.001)
    of_own = f[own]
    for i in range(block):
        x = (of_own[i] - top[i] - np.log(total[i]) - low) * per_unit
        x = min(max(x, _ZERO), last)
        cell = np.int32(x)
        t = x - np.float32(cell)
        above = table[cell, 0] + t * (table[cell, 1] + t * (table[cell, 2] + t * table[cell, 3]))
        of_own[i] = min(max(above, _ZERO), _ONE)
        total[i] = (_ONE - of_own[i]) / total[i]
    for k in range(c):
        if k != own:
            of_class = f[k]
            for i in range(block):
                of_class[i] *= total[i]


@kernel
def _tabulate(variance, table):
    """Tabulate E σ(d), d ~ N(x, variance), as a cubic in each cell from x = −reach to reach. Return the reach."""
    reach = _LOGISTIC_TAIL + _NORMAL_TAIL * math.sqrt(variance)
    step = 2.0 * reach / _CELLS
    scales = mixture_scales(variance)
    left, left_slope = logistic_of_normal(-reach, scales)
    for cell in range(_CELLS):
        right, right_slope = logistic_of_normal(-reach + (cell + 1) * step, scales)
        rise, from_left, from_right = right - left, step * left_slope, step * right_slope
        table[cell, 0] = left
        table[cell, 1] = from_left
        table[cell, 2] = 3.0 * rise - 2.0 * from_left - from_right
        table[cell, 3] = from_left + from_right - 2.0 * rise
        left, left_slope = right, right_slope
    return reach


@kernel
def _relative_to_the_middle_one(mu, root, rank, own):
    """Subtract the latent value of the most central class (not `own`), so that 32 bits suffice for differences."""
    c = mu.shape[0]
    middle = -1
    nearest = np.inf
    for k in range(c):
        if k == own:
            continue
        distance = 0.0
        for j in range(c):
            squared = (mu[k] - mu[j]) ** 2
            for q in range(rank):
                squared += (root[k, q] - root[j, q]) ** 2
            distance += math.sqrt(squared)
        if middle < 0 or distance < nearest:
            middle, nearest = k, distance
    mu -= mu[middle]
    for q in range(rank):
        root[:, q] -= root[middle, q]


@inlined_kernel
def _turn(root, rank, p, single_root):
    """Write `root` into `single_root`, rotated so that the first variables change probabilities `p` (c, points) most.

    The directions are eigenvectors of the average of Σ_k ∇p_k ∇p_kᵀ.
    """
    c, points = p.shape
    of_values = np.zeros((c, c))
    for i in range(points):
        squares = 0.0
        for k in range(c):
            squares += p[k, i] * p[k, i]
        for k in range(c):
            of_values[k, k] += p[k, i] * p[k, i]
            for j in range(c):
                of_values[k, j] += p[k, i] * p[j, i] * (squares - p[k, i] - p[j, i])
    half = np.zeros((c, rank))
    for k in range(c):
        for j in range(c):
            for q in range(rank):
                half[k, q] += of_values[k, j] * root[j, q]
    moved, directions = np.zeros((rank, rank)), np.empty((rank, rank))
    for q in range(rank):
        for r in range(rank):
            for k in range(c):
                moved[q, r] += root[k, q] * half[k, r]
    eigenvectors(moved, directions)
    for place in range(rank):
        most = 0
        for q in range(rank):
            if moved[q, q] > moved[most, most]:
                most = q
        moved[most, most] = -np.inf
        for k in range(c):
            value = 0.0
            for q in range(rank):
                value += root[k, q] * directions[q, most]
            single_root[k, place] = value


@inlined_kernel
def sobol_average(mu, root, rank, variance, own, normals, tolerance, probabilities):
    """Compute average class probabilities from as many Sobol points as the tolerance needs. Return the error.

    Parameters
    ----------
    mu, root : (c,) and (c, rank or more) array
        The latent values are mu + root z, z standard normal; an independent normal variable is added for class `own`.
        Overwritten.
    rank : int
    variance : float
        Variance of the independent variable.
    own : int
    normals : (SEQUENCES, blocks, rank or more, BLOCK) array of 32-bit numbers
        Independently scrambled Sobol sequences, made standard normal.
    tolerance : float
    probabilities : (c,) array
        Overwritten.

    Returns
    -------
    float
        Half width of a 99 % interval for the least certain probability, by Student's t distribution.
    """
    c = mu.shape[0]
    _relative_to_the_middle_one(mu, root, rank, own)
    largest = max(np.max(np.abs(mu)), np.max(np.abs(root[:, :rank])), math.sqrt(variance))
    if largest > _LARGEST:  # The softmax is a step function.
        mu *= _LARGEST / largest
        root *= _LARGEST / largest
        variance *= (_LARGEST / largest) ** 2
    single_mu, single_root = mu.astype(np.float32), root.astype(np.float32)
    table = np.empty((_CELLS, 4), np.float32)
    reach = _tabulate(variance, table)
    low, per_unit = np.float32(-reach), np.float32(0.5 * _CELLS / reach)
    f, sums = np.empty((c, BLOCK), np.float32), np.empty((c, BLOCK), np.float32)
    top, total = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32)
    _block(single_mu, single_root, rank, own, normals[0, 0], table, low, per_unit, f, top, total)
    _turn(root, rank, f, single_root)
    estimates = np.zeros((SEQUENCES, c))
    done = 0
    blocks = _FIRST
    while True:
        for q in range(SEQUENCES):
            sums[:] = _ZERO
            for i in range(done, blocks):
                _block(single_mu, single_root, rank, own, normals[q, i], table, low, per_unit, f, top, total)
                for k in range(c):
                    for j in range(BLOCK):
                        sums[k, j] += f[k, j]
            for k in range(c):
                for j in range(BLOCK):
                    estimates[q, k] += np.float64(sums[k, j])
        worst = 0.0
        for k in range(c):
            probabilities[k] = np.mean(estimates[:, k]) / (blocks * BLOCK)
            worst = max(worst, np.var(estimates[:, k]) / (SEQUENCES - 1))
        error = _STANDARD_ERRORS * math.sqrt(worst) / (blocks * BLOCK) + _ROUNDING
        if error <= tolerance or blocks == normals.shape[1]:
            break
        done = blocks
        blocks *= 2
    return error


_NEGATIVE = 1e-6  # Negative variances up to this share of the largest variance count as rounding errors.
_EPS = np.finfo(np.float64).eps

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)
_RANGE = 9.0  # A standard normal variable exceeds this with probability 1e-19.
_PANELS = 6  # Number of first panels of the quadrature.
_QUADRATURE_TOLERANCE = 1e-10
_MAX_INTERVALS = 64
_INV_SQRT_2PI = 1.0 / math.sqrt(2.0 * math.pi)


@kernel
def _set_apart(mean, cov, own, mu, s):
    """Write moments of latent values minus their average over the classes except `own` to `mu` and `s`."""
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
    """Write a factor of the covariance `s` into `root`, with class `own` last. `s` is overwritten.

    The pivot of each column of `root` (c, rank) is the class other than `own` with the largest remaining variance.
    Return the rank, and the variance of class `own` given the other classes.
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
    """Write the softmax of the classes except `own` into `f`; return E[f_own | z] − log Σ_{k ≠ own} exp f_k."""
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
    """Write the integrals of the class probabilities over z from `left` to `right` into `sums` (c,)."""
    sums[:] = 0.0
    half = 0.5 * (right - left)
    for node, weight in zip(_NODES, _WEIGHTS):  # noqa: B905  numba knows no strict
        z[0] = left + half * (1.0 + node)
        below, above = logistic_normal(_among_others(mu, root, rank, z, own, f), sd)
        _add(half * _INV_SQRT_2PI * weight * math.exp(-0.5 * z[0] * z[0]), below, above, f, own, sums)


@inlined_kernel
def _quadrature(mu, root, rank, sd, own, z, f, ends, values, first, second, probabilities):
    """Write probabilities by adaptive Gauss-Legendre quadrature over one variable; return an estimate of the error."""
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
    """Compute class probabilities E softmax(f), f ~ N(mean, cov), at many points.

    Parameters
    ----------
    mean : (m, c) array
    cov : (m, c, c) array
        Both triangles are read; the matrices may be singular.
    normals : (sequences, blocks, c − 2, points of a block) array of 32-bit numbers
        Independently scrambled Sobol sequences, made standard normal. Not used with three classes or fewer.
    tolerance : float
        Target absolute error of each probability by Sobol points.
    probabilities : (m, c) array
        Overwritten. They sum to 1; NaN if the input has NaN or `cov` is not positive semi-definite.
    errors : (m,) array
        Overwritten with the estimated error of the least certain probability. With Sobol points it is half the width of
        a 99 % interval, with quadrature the change under refinement, and with two classes rounding.
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
