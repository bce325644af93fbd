"""Sites exp(ξᵀg − gᵀΛg/2) with a full precision matrix Λ for each point, g_j = f_y − f_j + u, u ~ N(0, 1).

They have the layout of `site_ep`, (2, n, D) with D = d(d + 1)/2 and d = c − 1. The first half is the diagonal of Λ, in
[0, 1), padded by zeros. The second half is ξ, followed by the entries of Λ below the diagonal.

With u integrated out they are sites exp(νᵀx − xᵀΠx/2) of the differences x_j = f_y − f_j, up to a constant. Here Π =
(Λ⁻¹ + 11ᵀ)⁻¹ (nested EP paper, section 3.3). This package omits the constant.
"""

import math

from pymc_gpep.kernels.compile import kernel


def packed_size(c):
    """Return the number D of entries of a packed site, for c classes."""
    return c * (c - 1) // 2


@kernel
def read_precision(sites, i, precision):
    """Write the site precision Λ of point i into `precision` (d, d)."""
    entry = d = precision.shape[0]
    for j in range(d):
        precision[j, j] = sites[0, i, j]
        for k in range(j):
            precision[j, k] = sites[1, i, entry]
            precision[k, j] = sites[1, i, entry]
            entry += 1


@kernel
def write_precision(precision, sites, i):
    """Write `precision` (d, d) into the sites as the site precision Λ of point i."""
    entry = d = precision.shape[0]
    for j in range(d):
        sites[0, i, j] = precision[j, j]
        for k in range(j):
            sites[1, i, entry] = precision[j, k]
            entry += 1


@kernel
def change_to_site(precision, slope, at, sites, target, scale, i):
    """Write the target site of point i. It has the `precision` (d, d), and the log gradient `slope` (d,) at `at` (d,).

    `scale[i]` begins with the variances of the differences. Scales of the other entries are written after them. Return
    the largest change of the site, in units of its marginal.
    """
    write_precision(precision, target, i)
    entry = d = slope.shape[0]
    for j in range(d):
        target[1, i, j] = slope[j]
        for k in range(d):
            target[1, i, j] += precision[j, k] * at[k]
        # `SiteVector.norm` multiplies squared changes of this half by `scale`. Λ_jk has the unit 1 / (g_j g_k).
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
