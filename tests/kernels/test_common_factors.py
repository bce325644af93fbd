"""Common factors of classes: factorisation of their covariance, and quadrature rules over the factors."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.kernels.special.common_factors import split_covariance


def split(v):
    c = len(v)
    variance, root = np.empty(c), np.empty((c, c - 1))
    valid = split_covariance(v.copy(), variance, root, np.empty((5, c, c)))
    return valid, variance, root


def centred(a):
    c = len(a)
    centring = np.eye(c) - 1.0 / c
    return centring @ a @ centring


@pytest.mark.parametrize("scale", [0.1, 1.0, 100.0])
def test_factors_and_diagonal_reproduce_the_covariance_of_differences(scale):
    rng = np.random.default_rng(0)
    for c in (3, 5, 9):
        a = scale * rng.standard_normal((c, c))
        v = a @ a.T + np.eye(c)
        valid, variance, root = split(v)
        assert valid
        assert (variance > 0).all()
        assert_allclose(centred(np.diag(variance) + root @ root.T), centred(v), rtol=0, atol=1e-8 * np.trace(v))


def test_diagonal_plus_common_factor_is_recovered():
    diagonal = np.array([1.0, 3.0, 2.0, 0.5, 10.0])
    for common in (0.0, 1e4):
        _, variance, root = split(np.diag(diagonal) + common)
        assert_allclose(variance.sum(), diagonal.sum(), rtol=0.02)
        assert (centred(root @ root.T).diagonal() < 0.1 * diagonal).all()


def test_split_of_a_covariance_has_the_largest_possible_diagonal():
    a = np.random.default_rng(1).standard_normal((6, 6))
    v = a @ a.T + 0.1 * np.eye(6)
    _, variance, _ = split(v)
    largest = 0.0
    # A larger diagonal would leave a negative eigenvalue.
    for direction in np.random.default_rng(2).uniform(0, 1, (2000, 6)):
        basis = np.linalg.svd(np.ones((1, 6)))[2][1:]
        scaled = np.linalg.solve(basis @ v @ basis.T, basis @ np.diag(direction) @ basis.T)
        largest = max(largest, direction.sum() / np.abs(np.linalg.eigvals(scaled)).max())
    assert variance.sum() > 0.99 * largest


def test_split_of_a_matrix_without_factors_returns_false():
    assert not split(np.zeros((3, 3)))[0]
    assert not split(-np.eye(3))[0]
    assert not split(np.diag([1.0, 1.0, -1.0]))[0]
