"""Eigenvectors and symmetric roots of small positive semi-definite matrices, which need not have full rank.

The symmetric root follows the matrix through any permutation of its rows and columns, as a triangular one does not.
"""

import math

from pymc_gpep.kernels.compile import kernel

_SWEEPS = 30  # of rotations; five or so are enough


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
    """The symmetric matrix Σ_k values_k v_k v_kᵀ into `out` (d, d), from `values` (d,) and `vectors` as columns."""
    d = values.shape[0]
    for i in range(d):
        for j in range(i + 1):
            total = 0.0
            for k in range(d):
                total += values[k] * vectors[i, k] * vectors[j, k]
            out[i, j] = total
            out[j, i] = total
