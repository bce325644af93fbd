"""Triangular factors of matrices with a few rows, where a call to LAPACK costs more than the work."""

import math

import numpy as np

from pymc_gpep.kernels.compile import kernel


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


@kernel
def solve_square(a, b):
    """Overwrite `b` (d, m) with A⁻¹ b and `a` (d, d) with what elimination leaves; return the determinant of A."""
    d = a.shape[0]
    determinant = 1.0
    for j in range(d):
        pivot = j
        for i in range(j + 1, d):
            if abs(a[i, j]) > abs(a[pivot, j]):
                pivot = i
        if pivot != j:
            determinant = -determinant
            for k in range(d):
                a[j, k], a[pivot, k] = a[pivot, k], a[j, k]
            for k in range(b.shape[1]):
                b[j, k], b[pivot, k] = b[pivot, k], b[j, k]
        determinant *= a[j, j]
        if a[j, j] == 0.0:
            return 0.0
        for i in range(j + 1, d):
            factor = a[i, j] / a[j, j]
            for k in range(j + 1, d):
                a[i, k] -= factor * a[j, k]
            for k in range(b.shape[1]):
                b[i, k] -= factor * b[j, k]
    for j in range(d - 1, -1, -1):
        for k in range(b.shape[1]):
            for i in range(j + 1, d):
                b[j, k] -= a[j, i] * b[i, k]
            b[j, k] /= a[j, j]
    return determinant
