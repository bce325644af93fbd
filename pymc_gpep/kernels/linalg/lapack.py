"""BLAS and LAPACK for kernels, on matrices in C order. Most functions write the result into an argument.

A symmetric matrix is equal in Fortran order and in C order, but triangles and transposes are exchanged. The lower
triangle in C order is the upper triangle in Fortran order. Matrices and vectors are in double or single precision.
"""

import math
from typing import Any

import numpy as np
from numba.core import types
from numba.extending import overload

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.external import scipy_function

_int = types.CPointer(types.int32)
_char = types.CPointer(types.uint8)


def _routine(module: str, name: str, arguments: str, returns_number: bool = False) -> Any:
    """Return a routine of BLAS or LAPACK for double and single precision.

    The first argument is an array of the precision to use. All other arguments are pointers. In `arguments`, c is a
    pointer to characters, i to integers, and x to real numbers.
    """
    versions = {}
    for number in (types.float64, types.float32):
        points_to = {"c": _char, "i": _int, "x": types.CPointer(number)}
        signature = (number if returns_number else types.void)(*(points_to[kind] for kind in arguments))
        versions[number] = scipy_function(module, ("d" if number is types.float64 else "s") + name, signature)

    def routine(like: Any, *pointers: Any) -> Any:
        raise NotImplementedError(f"{name} can be called from compiled code only.")

    @overload(routine)
    def version(like: Any, *pointers: Any) -> Any:
        chosen = versions[like.dtype]

        def call(like: Any, *pointers: Any) -> Any:
            return chosen(*pointers)

        return call

    return routine


_potrf = _routine("linalg.cython_lapack", "potrf", "cixii")
_trtri = _routine("linalg.cython_lapack", "trtri", "ccixii")
_lauum = _routine("linalg.cython_lapack", "lauum", "cixii")
_potrs = _routine("linalg.cython_lapack", "potrs", "ciixixii")
_symv = _routine("linalg.cython_blas", "symv", "cixxixixxi")
_trmm = _routine("linalg.cython_blas", "trmm", "cccciixxixi")
_trsm = _routine("linalg.cython_blas", "trsm", "cccciixxixi")
_gemm = _routine("linalg.cython_blas", "gemm", "cciiixxixixxi")
_syrk = _routine("linalg.cython_blas", "syrk", "cciixxixxi")
_trsv = _routine("linalg.cython_blas", "trsv", "cccixixi")
_trmv = _routine("linalg.cython_blas", "trmv", "cccixixi")
_copy = _routine("linalg.cython_blas", "copy", "ixixi")
_dot = _routine("linalg.cython_blas", "dot", "ixixi", returns_number=True)

_UPPER = np.array([ord("U")], np.uint8)
_LEFT = np.array([ord("L")], np.uint8)
_RIGHT = np.array([ord("R")], np.uint8)
_TRANSPOSED = np.array([ord("T")], np.uint8)
_NORMAL = np.array([ord("N")], np.uint8)


# Number of rows of a diagonal block. Matrix products replace all other parts of triangular solves. OpenBLAS solves
# triangular systems at half the speed of products, and small systems even more slowly. Before block k, 2^b blocks from
# k on are multiplied with the 2^b blocks before k, where b is the lowest bit of k that is 1. So most products are
# large, and each pair of blocks is used once.
_BLOCK = 64


_MILD = 1e3  # If the condition number of a block is below it, the block's inverse is used.


@kernel
def _invert_mild_block(lower, first, edge, out):
    """Write the inverse of a diagonal block of `lower` into `out`. Return whether the block is well-conditioned."""
    square = 0.0
    for i in range(edge):
        for j in range(i + 1):
            out[i * edge + j] = lower[first + i, first + j]
            square += lower[first + i, first + j] ** 2
    size = np.array([edge], np.int32)
    info = np.zeros(1, np.int32)
    _trtri(lower, _UPPER.ctypes, _NORMAL.ctypes, size.ctypes, out.ctypes, size.ctypes, info.ctypes)
    inverse_square = 0.0
    for i in range(edge):
        for j in range(i + 1):
            inverse_square += out[i * edge + j] ** 2
    return square * inverse_square < _MILD * _MILD


@kernel
def _solve_columns(lower, first, n, b, start, m, width):
    """Multiply a part of the flattened array `b` by L⁻ᵀ from the right, in place.

    L is the block of `lower` with n rows and columns from `first` on. The (m, n) part begins at `start`. Rows of `b`
    have length `width`.
    """
    whole = np.array([lower.shape[0]], np.int32)
    long, rows = np.array([width], np.int32), np.array([m], np.int32)
    flat = lower.reshape(-1)
    inverse = np.zeros(_BLOCK * _BLOCK, b.dtype)
    factors = np.ones(2, b.dtype)
    factors[0] = -1.0
    for k in range(-(-n // _BLOCK)):
        at = k * _BLOCK
        if k > 0:
            past = (k & -k) * _BLOCK
            inner, columns = np.array([past], np.int32), np.array([min(past, n - at)], np.int32)
            _gemm(
                b, _TRANSPOSED.ctypes, _NORMAL.ctypes, columns.ctypes, rows.ctypes, inner.ctypes,
                factors[:1].ctypes, flat[(first + at) * lower.shape[0] + first + at - past :].ctypes, whole.ctypes,
                b[start + at - past :].ctypes, long.ctypes, factors[1:].ctypes, b[start + at :].ctypes, long.ctypes,
            )  # fmt: skip
        edge = min(_BLOCK, n - at)
        size = np.array([edge], np.int32)
        if m > edge and _invert_mild_block(lower, first + at, edge, inverse):
            _trmm(
                b, _LEFT.ctypes, _UPPER.ctypes, _TRANSPOSED.ctypes, _NORMAL.ctypes, size.ctypes, rows.ctypes,
                factors[1:].ctypes, inverse.ctypes, size.ctypes, b[start + at :].ctypes, long.ctypes,
            )  # fmt: skip
        else:
            _trsm(
                b, _LEFT.ctypes, _UPPER.ctypes, _TRANSPOSED.ctypes, _NORMAL.ctypes, size.ctypes, rows.ctypes,
                factors[1:].ctypes, flat[(first + at) * lower.shape[0] + first + at :].ctypes, whole.ctypes,
                b[start + at :].ctypes, long.ctypes,
            )  # fmt: skip


@kernel
def cholesky(a):
    """Write the Cholesky factor of `a` into its lower triangle; return False if `a` is not positive definite."""
    n = a.shape[0]
    flat = a.reshape(-1)
    width = np.array([n], np.int32)
    info = np.zeros(1, np.int32)
    factors = np.ones(2, a.dtype)
    factors[0] = -1.0
    for k in range(-(-n // _BLOCK)):
        at = k * _BLOCK
        if k > 0:
            past = (k & -k) * _BLOCK
            rows = min(past, n - at)
            _solve_columns(a, at - past, past, flat, at * n + at - past, rows, n)
            inner, columns = np.array([past], np.int32), np.array([rows], np.int32)
            _syrk(
                a, _UPPER.ctypes, _TRANSPOSED.ctypes, columns.ctypes, inner.ctypes, factors[:1].ctypes,
                flat[at * n + at - past :].ctypes, width.ctypes, factors[1:].ctypes, flat[at * n + at :].ctypes,
                width.ctypes,
            )  # fmt: skip
        size = np.array([min(_BLOCK, n - at)], np.int32)
        _potrf(a, _UPPER.ctypes, size.ctypes, flat[at * n + at :].ctypes, width.ctypes, info.ctypes)
        if info[0] != 0:
            return False
    return True


@kernel
def invert_triangular(a):
    """Replace L in the lower triangle of `a` by L⁻¹. Return whether L⁻¹ exists."""
    n = a.shape[0]
    flat = a.reshape(-1)
    width = np.array([n], np.int32)
    info = np.zeros(1, np.int32)
    factors = np.ones(2, a.dtype)
    factors[0] = -1.0
    for at in range(0, n, _BLOCK):
        size = np.array([min(_BLOCK, n - at)], np.int32)
        _trtri(a, _UPPER.ctypes, _NORMAL.ctypes, size.ctypes, flat[at * n + at :].ctypes, width.ctypes, info.ctypes)
        if info[0] != 0:
            return False
    joined = _BLOCK
    while joined < n:
        for first in range(0, n - joined, 2 * joined):
            middle = first + joined
            columns, rows = np.array([joined], np.int32), np.array([min(joined, n - middle)], np.int32)
            below = flat[middle * n + first :]
            _trmm(
                a, _LEFT.ctypes, _UPPER.ctypes, _NORMAL.ctypes, _NORMAL.ctypes, columns.ctypes, rows.ctypes,
                factors[:1].ctypes, flat[first * n + first :].ctypes, width.ctypes, below.ctypes, width.ctypes,
            )  # fmt: skip
            _trmm(
                a, _RIGHT.ctypes, _UPPER.ctypes, _NORMAL.ctypes, _NORMAL.ctypes, columns.ctypes, rows.ctypes,
                factors[1:].ctypes, flat[middle * n + middle :].ctypes, width.ctypes, below.ctypes, width.ctypes,
            )  # fmt: skip
        joined *= 2
    return True


@kernel
def square_triangular(a):
    """Replace V in the lower triangle of `a` by the lower triangle of VᵀV."""
    n = np.array([a.shape[0]], np.int32)
    info = np.zeros(1, np.int32)
    _lauum(a, _UPPER.ctypes, n.ctypes, a.ctypes, n.ctypes, info.ctypes)


@kernel
def inverse_from_cholesky(a):
    """Replace the Cholesky factor of A in the lower triangle of `a` by the lower triangle of A⁻¹."""
    ok = invert_triangular(a)
    if ok:
        square_triangular(a)
    return ok


@kernel
def solve_right_transposed(lower, b):
    """Overwrite `b` (m, n) with b L⁻ᵀ, where L is the lower triangle of `lower` (n, n)."""
    _solve_columns(lower, 0, b.shape[1], b.reshape(-1), 0, b.shape[0], b.shape[1])


@kernel
def add_outer_product(scale, b, out):
    """Add `scale` · b bᵀ to the lower triangle of `out`; `b` is (m, n), `out` (m, m)."""
    m = np.array([b.shape[0]], np.int32)
    k = np.array([b.shape[1]], np.int32)
    factors = np.ones(2, b.dtype)
    factors[0] = scale
    _syrk(
        b, _UPPER.ctypes, _TRANSPOSED.ctypes, m.ctypes, k.ctypes,
        factors[:1].ctypes, b.ctypes, k.ctypes, factors[1:].ctypes, out.ctypes, m.ctypes,
    )  # fmt: skip


@kernel
def multiply(a, b, out, transposed):
    """Write A B, or Aᵀ B if `transposed`, into `out` (m, n). All arrays are contiguous."""
    n, m = np.array([out.shape[1]], np.int32), np.array([out.shape[0]], np.int32)
    k, long = np.array([b.shape[0]], np.int32), np.array([a.shape[1]], np.int32)
    factors = np.ones(2, a.dtype)
    factors[1] = 0.0
    turned = _TRANSPOSED if transposed else _NORMAL
    _gemm(
        a, _NORMAL.ctypes, turned.ctypes, n.ctypes, m.ctypes, k.ctypes, factors[:1].ctypes, b.ctypes, n.ctypes,
        a.ctypes, long.ctypes, factors[1:].ctypes, out.ctypes, n.ctypes,
    )  # fmt: skip


@kernel
def copy_into(out, values):
    """Copy a contiguous array into `out` of the same size. An assignment of slices would take longer to compile."""
    n = np.array([out.size], np.int32)
    step = np.ones(1, np.int32)
    _copy(out, n.ctypes, values.ctypes, step.ctypes, out.ctypes, step.ctypes)


@kernel
def dot(x, y):
    """Return xᵀy of two contiguous vectors."""
    n = np.array([x.shape[0]], np.int32)
    step = np.ones(1, np.int32)
    return _dot(x, n.ctypes, x.ctypes, step.ctypes, y.ctypes, step.ctypes)


@kernel
def solve_with_cholesky(lower, b):
    """Return the solution x (n,) of L Lᵀ x = b, where L is the lower triangle of `lower`."""
    n = np.array([lower.shape[0]], np.int32)
    one = np.ones(1, np.int32)
    info = np.zeros(1, np.int32)
    x = b.copy()
    _potrs(lower, _UPPER.ctypes, n.ctypes, one.ctypes, lower.ctypes, n.ctypes, x.ctypes, n.ctypes, info.ctypes)
    return x


@kernel
def multiply_symmetric(lower, b, out):
    """Write S b into `out` (n,). `lower` contains the lower triangle of the symmetric S, and `b` is contiguous."""
    n = np.array([lower.shape[0]], np.int32)
    step = np.ones(1, np.int32)
    factors = np.zeros(2, lower.dtype)
    factors[0] = 1.0
    _symv(
        lower, _UPPER.ctypes, n.ctypes, factors[:1].ctypes, lower.ctypes, n.ctypes,
        b.ctypes, step.ctypes, factors[1:].ctypes, out.ctypes, step.ctypes,
    )  # fmt: skip


@kernel
def multiply_functions(matrices, x, out):
    """Write S_k x_k of each class k into `out` (c, n). `matrices` (1 or c, n, n) has lower triangles of the S_k."""
    for a in range(x.shape[0]):
        multiply_symmetric(matrices[a if matrices.shape[0] > 1 else 0], x[a], out[a])


@kernel
def solve_triangular(lower, x, transposed):
    """Overwrite `x` (n,) with L⁻¹ x, or with L⁻ᵀ x if `transposed`, where L is the lower triangle of `lower`."""
    n = np.array([lower.shape[0]], np.int32)
    step = np.ones(1, np.int32)
    how = _NORMAL if transposed else _TRANSPOSED
    _trsv(lower, _UPPER.ctypes, how.ctypes, _NORMAL.ctypes, n.ctypes, lower.ctypes, n.ctypes, x.ctypes, step.ctypes)


@kernel
def multiply_triangular(lower, x, transposed):
    """Overwrite `x` (n,) with L x, or with Lᵀ x if `transposed`, where L is the lower triangle of `lower`."""
    n = np.array([lower.shape[0]], np.int32)
    step = np.ones(1, np.int32)
    how = _NORMAL if transposed else _TRANSPOSED
    _trmv(lower, _UPPER.ctypes, how.ctypes, _NORMAL.ctypes, n.ctypes, lower.ctypes, n.ctypes, x.ctypes, step.ctypes)


_ROUNDING = 1e-8  # Asymmetry and negative eigenvalues up to this share of the largest variance are allowed.
_SMALLEST = 1e-290  # A smaller largest variance is replaced by this one, so that the scale is finite.


@kernel
def is_covariance(matrix, work):
    """Return whether a finite `matrix` (n, n) is symmetric and positive semi-definite, up to rounding.

    EP alone does not detect negative eigenvalues of K: its matrix I + D^½ K D^½ may still be positive definite.
    """
    n = matrix.shape[0]
    largest = 0.0
    for i in range(n):
        largest = max(largest, matrix[i, i])
    margin = _ROUNDING * largest
    # The largest variance is scaled to 1, so that no variance is too large or too small for the factor.
    scale = 1.0 / math.sqrt(max(largest, _SMALLEST))
    for i in range(n):
        for j in range(i):
            if not abs(matrix[i, j] - matrix[j, i]) <= margin:
                return False
            work[i, j] = scale * matrix[i, j] * scale
        work[i, i] = scale * matrix[i, i] * scale + _ROUNDING
    return cholesky(work)


_EPS = np.finfo(np.float64).eps
_AMPLIFIED = 8.0  # Observed factor by which a Newton step increases rounding errors of f, for prior variances of 1e5.


@kernel
def rounding(k, b):
    """Return an estimate of the rounding error of a Newton step at f = m + K b, from the terms of K b."""
    largest = 0.0
    for a in range(b.shape[0]):
        prior = k[a if k.shape[0] > 1 else 0]
        variance = 0.0
        weight = 0.0
        for i in range(b.shape[1]):
            variance = max(variance, prior[i, i])
            weight += abs(b[a, i])
        largest = max(largest, variance * weight)
    return _AMPLIFIED * _EPS * largest
