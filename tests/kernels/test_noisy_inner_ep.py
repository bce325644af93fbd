"""Inner EP with noise of the latent values, against inner EP of the noisy latent values."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from pymc_gpep.kernels.moments.inner_ep import (
    inner_ep_update,
    noisy_inner_ep_update,
    noisy_site_parameters,
    site_parameters,
)
from tests.kernels.test_inner_ep import cavity, log_partition
from tests.reference.dense_nested_ep import inner_ep, site

classes = pytest.mark.parametrize("c", [2, 3, 5])


def converged(mean, cov, y, rest):
    """Converged inner sites of a cavity."""
    alpha, beta, scale = np.full((3, 1, mean.size - 1), np.nan)
    nothing = np.zeros((1, mean.size - 1))
    noisy_inner_ep_update(
        mean[:, None], cov[None], np.array([y]), rest[:, None], nothing, nothing, 500, 1e-14, alpha, beta, scale
    )
    return alpha, beta


@classes
@pytest.mark.parametrize("size", [0.01, 1.0, 100.0])
def test_noisy_sites_match_inner_ep_with_the_noise_in_the_cavity(c, size):
    mean, cov = cavity(c, 2.0)
    rest = size * np.random.default_rng(c).uniform(0.5, 2.0, size=c)
    for y in range(c):
        alpha, beta = converged(mean, cov, y, rest)
        assert ((alpha >= 0.0) & (alpha < 1.0)).all()
        pi, nu = np.empty((2, c, 1))
        constant = noisy_site_parameters(np.array([y]), rest[:, None], alpha, beta, pi, nu)
        expected = inner_ep(mean, cov + np.diag(rest), y)
        on_f, location = site(expected.alpha, expected.beta, y)
        springs = np.linalg.inv(np.eye(c) + on_f @ np.diag(rest))
        pi, nu = pi[:, 0], nu[:, 0]
        precision = np.diag(pi) - np.outer(pi, pi) / pi.sum()
        assert_allclose(precision, springs @ on_f, rtol=1e-7, atol=1e-11)
        assert_allclose(nu, springs @ location, rtol=1e-7, atol=1e-9)
        # The product of cavity, sites and terms has the normaliser of the tilted distribution.
        marginal = np.linalg.inv(np.linalg.inv(cov) + precision)
        marginal_mean = marginal @ (np.linalg.solve(cov, mean) + nu)
        terms, residual = noisy_inner_ep_update(
            marginal_mean[:, None], marginal[None], np.array([y]), rest[:, None], alpha, beta, 1, 0.0,
            *np.empty((3, 1, c - 1)),
        )  # fmt: skip
        assert residual < 1e-10
        found = log_partition(marginal_mean, marginal) - log_partition(mean, cov) + constant + terms
        assert found == pytest.approx(expected.log_normaliser, rel=1e-9, abs=1e-9)


@classes
def test_zero_noise_equals_inner_ep(c):
    rng = np.random.default_rng(c)
    n = 7
    mean, y = rng.normal(size=(c, n)), rng.integers(c, size=n)
    cov = np.array([cavity(c, 1.0, i)[1] for i in range(n)])
    alpha, beta = rng.uniform(0.0, 0.2, size=(n, c - 1)), rng.normal(size=(n, c - 1))
    plain, noisy = np.empty((2, 3, n, c - 1))
    of_plain = inner_ep_update(mean, cov, y, alpha, beta, 2, 1e-12, *plain)
    of_noisy = noisy_inner_ep_update(mean, cov, y, np.zeros((c, n)), alpha, beta, 2, 1e-12, *noisy)
    assert_array_equal(plain, noisy)
    assert of_plain == of_noisy
    sites, with_noise = np.empty((2, 2, c, n))
    constant = site_parameters(y, alpha, beta, *sites)
    expected = constant - 0.5 * np.log1p(alpha.sum(axis=1)).sum()
    assert noisy_site_parameters(y, np.zeros((c, n)), alpha, beta, *with_noise) == pytest.approx(expected, rel=1e-13)
    assert_array_equal(sites, with_noise)
