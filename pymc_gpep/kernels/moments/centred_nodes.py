"""Nodes z, which sum to zero, where N(z) times a log-concave density is: its mode, and its mean and covariance.

Scales are symmetric roots: where the set of nodes is the same in any order of the axes, so are the moments.
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.linalg.small_matrix import lower_factor, solve_lower
from pymc_gpep.kernels.linalg.symmetric_root import eigenvectors
from pymc_gpep.kernels.moments.weighted_moments import centre

RANK = 1e-14
"""Part of the largest variance below which eigenvalues are rounding."""
NEWTON = 100
HALVINGS = 40
CLOSE = 1e-12
"""Distance from the mode, in standard deviations, at which nodes need no more."""
PASSES = 2
_SMALL = 0.3  # trace of Ω
_SMALLEST = 1e-300


@kernel
def newton_step(hessian, side):
    """H⁻¹ r into `side` (d, 1), which holds r, of a positive definite `hessian` H; returns rᵀ H⁻¹ r."""
    d = side.shape[0]
    lower = lower_factor(hessian)
    solve_lower(lower, side)
    gain = 0.0
    for j in range(d - 1, -1, -1):
        gain += side[j, 0] * side[j, 0]
        for k in range(j + 1, d):
            side[j, 0] -= lower[k, j] * side[k, 0]
        side[j, 0] /= lower[j, j]
    return gain


@kernel
def rises(old, new, length, gain):
    """Whether a step of so much of the length of Newton's raises a log density as it should, from `old` to `new`."""
    return new >= old + 1e-4 * length * gain - 1e-14 * abs(old)


@kernel
def move_nodes(mean, loss, total, at, work, vectors, values):
    """Move the centre `at` (d,) by the mean of weighted nodes, and take their scale for the next nodes.

    `mean` and `loss` hold sums over nodes of z − at and its squares, with weights that sum to `total`. They become mean
    and covariance. Along 1 there is nothing to integrate: with 1/d everywhere z has the variance 1 there. The scale is
    `vectors` (d, d) and `values` (d,), see `pymc_gpep.kernels.linalg.symmetric_root`.
    """
    d = at.shape[0]
    centre(mean, loss, total)
    for j in range(d):
        at[j] += mean[j]
        for k in range(d):
            loss[j, k] += 1.0 / d
            work[j, k] = loss[j, k]
    eigenvectors(work, vectors)
    for k in range(d):
        values[k] = math.sqrt(max(work[k, k], _SMALLEST))


@kernel
def small_or_large(factor, gradient, curvature, total, loss):
    """Ω into `loss`, in which Cov t is, from that and the derivatives of log Z: as Fᵀ (−∇∇ log Z) F where it is small.

    Where it is large I − Cov t is the more accurate: a rule's covariance is positive definite whatever its error.
    `gradient` and the lower triangle of `curvature` hold sums with weights that sum to `total`. They become ∇ log Z and
    −∇∇ log Z.
    """
    d, size = factor.shape
    for j in range(d):
        gradient[j] /= total
    for j in range(d):
        for k in range(j + 1):
            curvature[j, k] = curvature[j, k] / total + gradient[j] * gradient[k]
            curvature[k, j] = curvature[j, k]
    half = np.empty((d, size))
    small = np.empty((size, size))
    trace = 0.0
    for j in range(d):
        for k in range(size):
            half[j, k] = 0.0
            for e in range(d):
                half[j, k] += curvature[j, e] * factor[e, k]
    for j in range(size):
        for k in range(size):
            small[j, k] = 0.0
            for e in range(d):
                small[j, k] += factor[e, j] * half[e, k]
        trace += small[j, j]
    part = trace**4 / (trace**4 + _SMALL**4)
    for j in range(size):
        for k in range(size):
            large = (1.0 if j == k else 0.0) - loss[j, k]
            loss[j, k] = small[j, k] + part * (large - small[j, k])
