"""Wrappers of BLAS and LAPACK. Triangles that they must not read are NaN."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.kernels.linalg import lapack

sizes = pytest.mark.parametrize("n", [1, 2, 7, 70, 270])  # the last size has five blocks on its diagonal


def positive_definite(n):
    root = np.random.default_rng(n).standard_normal((n, n))
    return root @ root.T + np.eye(n)


def lower_of(matrix):
    """The lower triangle of a matrix, with NaN above."""
    result = matrix.copy()
    result[np.triu_indices(len(matrix), 1)] = np.nan
    return result


@sizes
def test_cholesky_and_inverse_match_numpy(n):
    matrix = positive_definite(n)
    work = lower_of(matrix)
    assert lapack.cholesky(work)
    assert_allclose(np.tril(work), np.linalg.cholesky(matrix), rtol=1e-11, atol=1e-11)
    assert lapack.inverse_from_cholesky(work)
    assert_allclose(np.tril(work), np.tril(np.linalg.inv(matrix)), rtol=1e-10, atol=1e-10)
    assert np.isnan(work[np.triu_indices(n, 1)]).all()


@pytest.mark.parametrize("matrix", [[[0.0]], [[-1.0]], [[1.0, 2.0], [2.0, 1.0]]])
def test_cholesky_of_an_indefinite_matrix_returns_false(matrix):
    assert not lapack.cholesky(np.array(matrix))


@pytest.mark.parametrize("n", [65, 129, 300])
@pytest.mark.parametrize("jitter", [1e-10, 3e-14])
def test_factor_of_a_nearly_singular_matrix_keeps_its_digits(n, jitter):
    """A covariance with eigenvalues from 3e-14 to n is factorised and solved as exactly as by LAPACK.

    At 1e-14 rounding errors decide, and they differ between processors: LAPACK itself fails for 400 rows.
    """
    x = np.linspace(0.0, 1.0, n)
    a = np.exp(-2.0 * (x[:, None] - x) ** 2) + jitter * np.eye(n)
    factor, solved = a.copy(), np.eye(n)
    assert lapack.cholesky(factor)
    lower = np.tril(factor)
    assert_allclose(lower @ lower.T, a, rtol=0, atol=1e-16 * n)
    lapack.solve_right_transposed(factor, solved)
    reached = np.abs(solved) @ np.abs(lower.T)
    assert (np.abs(solved @ lower.T - np.eye(n)) <= 1e-16 * n * reached).all()


def test_inverse_refuses_a_singular_factor():
    assert not lapack.inverse_from_cholesky(np.array([[1.0, 0.0], [1.0, 0.0]]))


@sizes
@pytest.mark.parametrize("rows", [1, 3, 90])
def test_solve_right_transposed_matches_numpy(n, rows):
    factor = np.linalg.cholesky(positive_definite(n))
    b = np.random.default_rng(1).standard_normal((rows, n))
    result = b.copy()
    lapack.solve_right_transposed(lower_of(factor), result)
    assert_allclose(result @ factor.T, b, rtol=1e-10, atol=1e-11)


@sizes
@pytest.mark.parametrize("columns", [1, 3, 90])
def test_add_outer_product_matches_numpy(n, columns):
    rng = np.random.default_rng(2)
    b, start = rng.standard_normal((n, columns)), rng.standard_normal((n, n))
    result = lower_of(start)
    lapack.add_outer_product(-0.5, b, result)
    assert_allclose(np.tril(result), np.tril(start - 0.5 * b @ b.T), rtol=1e-12, atol=1e-12)
    assert np.isnan(result[np.triu_indices(n, 1)]).all()


@sizes
def test_solve_with_cholesky_matches_numpy(n):
    matrix = positive_definite(n)
    b = np.random.default_rng(3).standard_normal(n)
    given = b.copy()
    x = lapack.solve_with_cholesky(lower_of(np.linalg.cholesky(matrix)), given)
    assert_allclose(matrix @ x, b, rtol=1e-10, atol=1e-10)
    assert (given == b).all()


@sizes
def test_multiply_symmetric_matches_numpy(n):
    matrix = positive_definite(n)
    b = np.random.default_rng(4).standard_normal(n)
    out = np.full(n, np.nan)
    lapack.multiply_symmetric(lower_of(matrix), b, out)
    assert_allclose(out, matrix @ b, rtol=1e-12, atol=1e-11)


def test_copy_into_overwrites_all_entries():
    values = np.random.default_rng(0).normal(size=(2, 3, 4))
    out = np.zeros((2, 3, 4))
    lapack.copy_into(out, values)
    assert_allclose(out, values, rtol=0)


@sizes
def test_slices_of_a_stack_are_changed_in_place(n):
    stack = np.stack([positive_definite(n)] * 3)
    assert lapack.cholesky(stack[1])
    assert_allclose(np.tril(stack[1]), np.linalg.cholesky(stack[0]), rtol=1e-11, atol=1e-11)
    assert (stack[0] == stack[2]).all()


@sizes
@pytest.mark.parametrize("transposed", [False, True])
def test_triangular_products_and_solves_match_numpy(n, transposed):
    factor = np.linalg.cholesky(positive_definite(n))
    matrix = factor.T if transposed else factor
    x = np.random.default_rng(6).standard_normal(n)
    product = x.copy()
    lapack.multiply_triangular(lower_of(factor), product, transposed)
    assert_allclose(product, matrix @ x, rtol=1e-12, atol=1e-12)
    lapack.solve_triangular(lower_of(factor), product, transposed)
    assert_allclose(product, x, rtol=1e-9, atol=1e-11)


def test_single_precision_matrices_match_numpy():
    """Operations of a sweep in single precision."""
    n = 40
    matrix = positive_definite(n)
    factor, rng = np.linalg.cholesky(matrix), np.random.default_rng(7)
    b, rows = rng.standard_normal(n).astype(np.float32), rng.standard_normal((3, n)).astype(np.float32)
    single = lower_of(matrix).astype(np.float32)
    product = np.full(n, np.nan, np.float32)
    lapack.multiply_symmetric(single, b, product)
    assert lapack.cholesky(single)
    solved, divided = lapack.solve_with_cholesky(single, b), rows.copy()
    lapack.solve_right_transposed(single, divided)
    found = np.tril(single)
    assert lapack.inverse_from_cholesky(single)
    for value, exact in (
        (product, matrix @ b),
        (lapack.dot(b, product), b @ matrix @ b),
        (found, factor),
        (solved, np.linalg.solve(matrix, b)),
        (divided, np.linalg.solve(factor, rows.T).T),
        (np.tril(single), np.tril(np.linalg.inv(matrix))),
    ):
        assert 0 < np.abs(value - exact).max() < 1e-4 * np.abs(exact).max()
