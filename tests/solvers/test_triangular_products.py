"""Triangular products by halves, against products of whole matrices."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.solvers.whitened_posterior import lower_product, weighted_gram

M = 4
RNG = np.random.default_rng(0)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("rows", [0, 1, 7])
def test_products_equal_products_of_whole_matrices(rows, order):
    lower = np.tril(RNG.normal(size=(M, M)))
    w = np.asarray(RNG.normal(size=(M, rows)), order=order)
    assert_allclose(lower_product(lower, w), lower @ w, rtol=1e-13, atol=1e-15)
    assert_allclose(lower_product(lower, w, transposed=True), lower.T @ w, rtol=1e-13, atol=1e-15)
    for weights in (RNG.uniform(size=rows), RNG.normal(size=rows)):
        assert_allclose(weighted_gram(w, weights), w @ np.diag(weights) @ w.T, rtol=1e-13, atol=1e-13)
