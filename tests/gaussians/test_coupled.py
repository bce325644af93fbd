"""The joint posterior against dense algebra: prediction, covariances, draws."""

from typing import NamedTuple

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.gaussians.coupled import CoupledPosterior
from tests.reference.data import random_problem, squared_exponential
from tests.reference.dense_nested_ep import NestedEP, nested_ep, predict, site

C, N, NEW = 3, 7, 4


class Setting(NamedTuple):
    """A posterior and its dense counterpart, and the prior at new points."""

    posterior: CoupledPosterior
    dense: NestedEP
    k: np.ndarray
    k_cross: np.ndarray
    k_new: np.ndarray
    mean_new: np.ndarray
    roots: np.ndarray


@pytest.fixture(scope="module", params=[False, True], ids=["shared", "per class"])
def setting(request):
    problem = random_problem(11, N, C, variance=6.0, with_mean=True)
    rng = np.random.default_rng(12)
    X_new = rng.normal(size=(NEW, 2))
    scales = [0.6, 1.2, 2.0] if request.param else [1.2]
    k, k_cross, k_new = (
        np.stack([squared_exponential(a, b, variance=6.0, lengthscale=scale) for scale in scales])
        for a, b in ((problem.X, problem.X), (X_new, problem.X), (X_new, X_new))
    )
    k += 1e-8 * np.eye(N)
    dense = nested_ep(k if request.param else k[0], problem.y, problem.m)
    pi = np.ones((C, N))
    for i, y in enumerate(problem.y):
        pi[np.arange(C) != y, i] = dense.alpha[i]
        precision = np.diag(pi[:, i]) - np.outer(pi[:, i], pi[:, i]) / pi[:, i].sum()
        assert_allclose(precision, site(dense.alpha[i], dense.beta[i], y)[0], atol=1e-14)
    posterior = CoupledPosterior(k, problem.m, pi, dense.gradient_mean)
    return Setting(posterior, dense, k, k_cross, k_new, rng.normal(size=(C, NEW)), np.linalg.cholesky(k))


def whitened_covariance(setting):
    """Covariance of z = L⁻¹ (f − m), (cn, cn): I − Lᵀ M L."""
    root = np.zeros((C, N, C, N))
    for a in range(C):
        root[a, :, a] = setting.roots[a % len(setting.roots)]
    root = root.reshape(C * N, C * N)
    return np.eye(C * N) - root.T @ setting.dense.m_matrix @ root


def test_prediction_equals_dense(setting):
    mean, cov = setting.posterior.predict(setting.k_cross, setting.k_new.diagonal(axis1=1, axis2=2), setting.mean_new)
    dense_mean, dense_cov = predict(setting.dense, setting.k_cross.squeeze(), setting.k_new.squeeze(), setting.mean_new)
    assert_allclose(mean, dense_mean, rtol=1e-11, atol=1e-11)
    points = np.arange(NEW)
    assert_allclose(cov, dense_cov.reshape(C, NEW, C, NEW)[:, points, :, points], atol=1e-10)


def test_prediction_at_the_training_inputs_is_the_posterior(setting):
    posterior = setting.posterior
    mean, cov = posterior.predict(setting.k, setting.k.diagonal(axis1=1, axis2=2), posterior.prior_mean)
    points = np.arange(N)
    assert_allclose(mean, setting.dense.mean, atol=1e-10)
    assert_allclose(cov, setting.dense.covariance.reshape(C, N, C, N)[:, points, :, points], atol=1e-10)


def test_prediction_far_away_is_the_prior(setting):
    variance = np.full((len(setting.k), NEW), 6.0)
    mean, cov = setting.posterior.predict(np.zeros_like(setting.k_cross), variance, setting.mean_new)
    assert (mean == setting.mean_new).all()
    assert (cov == 6.0 * np.eye(C)).all()


def test_rounded_prior_variances_leave_no_negative_variance():
    """A function as good as constant: prior variances that are a millionth too small exceed what data leave of them."""
    k = np.full((1, 5, 5), 1e6)
    posterior = CoupledPosterior(k, np.zeros((2, 5)), np.ones((2, 5)), np.zeros((2, 5)))
    _, cov = posterior.predict(k, (1 - 1e-6) * k[:, 0], np.zeros((2, 5)))
    assert (np.linalg.eigvalsh(cov) > -1e-8).all()


def test_covariance_of_latent_values(setting):
    posterior = setting.posterior
    cov = posterior.joint_covariance(setting.k, setting.k)
    assert_allclose(cov.reshape(C * N, C * N), setting.dense.covariance, atol=1e-10)
    variance = posterior.marginal_variance(setting.k, setting.k)
    assert_allclose(variance.ravel(), setting.dense.covariance.diagonal(), atol=1e-10)


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
    mean = setting.posterior.prior_mean + np.squeeze(setting.roots @ offset.reshape(C, N, 1), -1)
    assert_allclose(mean, setting.dense.mean, atol=1e-10)


def test_draws_from_a_generator(setting):
    draws = 20_000
    z = setting.posterior.draw_whitened(np.random.default_rng(5), draws, setting.roots)
    again = setting.posterior.draw_whitened(np.random.default_rng(5), draws, setting.roots)
    assert z.shape == (draws, C, N)
    assert (z == again).all()
    expected = whitened_covariance(setting)
    sd = np.sqrt(expected.diagonal())
    mean = np.squeeze(setting.roots.swapaxes(1, 2) @ setting.posterior.weights[..., None], -1).ravel()
    flat = z.reshape(draws, C * N)
    # Four and a half standard errors: 21 means and 231 covariances.
    assert (np.abs(flat.mean(0) - mean) < 4.5 * sd / np.sqrt(draws)).all()
    error = np.sqrt((np.outer(sd, sd) ** 2 + expected**2) / draws)
    assert (np.abs(np.cov(flat.T) - expected) < 4.5 * error).all()


def test_covariance_that_is_not_positive_definite():
    k = np.array([[[1.0, 5.0], [5.0, 1.0]]])
    posterior = CoupledPosterior(k, np.zeros((2, 2)), np.ones((2, 2)), np.zeros((2, 2)))
    with pytest.raises(np.linalg.LinAlgError, match="not positive semi-definite"):
        posterior.predict(k, k[:, 0], np.zeros((2, 2)))
