"""Validation of priors and labels, and methods of a dense prior."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.solvers.site_algebra import NotPositiveDefiniteError
from tests.reference.dense_posterior import block_diagonal

C, N = 3, 4
K = np.eye(N) + 0.5
MEAN = np.zeros((C, N))


def check_prior(k, mean):
    """Return the checked arrays of a prior."""
    prior = DensePrior.checked(k, mean)
    return prior.k, prior.mean


@pytest.mark.parametrize(
    ("k", "shape"),
    [(K, (1, N, N)), (K[None], (1, N, N)), (np.stack([K] * C), (C, N, N)), (K.tolist(), (1, N, N))],
    ids=["shared", "shared, three axes", "per class", "list"],
)
def test_arrays_have_the_types_and_shapes_that_kernels_expect(k, shape):
    covariance, mean = check_prior(k, np.asfortranarray(MEAN))
    assert (covariance.shape, covariance.dtype) == (shape, np.float64)
    assert (mean.shape, mean.dtype) == ((C, N), np.float64)
    assert all(array.flags.c_contiguous for array in (covariance, mean))
    assert (covariance == K).all()


def test_prior_of_one_function_needs_no_axis_of_functions():
    assert_allclose(check_prior(K, np.arange(N))[1], np.arange(N)[None])


def test_zero_covariance_of_a_point_and_asymmetry_by_rounding_are_accepted():
    assert check_prior([[0.0]], np.zeros((2, 1)))[0].shape == (1, 1, 1)
    rounded = 1e6 * K
    rounded[0, 1] += 1e-4
    check_prior(rounded, MEAN)


def replace(array, value, *index):
    result = np.array(array, float)
    result[index] = value
    return result


@pytest.mark.parametrize(
    ("k", "mean", "message"),
    [
        (K, MEAN[None], r"mean must be \(c, n\).*has shape \(1, 3, 4\)"),
        (K, MEAN[:0], "c ≥ 1"),
        (np.empty((0, 0)), np.empty((3, 0)), "n ≥ 1"),
        (K[:3], MEAN, r"k must be \(4, 4\) or \(3, 4, 4\).*has shape \(3, 4\)"),
        (np.stack([K] * 2), MEAN, r"k must be .* has shape \(2, 4, 4\)"),
        (K, replace(MEAN, np.nan, 0, 0), "mean must be finite, but has 1 values"),
        (replace(K, np.inf, slice(2), 0), MEAN, "k must be finite, but has 2 values"),
        (replace(K, 0.6, 0, 1), MEAN, "k must be symmetric"),
        (replace(K, -0.1, 2, 2), MEAN, "k must have no negative variance"),
    ],
)
def test_invalid_arrays_raise_value_error(k, mean, message):
    with pytest.raises(ValueError, match=message):
        check_prior(k, mean)


@pytest.fixture(params=[1, C], ids=["shared", "per class"])
def prior(request):
    a = np.random.default_rng(0).normal(size=(request.param, N, N))
    return DensePrior(a @ a.swapaxes(1, 2) + np.eye(N), np.random.default_rng(1).normal(size=(C, N)))


def test_colouring_inverts_whitening(prior):
    z = np.random.default_rng(2).normal(size=(5, C, N))
    roots = block_diagonal(np.linalg.cholesky(prior.k), C)
    expected = prior.mean + (z.reshape(5, -1) @ roots.T).reshape(z.shape)
    assert_allclose(prior.latent(z), expected, atol=1e-12)
    assert_allclose(prior.latent(z[0]), expected[0], atol=1e-12)
    assert_allclose(prior.whitened(prior.latent(z[0])), z[0], atol=1e-12)
    assert_allclose(prior.whitened_slope(z[0]).ravel(), roots.T @ z[0].ravel(), atol=1e-12)


def test_draws_have_the_moments_of_the_prior(prior):
    draws = prior.draw(np.random.default_rng(3), 20_000)
    assert draws.shape == (20_000, C, N)
    covariance = block_diagonal(prior.k, C)
    variance = covariance.diagonal()
    assert (np.abs(draws.mean(0) - prior.mean).ravel() < 4.5 * np.sqrt(variance / len(draws))).all()
    error = np.sqrt((np.outer(variance, variance) + covariance**2) / len(draws))
    assert (np.abs(np.cov(draws.reshape(len(draws), -1).T) - covariance) < 4.5 * error).all()


@pytest.mark.parametrize("crosses", [1, C], ids=["shared cross", "cross per class"])
def test_conditional_moments_equal_dense_algebra(prior, crosses):
    rng = np.random.default_rng(4)
    cross, variance = rng.normal(size=(crosses, 2, N)), 10.0 + rng.random((crosses, 2))
    f, new_mean = rng.normal(size=(C, N)), rng.normal(size=(C, 2))
    mean, spread = prior.conditional(f, cross, variance, new_mean)
    between = block_diagonal(cross, C) @ np.linalg.inv(block_diagonal(prior.k, C))
    expected = new_mean.ravel() + between @ (f - prior.mean).ravel()
    assert_allclose(mean.ravel(), expected, atol=1e-10)
    own = np.broadcast_to(variance, (C, 2)).ravel() - (between @ block_diagonal(cross, C).T).diagonal()
    assert_allclose(spread.ravel(), np.maximum(own, 0.0), atol=1e-10)


@pytest.mark.parametrize(
    "k", [np.ones((1, N, N)), np.full((1, N, N), np.nan), -K[None]], ids=["rank 1", "nan", "negative"]
)
def test_indefinite_covariance_has_no_root(k):
    with pytest.raises(NotPositiveDefiniteError, match=r"the prior covariance is not positive definite.*jitter"):
        _ = DensePrior(k, MEAN).roots
