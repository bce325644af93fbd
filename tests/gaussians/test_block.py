"""Posterior of sites with full precision matrices, against the coupled posterior where both apply, and its draws."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.gaussians.posterior import make_posterior
from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.gaussians.sites import SiteForm

N, M, C = 6, 4, 3


def prior(per_class, seed=0):
    """Covariances and means of N + M points."""
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(C if per_class else 1, N + M, N + M))
    return a @ a.swapaxes(1, 2), rng.normal(size=(C, N + M))


def precisions(seed=1):
    """Positive semi-definite matrices whose rows sum to zero. One has rank one and one is zero."""
    a = np.random.default_rng(seed).normal(size=(N, C, C - 1))
    a[1, :, 0] = 0.0
    a[2] = 0.0
    a -= a.mean(1, keepdims=True)
    return a @ a.swapaxes(1, 2)


@pytest.fixture(params=[False, True], ids=["shared", "per_class"])
def setting(request):
    k, mean = prior(request.param)
    weights = np.random.default_rng(2).normal(size=(C, N))
    return k, mean, make_posterior(DensePrior(k[:, :N, :N], mean[:, :N]), SiteForm.BLOCK, precisions(), weights)


def test_draws_have_posterior_mean_and_covariance(setting):
    _, _, posterior = setting
    roots = posterior.prior.roots
    draws = posterior.draw_whitened(np.random.default_rng(0), 100_000)
    expected = posterior.joint_covariance(roots, np.eye(N)[None]).reshape(C * N, C * N)
    mean = (roots.swapaxes(1, 2) @ posterior.weights[..., None])[..., 0]
    assert draws.shape == (100_000, C, N)
    assert_allclose(draws.mean(0), mean, atol=0.02)
    assert_allclose(np.cov(draws.reshape(-1, C * N).T), expected, atol=0.03)


def test_coupled_posterior_and_block_posterior_are_equal_for_softmax_sites(setting):
    k, mean, posterior = setting
    pi = np.random.default_rng(3).dirichlet(np.ones(C), size=N).T
    w = np.einsum("ai,ab->iab", pi, np.eye(C)) - np.einsum("ai,bi->iab", pi, pi)
    block = make_posterior(posterior.prior, SiteForm.BLOCK, w, posterior.weights)
    coupled = make_posterior(posterior.prior, SiteForm.COUPLED, pi, posterior.weights)
    new = k[:, N:, :N], k[:, range(N, N + M), range(N, N + M)], mean[:, N:]
    for found, expected in zip(block.predict(*new), coupled.predict(*new), strict=True):
        assert_allclose(found, expected, atol=1e-10)


def test_indefinite_covariance_raises_linalg_error():
    posterior = make_posterior(
        DensePrior(-np.eye(N)[None], np.zeros((C, N))), SiteForm.BLOCK, 9 * precisions(), np.zeros((C, N))
    )
    with pytest.raises(np.linalg.LinAlgError, match="positive semi-definite"):
        posterior.joint_covariance(posterior.prior.k, posterior.prior.k)
