"""Newton's direction against a dense solve."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.kernels.gaussians.independent import inner_product, newton_direction
from pymc_gpep.kernels.linalg.lapack import multiply_functions
from tests.reference.data import random_problem

N, C = 8, 3


def setting(seed, per_class, variance=20.0):
    rng = np.random.default_rng(seed)
    k = random_problem(seed, N, C, variance=variance, per_class=per_class).K.reshape(-1, N, N)
    root = rng.normal(size=(N, C, C - 1))
    w = root @ root.transpose(0, 2, 1) * np.geomspace(1e-4, 0.3, N)[:, None, None]
    r = rng.normal(size=(C, N))
    prior, sites = np.zeros((C, N, C, N)), np.zeros((C, N, C, N))
    for a in range(C):
        prior[a, :, a] = k[a % len(k)]
    sites[:, range(N), :, range(N)] = w
    return k, w, r, prior.reshape(C * N, -1), sites.reshape(C * N, -1)


def direction(k, w, r, reduction, limit):
    d, pull, left = np.full((3, C, N), np.nan)
    newton_direction(k, w, r, reduction, limit, d, pull, left)
    return d, pull, left


@pytest.mark.parametrize("per_class", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_newton_direction_equals_dense_algebra(seed, per_class):
    k, w, r, prior, sites = setting(seed, per_class)
    d, pull, left = direction(k, w, r, 1e-14, 200)
    assert_allclose(pull.ravel(), np.linalg.solve(sites @ prior + np.eye(C * N), r.ravel()), atol=1e-9)
    assert_allclose(d.ravel(), prior @ pull.ravel(), atol=1e-10)
    assert_allclose(left, 0.0, atol=1e-9)


@pytest.mark.parametrize("limit", [0, 1, 2, 4])
def test_truncated_direction_is_an_ascent(limit):
    k, w, r, prior, sites = setting(1, False)
    d, pull, left = direction(k, w, r, 0.0, limit)
    assert_allclose(d.ravel(), prior @ pull.ravel(), atol=1e-11)
    assert_allclose(left.ravel(), r.ravel() - sites @ d.ravel() - pull.ravel(), atol=1e-11)
    # Each step of conjugate gradients increases the quadratic model, by half of rᵀd in total.
    gain = inner_product(r, d)
    assert gain == pytest.approx(d.ravel() @ (sites @ d.ravel() + pull.ravel()), abs=1e-10)
    further, _, _ = direction(k, w, r, 0.0, limit + 1)
    assert inner_product(r, further) > gain >= 0.0


def test_direction_is_zero_without_prior_variance():
    _, w, r, _, _ = setting(2, False)
    d, pull, left = direction(np.zeros((1, N, N)), w, r, 0.1, 50)
    assert (d == 0.0).all()
    assert (pull == 0.0).all()
    assert (left == r).all()


@pytest.mark.parametrize("per_class", [False, True])
def test_products_with_covariances_read_only_the_lower_triangle(per_class):
    k, _, r, prior, _ = setting(3, per_class)
    out = np.empty((C, N))
    multiply_functions(np.tril(k), r, out)
    assert_allclose(out.ravel(), prior @ r.ravel(), rtol=1e-12, atol=1e-12)
