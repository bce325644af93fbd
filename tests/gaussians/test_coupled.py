"""Posterior of the sites of nested EP, against the dense reference of nested EP, and statistics of its draws."""

from typing import NamedTuple

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.gaussians.posterior import Posterior, make_posterior
from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.gaussians.sites import SiteForm
from tests.reference.data import random_problem, squared_exponential
from tests.reference.dense_nested_ep import NestedEP, nested_ep, predict, site
from tests.reference.dense_posterior import block_diagonal

C, N, NEW = 3, 7, 4


class Setting(NamedTuple):
    """A posterior, its dense reference, and the prior at new points."""

    posterior: Posterior
    dense: NestedEP
    k: np.ndarray
    k_cross: np.ndarray
    k_new: np.ndarray
    mean_new: np.ndarray


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
    posterior = make_posterior(DensePrior(k, problem.m), SiteForm.COUPLED, pi, dense.gradient_mean)
    return Setting(posterior, dense, k, k_cross, k_new, rng.normal(size=(C, NEW)))


def test_prediction_equals_dense_algebra(setting):
    mean, cov = setting.posterior.predict(setting.k_cross, setting.k_new.diagonal(axis1=1, axis2=2), setting.mean_new)
    dense_mean, dense_cov = predict(setting.dense, setting.k_cross.squeeze(), setting.k_new.squeeze(), setting.mean_new)
    assert_allclose(mean, dense_mean, rtol=1e-11, atol=1e-11)
    points = np.arange(NEW)
    assert_allclose(cov, dense_cov.reshape(C, NEW, C, NEW)[:, points, :, points], atol=1e-10)


def test_prediction_at_the_training_inputs_is_the_posterior(setting):
    posterior = setting.posterior
    mean, cov = posterior.predict(setting.k, setting.k.diagonal(axis1=1, axis2=2), posterior.prior.mean)
    points = np.arange(N)
    assert_allclose(mean, setting.dense.mean, atol=1e-10)
    assert_allclose(cov, setting.dense.covariance.reshape(C, N, C, N)[:, points, :, points], atol=1e-10)


def test_draws_depend_only_on_the_generator(setting):
    draws = 20_000
    z = setting.posterior.draw_whitened(np.random.default_rng(5), draws)
    again = setting.posterior.draw_whitened(np.random.default_rng(5), draws)
    assert z.shape == (draws, C, N)
    assert (z == again).all()
    roots = block_diagonal(setting.posterior.prior.roots, C)
    expected = np.eye(C * N) - roots.T @ setting.dense.m_matrix @ roots
    sd = np.sqrt(expected.diagonal())
    mean = np.squeeze(setting.posterior.prior.roots.swapaxes(1, 2) @ setting.posterior.weights[..., None], -1).ravel()
    flat = z.reshape(draws, C * N)
    # 4.5 standard errors, for 21 means and 231 covariances
    assert (np.abs(flat.mean(0) - mean) < 4.5 * sd / np.sqrt(draws)).all()
    error = np.sqrt((np.outer(sd, sd) ** 2 + expected**2) / draws)
    assert (np.abs(np.cov(flat.T) - expected) < 4.5 * error).all()
