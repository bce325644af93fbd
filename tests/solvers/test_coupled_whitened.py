"""Posteriors of sites that couple functions, with shared features and with features of each function."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.solvers.whitened_posterior import coupled_precision, coupled_whitened, shared_precision

M, ROWS = 4, 9


@pytest.mark.parametrize("c", [2, 3, 5])
def test_results_with_shared_features_equal_results_with_copies_for_each_function(c):
    rng = np.random.default_rng(c)
    w = np.asfortranarray(rng.normal(size=(M, ROWS)))
    pi = rng.uniform(0.1, 2.0, size=(c, ROWS))
    alike = [w] * c
    precision = shared_precision(w, pi)
    assert_allclose(np.tril(precision), np.tril(coupled_precision(alike, pi)), rtol=1e-12, atol=1e-13)

    posterior = coupled_whitened(precision, rng.normal(size=(c, M)))
    for found, expected in zip(posterior.shared_moments(w), posterior.moments(alike), strict=True):
        assert_allclose(found, expected, rtol=1e-12, atol=1e-14)
    assert_allclose(posterior.shared_smoothed(w, pi), posterior.smoothed(alike, pi).sum(axis=0), rtol=1e-11, atol=1e-13)


def test_moments_match_the_dense_inverse():
    c, rng = 3, np.random.default_rng(1)
    w, pi = np.asfortranarray(rng.normal(size=(M, ROWS))), rng.uniform(0.1, 2.0, size=(c, ROWS))
    whole = np.zeros((c * M, c * M))
    for row, own in zip(w.T, pi.T, strict=True):
        whole += np.kron(np.diag(own) - np.outer(own, own) / own.sum(), np.outer(row, row))
    covariance = np.linalg.inv(np.eye(c * M) + whole)
    _, found = coupled_whitened(shared_precision(w, pi), np.zeros((c, M))).shared_moments(w)
    for row, block in zip(w.T, found, strict=True):
        at = np.kron(np.eye(c), row)
        assert_allclose(block, at @ covariance @ at.T, rtol=1e-11)
