"""BLAS and LAPACK for kernels: in place, on square C-ordered float64 matrices, overwriting what they are given.

A symmetric matrix looks the same to Fortran as to C, so only triangles and transposes need care: what is the
lower triangle here is the upper one there.
"""

import numpy as np
from numba.core import types

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.external import scipy_function

__all__ = [
    "add_outer_product",
    "cholesky",
    "copy_into",
    "dot",
    "inverse_from_cholesky",
    "multiply_functions",
    "multiply_symmetric",
    "multiply_triangular",
    "solve_right_transposed",
    "solve_triangular",
    "solve_with_cholesky",
]

_int = types.CPointer(types.int32)
_double = types.CPointer(types.float64)
_char = types.CPointer(types.uint8)
_void = types.void

_potrf = scipy_function("linalg.cython_lapack", "dpotrf", _void(_char, _int, _double, _int, _int))
_potri = scipy_function("linalg.cython_lapack", "dpotri", _void(_char, _int, _double, _int, _int))
_potrs = scipy_function("linalg.cython_lapack", "dpotrs", _void(_char, _int, _int, _double, _int, _double, _int, _int))
_symv = scipy_function(
    "linalg.cython_blas", "dsymv", _void(_char, _int, _double, _double, _int, _double, _int, _double, _double, _int)
)
_trsm = scipy_function(
    "linalg.cython_blas",
    "dtrsm",
    _void(_char, _char, _char, _char, _int, _int, _double, _double, _int, _double, _int),
)
_syrk = scipy_function(
    "linalg.cython_blas", "dsyrk", _void(_char, _char, _int, _int, _double, _double, _int, _double, _double, _int)
)
_trsv = scipy_function("linalg.cython_blas", "dtrsv", _void(_char, _char, _char, _int, _double, _int, _double, _int))
_trmv = scipy_function("linalg.cython_blas", "dtrmv", _void(_char, _char, _char, _int, _double, _int, _double, _int))

_copy = scipy_function("linalg.cython_blas", "dcopy", _void(_int, _double, _int, _double, _int))
_dot = scipy_function("linalg.cython_blas", "ddot", types.float64(_int, _double, _int, _double, _int))

_UPPER = np.array([ord("U")], np.uint8)
_LEFT = np.array([ord("L")], np.uint8)
_TRANSPOSED = np.array([ord("T")], np.uint8)
_NORMAL = np.array([ord("N")], np.uint8)


@kernel
def cholesky(a):
    """Lower Cholesky factor into the lower triangle of `a`; False where `a` is not positive definite."""
    n = np.array([a.shape[0]], np.int32)
    info = np.zeros(1, np.int32)
    _potrf(_UPPER.ctypes, n.ctypes, a.ctypes, n.ctypes, info.ctypes)
    return info[0] == 0


@kernel
def inverse_from_cholesky(a):
    """The lower triangle of `a` holds a Cholesky factor; leave the lower triangle of the inverse there."""
    n = np.array([a.shape[0]], np.int32)
    info = np.zeros(1, np.int32)
    _potri(_UPPER.ctypes, n.ctypes, a.ctypes, n.ctypes, info.ctypes)
    return info[0] == 0


@kernel
def solve_right_transposed(lower, b):
    """Overwrite `b` (m, n) with b L⁻ᵀ, where `lower` (n, n) holds L in its lower triangle."""
    n = np.array([b.shape[1]], np.int32)
    m = np.array([b.shape[0]], np.int32)
    one = np.ones(1)
    _trsm(
        _LEFT.ctypes, _UPPER.ctypes, _TRANSPOSED.ctypes, _NORMAL.ctypes, n.ctypes, m.ctypes,
        one.ctypes, lower.ctypes, n.ctypes, b.ctypes, n.ctypes,
    )  # fmt: skip


@kernel
def add_outer_product(scale, b, out):
    """Add `scale` · b bᵀ to the lower triangle of `out`; `b` is (m, n), `out` (m, m)."""
    m = np.array([b.shape[0]], np.int32)
    k = np.array([b.shape[1]], np.int32)
    factors = np.array([scale, 1.0])
    _syrk(
        _UPPER.ctypes, _TRANSPOSED.ctypes, m.ctypes, k.ctypes,
        factors[:1].ctypes, b.ctypes, k.ctypes, factors[1:].ctypes, out.ctypes, m.ctypes,
    )  # fmt: skip


@kernel
def copy_into(out, values):
    """Overwrite the contiguous array `out` with another of its size (an assignment of slices takes long to compile)."""
    n = np.array([out.size], np.int32)
    step = np.ones(1, np.int32)
    _copy(n.ctypes, values.ctypes, step.ctypes, out.ctypes, step.ctypes)


@kernel
def dot(x, y):
    """xᵀy of two contiguous vectors."""
    n = np.array([x.shape[0]], np.int32)
    step = np.ones(1, np.int32)
    return _dot(n.ctypes, x.ctypes, step.ctypes, y.ctypes, step.ctypes)


@kernel
def solve_with_cholesky(lower, b):
    """The solution x (n,) of L Lᵀ x = b, where the lower triangle of `lower` holds L."""
    n = np.array([lower.shape[0]], np.int32)
    one = np.ones(1, np.int32)
    info = np.zeros(1, np.int32)
    x = b.copy()
    _potrs(_UPPER.ctypes, n.ctypes, one.ctypes, lower.ctypes, n.ctypes, x.ctypes, n.ctypes, info.ctypes)
    return x


@kernel
def multiply_symmetric(lower, b, out):
    """S b into `out` (n,), where the lower triangle of `lower` holds the symmetric S and `b` is contiguous."""
    n = np.array([lower.shape[0]], np.int32)
    step = np.ones(1, np.int32)
    factors = np.array([1.0, 0.0])
    _symv(
        _UPPER.ctypes, n.ctypes, factors[:1].ctypes, lower.ctypes, n.ctypes,
        b.ctypes, step.ctypes, factors[1:].ctypes, out.ctypes, step.ctypes,
    )  # fmt: skip


@kernel
def multiply_functions(matrices, x, out):
    """S_k x_k of each class into `out` (c, n); `matrices` (1 or c, n, n) are used through their lower triangles."""
    for a in range(x.shape[0]):
        multiply_symmetric(matrices[a if matrices.shape[0] > 1 else 0], x[a], out[a])


@kernel
def solve_triangular(lower, x, transposed):
    """Overwrite `x` (n,) with L⁻¹ x, or L⁻ᵀ x, where the lower triangle of `lower` holds L."""
    n = np.array([lower.shape[0]], np.int32)
    step = np.ones(1, np.int32)
    how = _NORMAL if transposed else _TRANSPOSED
    _trsv(_UPPER.ctypes, how.ctypes, _NORMAL.ctypes, n.ctypes, lower.ctypes, n.ctypes, x.ctypes, step.ctypes)


@kernel
def multiply_triangular(lower, x, transposed):
    """Overwrite `x` (n,) with L x, or Lᵀ x, where the lower triangle of `lower` holds L."""
    n = np.array([lower.shape[0]], np.int32)
    step = np.ones(1, np.int32)
    how = _NORMAL if transposed else _TRANSPOSED
    _trmv(_UPPER.ctypes, how.ctypes, _NORMAL.ctypes, n.ctypes, lower.ctypes, n.ctypes, x.ctypes, step.ctypes)
