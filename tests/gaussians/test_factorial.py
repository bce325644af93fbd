"""Posterior with independent latent values, against dense algebra."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import multivariate_normal

from pymc_gpep.gaussians.posterior import make_posterior, posterior_of
from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.gaussians.sites import SiteForm
from tests.reference.data import squared_exponential

N, NEW = 6, 3
RNG = np.random.default_rng(2)
X, X_NEW = RNG.normal(size=(N, 2)), RNG.normal(size=(NEW, 2))
K = squared_exponential(X, variance=4.0, lengthscale=1.0) + 0.05 * np.eye(N)
PRIOR = DensePrior(K[None], RNG.normal(size=(1, N)))
V, B = RNG.gamma(2.0, 0.3, size=(1, N)), RNG.normal(size=(1, N))
POSTERIOR = make_posterior(PRIOR, SiteForm.FACTORIAL, V, B)
INVERSE = np.linalg.inv(K)


def test_moments_equal_dense_algebra():
    mean, cov = POSTERIOR.marginals()
    assert_allclose(mean[0], PRIOR.mean[0] + K @ B[0], atol=1e-12)
    assert_allclose(cov[:, 0, 0], V[0])
    assert_allclose(POSTERIOR.joint_covariance(PRIOR.k, PRIOR.k)[0, :, 0], np.diag(V[0]), atol=1e-10)
    assert_allclose(POSTERIOR.marginal_variance(PRIOR.k, PRIOR.k), V, atol=1e-10)


def test_prediction_equals_dense_algebra():
    cross = squared_exponential(X_NEW, X, variance=4.0, lengthscale=1.0)
    mean, cov = POSTERIOR.predict(cross[None], np.full((1, NEW), 4.0), np.zeros((1, NEW)))
    assert_allclose(mean[0], cross @ B[0], atol=1e-12)
    m = INVERSE - INVERSE @ np.diag(V[0]) @ INVERSE
    assert_allclose(cov[:, 0, 0], 4.0 - np.einsum("mi,ij,mj->m", cross, m, cross), atol=1e-10)


def test_site_precision_is_posterior_minus_prior_precision():
    f = POSTERIOR.draw(np.random.default_rng(0), 5)
    prior = multivariate_normal(PRIOR.mean[0], K).logpdf(f[:, 0])
    q = multivariate_normal(POSTERIOR.mean[0], np.diag(V[0])).logpdf(f[:, 0])
    assert_allclose(prior + POSTERIOR.sites.log_density(f) - q, POSTERIOR.log_normaliser, atol=1e-8)
    again = posterior_of(PRIOR, POSTERIOR.sites)
    assert_allclose(again.weights, B, atol=1e-9)
    assert_allclose(again.mean, POSTERIOR.mean, atol=1e-9)


def test_divergence_from_the_prior_equals_dense_algebra():
    shift = K @ B[0]
    expected = 0.5 * ((INVERSE.diagonal() * V[0]).sum() - N + B[0] @ shift)
    expected += 0.5 * (np.linalg.slogdet(K)[1] - np.log(V).sum())
    assert POSTERIOR.divergence == pytest.approx(expected, abs=1e-10)


def test_cavities_equal_dense_algebra():
    """The cavity is the regression on the remaining values, which are independent."""
    mean, cov = POSTERIOR.cavities(*POSTERIOR.marginals())
    for i in range(N):
        others = np.delete(np.arange(N), i)
        slope = np.linalg.solve(K[np.ix_(others, others)], K[others, i])
        expected = K[i, i] - K[i, others] @ slope + slope**2 @ V[0, others]
        assert cov[i, 0, 0] == pytest.approx(expected, abs=1e-10)
        shift = slope @ (POSTERIOR.mean[0] - PRIOR.mean[0])[others]
        assert mean[i, 0] == pytest.approx(PRIOR.mean[0, i] + shift, abs=1e-10)


def test_derivatives_match_differences():
    to_k = np.random.default_rng(3).normal(size=(N, N))
    to_k += to_k.T
    precision = np.diag(1.0 / V[0]) - INVERSE

    def log_normaliser(t):
        k = K + t * to_k
        a = np.eye(N) + precision @ k
        pull = POSTERIOR.sites.location[0] - precision @ PRIOR.mean[0]
        return 0.5 * pull @ k @ np.linalg.solve(a, pull) - 0.5 * np.linalg.slogdet(a)[1]

    slope = (log_normaliser(1e-6) - log_normaliser(-1e-6)) / 2e-6
    of_k, of_mean = POSTERIOR.derivatives()
    assert (of_k * to_k).sum() == pytest.approx(slope, rel=1e-6)
    assert_allclose(of_mean, B)
    with pytest.raises(TypeError, match="factorial sites have no roots"):
        POSTERIOR.site_blocks()


# ---- points without an observation ----

HAS = np.array([True, False, True, True, False, True])
PART = make_posterior(PRIOR, SiteForm.FACTORIAL, V * HAS, B * HAS)


def joint():
    """Moments of independent values at four points, and of the prior of the remaining points given them."""
    mean, cov = PRIOR.mean[0] + K @ (B[0] * HAS), np.zeros((N, N))
    slope = K[:, HAS] @ np.linalg.inv(K[np.ix_(HAS, HAS)])
    cov = K - slope @ K[HAS] + slope @ np.diag(V[0, HAS]) @ slope.T
    return mean, cov


def test_unobserved_points_follow_the_prior_given_observed_points():
    mean, cov = joint()
    found_mean, found = PART.marginals()
    assert_allclose(found_mean[0], mean, atol=1e-10)
    assert_allclose(found[:, 0, 0], cov.diagonal(), atol=1e-10)
    assert_allclose(PART.joint_covariance(PRIOR.k, PRIOR.k)[0, :, 0], cov, atol=1e-10)
    draws = PART.draw(np.random.default_rng(1), 100_000)[:, 0]
    assert_allclose(draws.mean(axis=0), mean, atol=0.03)
    assert_allclose(np.cov(draws.T), cov, atol=0.05)


def test_sites_and_divergence_with_unobserved_points_equal_dense_algebra():
    mean, cov = joint()
    f = np.random.default_rng(0).normal(size=(5, 1, N))
    prior = multivariate_normal(PRIOR.mean[0], K).logpdf(f[:, 0])
    q = multivariate_normal(mean, cov).logpdf(f[:, 0])
    assert_allclose(prior + PART.sites.log_density(f) - q, PART.log_normaliser, atol=1e-7)
    shift = mean - PRIOR.mean[0]
    ratio = np.linalg.solve(K, cov)
    expected = 0.5 * (np.trace(ratio) - N + shift @ np.linalg.solve(K, shift) - np.linalg.slogdet(ratio)[1])
    assert PART.divergence == pytest.approx(expected, abs=1e-8)
    again = posterior_of(PRIOR, PART.sites)
    assert_allclose(again.weights, B * HAS, atol=1e-9)
    assert_allclose(again.mean[0], mean, atol=1e-9)


def test_cavities_of_observed_points_do_not_depend_on_unobserved_points():
    mean, cov = joint()
    found_mean, found = PART.cavities(*PART.marginals())
    assert_allclose(found[~HAS, 0, 0], cov.diagonal()[~HAS], atol=1e-10)
    assert_allclose(found_mean[~HAS, 0], mean[~HAS], atol=1e-10)
    alone = make_posterior(
        DensePrior(K[None][:, HAS][:, :, HAS], PRIOR.mean[:, HAS]), SiteForm.FACTORIAL, V[:, HAS], B[:, HAS]
    )
    right_mean, right = alone.cavities(*alone.marginals())
    assert_allclose(found[HAS], right, atol=1e-10)
    assert_allclose(found_mean[HAS], right_mean, atol=1e-10)
    of_k, of_mean = PART.derivatives()
    assert_allclose(of_k[0][np.ix_(HAS, HAS)], alone.derivatives()[0][0], atol=1e-10)
    assert not of_k[0][~HAS].any()
    assert not of_mean[0, ~HAS].any()
