"""Triangular factors of matrices with a few rows, where a call to LAPACK costs more than the work."""

import math

import numpy as np

from pymc_gpep.kernels.compile import kernel

__all__ = ["lower_factor", "solve_lower"]


@kernel
def lower_factor(a):
    """Lower Cholesky factor (d, d), zero above the diagonal; NaN from where `a` is not positive definite."""
    d = a.shape[0]
    lower = np.zeros((d, d))
    for j in range(d):
        for i in range(j, d):
            total = a[i, j]
            for k in range(j):
                total -= lower[i, k] * lower[j, k]
            lower[i, j] = math.sqrt(total) if i == j else total / lower[j, j]
    return lower


@kernel
def solve_lower(lower, b):
    """Overwrite `b` (d, m) with L⁻¹ b."""
    for i in range(b.shape[0]):
        for k in range(b.shape[1]):
            for j in range(i):
                b[i, k] -= lower[i, j] * b[j, k]
            b[i, k] /= lower[i, i]
