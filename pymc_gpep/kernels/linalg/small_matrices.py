"""Factors, solutions and eigenvectors of matrices with a few rows. Calls of LAPACK would take longer than these.

A square root from eigenvectors commutes with permutations of rows and columns; a triangular root does not.
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import kernel


@kernel
def lower_factor(a):
    """Return the lower Cholesky factor (d, d) of `a`. Entries after the first pivot that is not positive are NaN."""
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
    """Overwrite `b` (d, m) with L⁻¹ b, for the lower triangular L = `lower` (d, d)."""
    for i in range(b.shape[0]):
        for k in range(b.shape[1]):
            for j in range(i):
                b[i, k] -= lower[i, j] * b[j, k]
            b[i, k] /= lower[i, i]


@kernel
def solve_with_factor(lower, size, x):
    """Overwrite the first `size` numbers of x with (L Lᵀ)⁻¹ x, for L = `lower`. Return |L⁻¹ x|²."""
    square = 0.0
    for i in range(size):
        for k in range(i):
            x[i] -= lower[i, k] * x[k]
        x[i] /= lower[i, i]
        square += x[i] * x[i]
    for i in range(size - 1, -1, -1):
        for k in range(i + 1, size):
            x[i] -= lower[k, i] * x[k]
        x[i] /= lower[i, i]
    return square


@kernel
def solve_square(a, b):
    """Overwrite `b` (d, m) with A⁻¹ b by Gaussian elimination, and also overwrite A = `a` (d, d). Return det A."""
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


_SWEEPS = 30  # Largest number of sweeps over all pairs of rows. About five sweeps suffice.


@kernel
def eigenvectors(a, vectors):
    """Overwrite the symmetric `a` (d, d) with its eigenvalues on the diagonal, by Jacobi's rotations.

    `vectors` (d, d) receives the eigenvectors as columns.
    """
    d = a.shape[0]
    for i in range(d):
        for j in range(d):
            vectors[i, j] = 1.0 if i == j else 0.0
    for _ in range(_SWEEPS):
        rotated = False
        for p in range(d):
            for q in range(p + 1, d):
                if not abs(a[p, q]) > 1e-17 * math.sqrt(abs(a[p, p] * a[q, q])) + 1e-300:
                    continue
                rotated = True
                half = 0.5 * (a[q, q] - a[p, p]) / a[p, q]
                t = 1.0 / (abs(half) + math.sqrt(1.0 + half * half))
                if half < 0.0:
                    t = -t
                cos = 1.0 / math.sqrt(1.0 + t * t)
                sin = t * cos
                shift = t * a[p, q]
                a[p, p] -= shift
                a[q, q] += shift
                a[p, q] = 0.0
                a[q, p] = 0.0
                for k in range(d):
                    if k not in (p, q):
                        first, second = a[k, p], a[k, q]
                        a[k, p] = cos * first - sin * second
                        a[k, q] = sin * first + cos * second
                        a[p, k] = a[k, p]
                        a[q, k] = a[k, q]
                    first, second = vectors[k, p], vectors[k, q]
                    vectors[k, p] = cos * first - sin * second
                    vectors[k, q] = sin * first + cos * second
        if not rotated:
            break


@kernel
def from_eigenvectors(values, vectors, out):
    """Write the symmetric matrix Σ_k values_k v_k v_kᵀ into `out` (d, d); v_k are the columns of `vectors`."""
    d = values.shape[0]
    for i in range(d):
        for j in range(i + 1):
            total = 0.0
            for k in range(d):
                total += values[k] * vectors[i, k] * vectors[j, k]
            out[i, j] = total
            out[j, i] = total
