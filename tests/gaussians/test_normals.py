"""Posterior of standard normal variables that determine latent functions, by its precision, against dense algebra."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.gaussians.posterior import posterior_of
from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.gaussians.sites import IndependentSites
from pymc_gpep.gaussians.whitening import posterior_of_normals
from tests.gaussians.test_posteriors import SITES, C, N
from tests.reference.dense_posterior import block_diagonal, site_blocks


@pytest.mark.parametrize("q", [4, 10])
@pytest.mark.parametrize("name", SITES)
def test_moments_match_dense_algebra(name, q):
    rng = np.random.default_rng(2)
    form, precision = SITES[name](rng)
    nu = rng.normal(size=(C, N))
    sites = form(precision, nu - nu.mean(0))
    j, mean = rng.normal(size=(C, N, q)), rng.normal(size=(C, N))
    posterior = posterior_of(DensePrior(j @ j.swapaxes(1, 2), mean), sites).rooted(j)
    found = posterior_of_normals(posterior)

    whole, stacked = np.zeros((C, N, C, N)), block_diagonal(j, C)
    whole[:, range(N), :, range(N)] = site_blocks(sites.form, precision)
    whole = whole.reshape(C * N, C * N)
    cov = np.linalg.inv(np.eye(C * q) + stacked.T @ whole @ stacked)
    centre = cov @ stacked.T @ (sites.location.ravel() - whole @ mean.ravel())
    assert_allclose(found.mean.ravel(), centre, atol=1e-8)
    assert_allclose(found.root.T @ found.root, cov, atol=1e-10)


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_posterior_under_wide_priors_keeps_digits(scale):
    """In units of the coefficients, the prior precision is negligible."""
    rng = np.random.default_rng(3)
    x, pi = np.column_stack([np.ones(30), rng.normal(size=30)]), rng.uniform(0.1, 0.3, size=(1, 30))
    j = scale * x[None]
    sites = IndependentSites(pi, rng.normal(size=(1, 30)))
    posterior = posterior_of(DensePrior(j @ j.swapaxes(1, 2), np.zeros((1, 30))), sites).rooted(j)
    found = posterior_of_normals(posterior)
    expected = np.linalg.inv(np.eye(2) / scale**2 + x.T @ (pi[0][:, None] * x))
    assert_allclose(scale**2 * found.root.T @ found.root, expected, rtol=1e-7)
