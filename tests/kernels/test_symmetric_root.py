"""Jacobi rotations against LAPACK."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.kernels.linalg.small_matrices import eigenvectors, from_eigenvectors


@pytest.mark.parametrize("d", [1, 2, 5, 12])
@pytest.mark.parametrize("rank", [0, 1, 12])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_eigenvalues_and_symmetric_root_match_numpy(d, rank, scale):
    half = np.random.default_rng(d).normal(size=(d, min(rank, d)))
    matrix = scale * half @ half.T
    work, vectors, root = matrix.copy(), np.empty((d, d)), np.empty((d, d))
    eigenvectors(work, vectors)
    values = work.diagonal()
    size = scale * d
    assert_allclose(np.sort(values), np.linalg.eigvalsh(matrix), atol=1e-13 * size)
    assert_allclose(vectors.T @ vectors, np.eye(d), atol=1e-13)
    assert_allclose(matrix @ vectors, vectors * values, atol=1e-12 * size)
    from_eigenvectors(np.sqrt(np.maximum(values, 0.0)), vectors, root)
    assert_allclose(root @ root, matrix, atol=1e-12 * size)
    assert_allclose(root, root.T, atol=0)
