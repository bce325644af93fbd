"""Sites exp(ξᵀg − gᵀΛg/2) with a full Λ for each point, g_j = f_y − f_j + u, u ~ N(0, 1).

They have the layout of `accelerated_ep`, (2, n, D) with D = d(d + 1)/2 and d = c − 1. The first half holds the
diagonal of Λ, in [0, 1), and zeros after that. The second half holds ξ and the lower triangle of Λ below the diagonal.

With u integrated out they are sites exp(νᵀx − xᵀΠx/2) of the differences x_j = f_y − f_j, up to a constant. Here
Π = (Λ⁻¹ + 11ᵀ)⁻¹ (nested EP paper, section 3.3), and all uses here leave the constant out.
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import inlined_kernel, kernel
from pymc_gpep.kernels.linalg.small_matrices import lower_factor, solve_lower

_BISECTIONS = 30


def packed_size(c):
    """D, for c classes."""
    return c * (c - 1) // 2


@kernel
def read_precision(sites, i, precision):
    """Λ of point i into `precision` (d, d)."""
    entry = d = precision.shape[0]
    for j in range(d):
        precision[j, j] = sites[0, i, j]
        for k in range(j):
            precision[j, k] = sites[1, i, entry]
            precision[k, j] = sites[1, i, entry]
            entry += 1


@kernel
def write_precision(precision, sites, i):
    """Make `precision` (d, d) the Λ of point i."""
    entry = d = precision.shape[0]
    for j in range(d):
        sites[0, i, j] = precision[j, j]
        for k in range(j):
            sites[1, i, entry] = precision[j, k]
            entry += 1


@kernel
def change_to_site(precision, slope, at, sites, target, scale, i):
    """Make Λ `precision` (d, d), with the slope `slope` (d,) at `at` (d,), the target of point i.

    `scale` has the variances of the differences of the point, and gets the other units. Returns the largest change of
    the point's sites, in units of its marginal.
    """
    write_precision(precision, target, i)
    entry = d = slope.shape[0]
    for j in range(d):
        target[1, i, j] = slope[j]
        for k in range(d):
            target[1, i, j] += precision[j, k] * at[k]
        # For the second half accelerated EP wants squares of the units: those of Λ_jk are 1 / (g_j g_k).
        for k in range(j):
            scale[i, entry] = scale[i, j] * scale[i, k]
            entry += 1
    residual = 0.0
    for e in range(entry):
        residual = max(residual, abs(target[1, i, e] - sites[1, i, e]) * math.sqrt(scale[i, e]))
        if e < d:
            residual = max(residual, abs(target[0, i, e] - sites[0, i, e]) * scale[i, e])
        else:
            target[0, i, e] = 0.0
    return residual


@kernel
def _is_semidefinite(a, part, lower):
    """Whether `a` (d, d) is positive semi-definite with `part` of what is off its diagonal; `lower` (d, d) is room."""
    d = a.shape[0]
    for j in range(d):
        for i in range(j, d):
            total = a[i, j] if i == j else part * a[i, j]
            for k in range(j):
                total -= lower[i, k] * lower[j, k]
            if i == j:
                pivot = total
                lower[j, j] = math.sqrt(max(pivot, 0.0))
            elif pivot > 0.0:
                lower[i, j] = total / lower[j, j]
            else:
                lower[i, j] = 0.0
                if total != 0.0:
                    return False
        if pivot < 0.0:
            return False
    return True


@kernel
def shrink_to_semidefinite(a, lower):
    """Make `a` (d, d), whose diagonal is zero or more, positive semi-definite by reducing what is off its diagonal.

    Λ is so exactly; quadrature and acceleration may miss that by a little. `lower` (d, d) is room.
    """
    if _is_semidefinite(a, 1.0, lower):
        return
    good, bad = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = 0.5 * (good + bad)
        if _is_semidefinite(a, middle, lower):
            good = middle
        else:
            bad = middle
    for j in range(a.shape[0]):
        for k in range(a.shape[0]):
            if k != j:
                a[j, k] *= good


@kernel
def difference_sites(y, sites, pi, nu, w, location):
    """Π and ν of the differences into `pi` (n, d, d) and `nu` (n, d), those of f into `w` (n, c, c), `location` (c, n).

    Where Λ is not positive semi-definite, `sites` are changed.
    """
    n, d = nu.shape
    lower = np.empty((d, d))
    row = np.empty(d)
    for i in range(n):
        precision = pi[i]
        read_precision(sites, i, precision)
        shrink_to_semidefinite(precision, lower)
        write_precision(precision, sites, i)
        total = 1.0
        shift = 0.0
        for j in range(d):
            row[j] = 0.0
            for k in range(d):
                row[j] += precision[j, k]
            total += row[j]
            shift += sites[1, i, j]
        w[i, y[i], y[i]] = 0.0
        location[y[i], i] = 0.0
        for j in range(d):
            nu[i, j] = sites[1, i, j] - row[j] * shift / total
            a = j + (j >= y[i])
            location[a, i] = -nu[i, j]
            location[y[i], i] += nu[i, j]
            of_y = 0.0
            for k in range(d):
                precision[j, k] -= row[j] * row[k] / total
                w[i, a, k + (k >= y[i])] = precision[j, k]
                of_y -= precision[j, k]
            w[i, a, y[i]] = of_y
            w[i, y[i], a] = of_y
            w[i, y[i], y[i]] -= of_y


@inlined_kernel
def cavity(mean, cov, y, pi, nu, m, s):
    """Moments of g under the cavity of one point into `m` (d,) and `s` (d, d).

    `mean` (c,) and `cov` (c, c) are those of f under the posterior, of which the site `pi` (d, d), `nu` (d,) of the
    differences is part. Returns the log normaliser of the site under the cavity.
    """
    d = m.shape[0]
    for j in range(d):
        a = j + (j >= y)
        m[j] = mean[y] - mean[a]
        for k in range(d):
            b = k + (k >= y)
            s[j, k] = cov[y, y] - cov[y, a] - cov[y, b] + cov[a, b]
    # With S = L Lᵀ the cavity has covariance L (I − Lᵀ Π L)⁻¹ Lᵀ.
    lower = lower_factor(s)
    rest = np.zeros((d, d))
    root = np.empty((d, d))
    pull = np.empty(d)
    log_z = 0.0
    for j in range(d):
        pull[j] = -nu[j]
        rest[j, j] += 1.0
        for k in range(d):
            pull[j] += pi[j, k] * m[k]
            root[j, k] = lower[k, j]
            for a in range(d):
                for b in range(d):
                    rest[j, k] -= lower[a, j] * pi[a, b] * lower[b, k]
        log_z += 0.5 * m[j] * (nu[j] - pull[j])
    rest = lower_factor(rest)
    solve_lower(rest, root)
    for j in range(d):
        log_z += math.log(rest[j, j])
        for k in range(d):
            s[j, k] = 0.0
            for a in range(d):
                s[j, k] += root[a, j] * root[a, k]
    for j in range(d):
        shift = 0.0
        for k in range(d):
            shift += s[j, k] * pull[k]
        log_z -= 0.5 * pull[j] * shift
        m[j] += shift
    for j in range(d):
        for k in range(d):
            s[j, k] += 1.0
    return log_z
