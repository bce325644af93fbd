"""The joint posterior of independent classes against dense algebra: prediction, covariances, draws."""

from typing import NamedTuple

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.gaussians.independent import IndependentPosterior
from tests.reference.data import random_problem, squared_exponential

C, N, NEW = 3, 7, 4


class Setting(NamedTuple):
    """A posterior, the prior at new points, and the dense B of each class."""

    posterior: IndependentPosterior
    k_cross: np.ndarray
    k_new: np.ndarray
    mean_new: np.ndarray
    roots: np.ndarray
    b: np.ndarray


def precisions(kind, rng):
    match kind:
        case "ones":
            return np.ones((C, N))
        case "tiny":
            return 10.0 ** rng.uniform(-40.0, 1.0, size=(C, N))
        case "some zero":
            return rng.exponential(size=(C, N)) * (rng.random((C, N)) < 0.5)
    raise AssertionError(kind)


@pytest.fixture(scope="module", params=["ones", "tiny", "some zero"])
def kind(request):
    return request.param


@pytest.fixture(scope="module", params=[False, True], ids=["shared", "per class"])
def setting(request, kind):
    problem = random_problem(11, N, C, variance=6.0, with_mean=True)
    rng = np.random.default_rng(12)
    X_new = rng.normal(size=(NEW, 2))
    scales = [0.6, 1.2, 2.0] if request.param else [1.2]
    k, k_cross, k_new = (
        np.stack([squared_exponential(a, b, variance=6.0, lengthscale=scale) for scale in scales])
        for a, b in ((problem.X, problem.X), (X_new, problem.X), (X_new, X_new))
    )
    k += 1e-8 * np.eye(N)
    pi = precisions(kind, rng)
    b = np.stack([np.linalg.solve(np.eye(N) + d[:, None] * k[a % len(k)], np.diag(d)) for a, d in enumerate(pi)])
    weights = rng.normal(size=(C, N))
    posterior = IndependentPosterior(k, problem.m, pi, weights)
    return Setting(posterior, k_cross, k_new, rng.normal(size=(C, NEW)), np.linalg.cholesky(k), b)


def each(array):
    return np.broadcast_to(array, (C, *array.shape[1:]))


def block_diagonal(blocks):
    full = np.zeros((C, N, C, N))
    for a, block in enumerate(blocks):
        full[a, :, a] = block
    return full


def whitened_covariance(setting):
    roots = each(setting.roots)
    return block_diagonal(np.eye(N) - roots.transpose(0, 2, 1) @ setting.b @ roots).reshape(C * N, C * N)


def test_prediction(setting):
    variance = setting.k_new.diagonal(axis1=1, axis2=2)
    mean, cov = setting.posterior.predict(setting.k_cross, variance, setting.mean_new)
    cross = each(setting.k_cross)
    assert_allclose(mean, setting.mean_new + np.einsum("kmn,kn->km", cross, setting.posterior.weights), atol=1e-12)
    own = np.einsum("kmm->km", each(setting.k_new) - cross @ setting.b @ cross.transpose(0, 2, 1))
    assert_allclose(cov, own.T[:, :, None] * np.eye(C), atol=1e-11)


def test_prediction_far_away_is_the_prior(setting):
    variance = np.full((len(setting.posterior.k), NEW), 6.0)
    mean, cov = setting.posterior.predict(np.zeros_like(setting.k_cross), variance, setting.mean_new)
    assert (mean == setting.mean_new).all()
    assert (cov == 6.0 * np.eye(C)).all()


def test_rounded_prior_variances_leave_no_negative_variance():
    k = np.full((1, 5, 5), 1e6)
    posterior = IndependentPosterior(k, np.zeros((2, 5)), np.ones((2, 5)), np.zeros((2, 5)))
    _, cov = posterior.predict(k, (1 - 1e-6) * k[:, 0], np.zeros((2, 5)))
    assert (cov >= 0.0).all()


def test_covariance_of_latent_values(setting):
    posterior = setting.posterior
    k = each(posterior.k)
    expected = block_diagonal(k - k @ setting.b @ k)
    assert_allclose(posterior.joint_covariance(posterior.k, posterior.k), expected, atol=1e-11)
    variance = posterior.marginal_variance(posterior.k, posterior.k)
    assert variance.shape == (C, N)
    assert_allclose(variance.ravel(), expected.reshape(C * N, -1).diagonal(), atol=1e-11)


def test_covariance_of_whitened_values(setting):
    posterior = setting.posterior
    identity = np.eye(N)[None]
    expected = whitened_covariance(setting)
    cov = posterior.joint_covariance(setting.roots, identity)
    assert_allclose(cov.reshape(C * N, C * N), expected, atol=1e-11)
    assert_allclose(posterior.marginal_variance(setting.roots, identity).ravel(), expected.diagonal(), atol=1e-11)


class UnitVectors:
    """Stands in for a generator: its two calls give the columns of the identity, (c, n, 2cn) each, and zero once."""

    def __init__(self):
        units = np.column_stack([np.eye(2 * C * N), np.zeros(2 * C * N)])
        self._parts = iter(units.reshape(2, C, N, -1))

    def standard_normal(self, size):
        part = next(self._parts)
        assert part.shape == size
        return part.copy()


def test_draws_are_a_linear_map_with_the_right_covariance(setting):
    """The map from noise to draws, column by column: its square is the covariance, its offset the mean."""
    columns = setting.posterior.draw_whitened(UnitVectors(), 2 * C * N + 1, setting.roots).reshape(-1, C * N)
    offset, columns = columns[-1], columns[:-1] - columns[-1]
    assert_allclose(columns.T @ columns, whitened_covariance(setting), atol=1e-10)
    expected = np.einsum("kji,kj->ki", each(setting.roots), setting.posterior.weights)
    assert_allclose(offset, expected.ravel(), atol=1e-10)


def test_covariance_that_is_not_positive_definite():
    k = np.array([[[1.0, 5.0], [5.0, 1.0]]])
    posterior = IndependentPosterior(k, np.zeros((2, 2)), np.ones((2, 2)), np.zeros((2, 2)))
    with pytest.raises(np.linalg.LinAlgError, match="not positive semi-definite"):
        posterior.predict(k, k[:, 0], np.zeros((2, 2)))
