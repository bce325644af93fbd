"""The affine map from z to f, against dense algebra."""

import numpy as np
import pytest

from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.gaussians.sites import CoupledSites, IndependentSites, Sites
from pymc_gpep.gaussians.whitening import PriorWhitening, Whitening, whitening_of
from tests.reference.data import random_problem
from tests.reference.dense_posterior import block_diagonal, dense_gaussian, site_blocks

N, C = 7, 3
FORMS = [CoupledSites, IndependentSites]


def make_prior(per_class: bool) -> DensePrior:
    problem = random_problem(3, N, C, per_class=per_class, with_mean=True)
    k = problem.K.reshape(-1, N, N) + 1e-6 * np.eye(N)
    return DensePrior(k, problem.m)


def make_sites(form: type[Sites], seed: int = 0, smallest: float = 0.0) -> Sites:
    rng = np.random.default_rng(seed)
    pi, nu = rng.gamma(1.0, size=(C, N)), rng.normal(size=(C, N))
    if smallest:
        pi[0, :3] = smallest
        pi[1] = 1.0
    return form(pi, nu - nu.mean(axis=0))


def whiten(prior: DensePrior, sites: Sites) -> Whitening:
    return whitening_of(prior, sites)


def dense(prior: DensePrior, sites: Sites) -> tuple[np.ndarray, np.ndarray, float, np.ndarray]:
    """Posterior mean and covariance, log Z̃ and Π, of size cn."""
    k = block_diagonal(prior.k, C)
    precision = dense_gaussian(prior.k, prior.mean, site_blocks(sites.form, sites.precision), sites.location).precision
    m, b = prior.mean.ravel(), sites.location.ravel()
    covariance = np.linalg.inv(np.linalg.inv(k) + precision)
    mean = covariance @ (np.linalg.solve(k, m) + b)
    log_z = -0.5 * np.linalg.slogdet(np.eye(C * N) + k @ precision)[1]
    log_z += 0.5 * mean @ np.linalg.solve(covariance, mean) - 0.5 * m @ np.linalg.solve(k, m)
    return mean, covariance, log_z, precision


def matrix(whitening) -> np.ndarray:
    """Linear part of the map, (cn, number of z)."""
    size = int(np.prod(whitening.shape))
    return np.stack(
        [(whitening.latent(e.reshape(whitening.shape)) - whitening.centre).ravel() for e in np.eye(size)], 1
    )


@pytest.fixture(params=["shared", "per class"])
def prior(request):
    return make_prior(request.param == "per class")


@pytest.fixture(params=FORMS)
def form(request):
    return request.param


@pytest.mark.parametrize("smallest", [0.0, 1e-10])
def test_map_with_sites_has_the_moments_of_the_dense_posterior(prior, form, smallest):
    sites = make_sites(form, smallest=smallest)
    whitening = whiten(prior, sites)
    mean, covariance, log_z, _ = dense(prior, sites)
    np.testing.assert_allclose(whitening.centre.ravel(), mean, atol=1e-9)
    np.testing.assert_allclose(whitening.log_evidence, log_z, atol=1e-9)
    linear = matrix(whitening)
    np.testing.assert_allclose(linear @ linear.T, covariance, atol=1e-9)


def test_map_without_sites_has_the_moments_of_the_prior(prior):
    linear = matrix(PriorWhitening(prior))
    k = block_diagonal(prior.k, C)
    np.testing.assert_allclose(linear @ linear.T, k, atol=1e-12)
    assert PriorWhitening(prior).log_sites(prior.mean)[0] == 0.0


def all_maps(prior: DensePrior):
    return [PriorWhitening(prior), *(whiten(prior, make_sites(form)) for form in FORMS)]


def test_slopes_in_normals_equal_products_with_the_transposed_map(prior):
    slope = np.random.default_rng(1).normal(size=(C, N))
    for whitening in all_maps(prior):
        expected = (matrix(whitening).T @ slope.ravel()).reshape(whitening.shape)
        np.testing.assert_allclose(whitening.slope(slope), expected, atol=1e-12)


def test_normals_drawn_given_latent_values_reproduce_the_latent_values(prior):
    rng = np.random.default_rng(2)
    for whitening in all_maps(prior):
        f = whitening.latent(rng.normal(size=whitening.shape))
        np.testing.assert_allclose(whitening.latent(whitening.whitened(f, rng)), f, atol=1e-10)


@pytest.mark.variation(but=["CoupledSites"])
def test_normals_given_latent_values_have_their_conditional_distribution(form):
    """For z ~ N(0, I) and f = a + J z, z given f is N(Jᵀ(JJᵀ)⁻¹(f − a), I − Jᵀ(JJᵀ)⁻¹J)."""
    prior = make_prior(False)
    whitening = whiten(prior, make_sites(form))
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


def test_log_density_of_sites_and_its_slope_match_dense_algebra(prior, form):
    sites = make_sites(form)
    nu = sites.location
    whitening = whiten(prior, sites)
    *_, precision = dense(prior, sites)
    f = np.random.default_rng(4).normal(size=(C, N))
    value, slope = whitening.log_sites(f)
    np.testing.assert_allclose(value, nu.ravel() @ f.ravel() - 0.5 * f.ravel() @ precision @ f.ravel(), rtol=1e-12)
    np.testing.assert_allclose(slope.ravel(), nu.ravel() - precision @ f.ravel(), atol=1e-12)


def test_indefinite_prior_is_refused(form):
    prior = make_prior(False)
    with pytest.raises(np.linalg.LinAlgError):
        whiten(DensePrior(prior.k - 3 * np.eye(N), prior.mean), make_sites(form))
