"""The map from z to f against dense algebra."""

import numpy as np
import pytest
from scipy.linalg import block_diag

from pymc_gpep.gaussians.dense_prior import Prior
from pymc_gpep.gaussians.whitening import PriorWhitening, SiteWhitening
from tests.reference.data import random_problem

N, C = 7, 3


def make_prior(per_class: bool) -> Prior:
    problem = random_problem(3, N, C, per_class=per_class, with_mean=True)
    k = problem.K.reshape(-1, N, N) + 1e-6 * np.eye(N)
    return Prior(k, np.linalg.cholesky(k), problem.m)


def make_sites(seed: int = 0, smallest: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    pi, nu = rng.gamma(1.0, size=(C, N)), rng.normal(size=(C, N))
    if smallest:
        pi[0, :3] = smallest
        pi[1] = 1.0
    return pi, nu - nu.mean(axis=0)


def dense(prior: Prior, pi: np.ndarray, nu: np.ndarray) -> tuple[np.ndarray, np.ndarray, float, np.ndarray]:
    """Posterior mean and covariance, log Z̃ and Π, all of size cn."""
    k = block_diag(*(prior.k[a % len(prior.k)] for a in range(C)))
    precision = np.zeros((C, N, C, N))
    for i in range(N):
        precision[:, i, :, i] = np.diag(pi[:, i]) - np.outer(pi[:, i], pi[:, i]) / pi[:, i].sum()
    precision = precision.reshape(C * N, C * N)
    m, b = prior.mean.ravel(), nu.ravel()
    covariance = np.linalg.inv(np.linalg.inv(k) + precision)
    mean = covariance @ (np.linalg.solve(k, m) + b)
    log_z = -0.5 * np.linalg.slogdet(np.eye(C * N) + k @ precision)[1]
    log_z += 0.5 * mean @ np.linalg.solve(covariance, mean) - 0.5 * m @ np.linalg.solve(k, m)
    return mean, covariance, log_z, precision


def matrix(whitening) -> np.ndarray:
    """The linear part of the map, (cn, number of z)."""
    size = int(np.prod(whitening.shape))
    return np.stack(
        [(whitening.latent(e.reshape(whitening.shape)) - whitening.centre).ravel() for e in np.eye(size)], 1
    )


@pytest.fixture(params=["shared", "per class"])
def prior(request):
    return make_prior(request.param == "per class")


@pytest.mark.parametrize("smallest", [0.0, 1e-10])
def test_sites_give_the_dense_posterior(prior, smallest):
    pi, nu = make_sites(smallest=smallest)
    whitening = SiteWhitening(prior, pi, nu)
    mean, covariance, log_z, _ = dense(prior, pi, nu)
    np.testing.assert_allclose(whitening.centre.ravel(), mean, atol=1e-9)
    np.testing.assert_allclose(whitening.log_evidence, log_z, atol=1e-9)
    linear = matrix(whitening)
    np.testing.assert_allclose(linear @ linear.T, covariance, atol=1e-9)


def test_prior_gives_the_prior(prior):
    linear = matrix(PriorWhitening(prior))
    k = block_diag(*(prior.k[a % len(prior.k)] for a in range(C)))
    np.testing.assert_allclose(linear @ linear.T, k, atol=1e-12)
    assert PriorWhitening(prior).log_sites(prior.mean)[0] == 0.0


def both(prior: Prior):
    return [PriorWhitening(prior), SiteWhitening(prior, *make_sites())]


def test_slopes_are_those_of_the_transpose(prior):
    slope = np.random.default_rng(1).normal(size=(C, N))
    for whitening in both(prior):
        expected = (matrix(whitening).T @ slope.ravel()).reshape(whitening.shape)
        np.testing.assert_allclose(whitening.slope(slope), expected, atol=1e-12)


def test_z_given_f_gives_f_back(prior):
    rng = np.random.default_rng(2)
    for whitening in both(prior):
        f = whitening.latent(rng.normal(size=whitening.shape))
        np.testing.assert_allclose(whitening.latent(whitening.whitened(f, rng)), f, atol=1e-10)


def test_z_given_f_is_drawn_from_its_conditional():
    """For z ~ N(0, I) and f = a + J z, z given f is N(Jᵀ(JJᵀ)⁻¹(f − a), I − Jᵀ(JJᵀ)⁻¹J)."""
    prior = make_prior(False)
    whitening = SiteWhitening(prior, *make_sites())
    linear = matrix(whitening)
    rng = np.random.default_rng(3)
    f = whitening.latent(rng.normal(size=whitening.shape))
    gain = np.linalg.solve(linear @ linear.T, linear).T
    mean = gain @ (f - whitening.centre).ravel()
    covariance = np.eye(linear.shape[1]) - gain @ linear
    draws = np.array([whitening.whitened(f, rng).ravel() for _ in range(20_000)])
    error = np.sqrt(covariance.diagonal() / len(draws)) + 1e-9
    assert (np.abs(draws.mean(0) - mean) < 5 * error).all()
    np.testing.assert_allclose(np.cov(draws.T), covariance, atol=0.06)


def test_log_sites_and_their_slope(prior):
    pi, nu = make_sites()
    whitening = SiteWhitening(prior, pi, nu)
    *_, precision = dense(prior, pi, nu)
    f = np.random.default_rng(4).normal(size=(C, N))
    value, slope = whitening.log_sites(f)
    np.testing.assert_allclose(value, nu.ravel() @ f.ravel() - 0.5 * f.ravel() @ precision @ f.ravel(), rtol=1e-12)
    np.testing.assert_allclose(slope.ravel(), nu.ravel() - precision @ f.ravel(), atol=1e-12)


def test_indefinite_prior_is_refused():
    prior = make_prior(False)
    with pytest.raises(np.linalg.LinAlgError):
        SiteWhitening(prior._replace(k=prior.k - 3 * np.eye(N)), *make_sites())
