"""Properties of the posterior for every form of sites, against dense algebra."""

from typing import NamedTuple

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import multivariate_normal

from pymc_gpep.gaussians.posterior import Posterior, make_posterior, pair_of, posterior_of
from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.gaussians.sites import BlockSites, CoupledSites, IndependentSites, SignedSites, SiteForm, Sites
from pymc_gpep.gaussians.whitening import whitening_of, whitens
from pymc_gpep.solvers.site_algebra import NotPositiveDefiniteError
from tests.reference.data import random_problem, squared_exponential
from tests.reference.dense_posterior import DenseGaussian, block_diagonal, dense_gaussian, site_blocks

C, N, NEW = 3, 7, 4


def block_precisions(rng):
    """Positive semi-definite matrices whose rows sum to zero. One has rank one and one is zero."""
    a = rng.normal(size=(N, C, C - 1))
    a[1, :, 0] = 0.0
    a[2] = 0.0
    a -= a.mean(1, keepdims=True)
    return a @ a.swapaxes(1, 2)


def coupled_precisions(rng, smallest):
    pi = rng.gamma(1.0, size=(C, N))
    pi[0, :3] = smallest
    pi[1] = 1.0
    return pi


SITES = {
    "coupled": lambda rng: (CoupledSites, coupled_precisions(rng, 0.5)),
    "coupled, some tiny": lambda rng: (CoupledSites, coupled_precisions(rng, 1e-10)),
    "coupled, some zero": lambda rng: (CoupledSites, coupled_precisions(rng, 0.0)),
    "block": lambda rng: (BlockSites, block_precisions(rng)),
    "signed": lambda rng: (SignedSites, block_precisions(rng) - 0.05 * (np.eye(C) - 1.0 / C)),
    "independent, ones": lambda rng: (IndependentSites, np.ones((C, N))),
    "independent, tiny": lambda rng: (IndependentSites, 10.0 ** rng.uniform(-40.0, 1.0, size=(C, N))),
    "independent, some zero": lambda rng: (
        IndependentSites,
        rng.exponential(size=(C, N)) * (rng.random((C, N)) < 0.5),
    ),
}


class Setting(NamedTuple):
    """A posterior, its dense reference, and the prior at new points."""

    posterior: Posterior
    sites: Sites
    dense: DenseGaussian
    k_cross: np.ndarray
    k_new: np.ndarray
    mean_new: np.ndarray


def blocks(sites):
    return site_blocks(sites.form, sites.precision)


def make_setting(name, per_class, jitter=1e-8):
    problem = random_problem(11, N, C, variance=6.0, with_mean=True)
    rng = np.random.default_rng(12)
    X_new = rng.normal(size=(NEW, 2))
    scales = [0.6, 1.2, 2.0] if per_class else [1.2]
    k, k_cross, k_new = (
        np.stack([squared_exponential(a, b, variance=6.0, lengthscale=scale) for scale in scales])
        for a, b in ((problem.X, problem.X), (X_new, problem.X), (X_new, X_new))
    )
    k += jitter * np.eye(N)
    form, precision = SITES[name](rng)
    nu = rng.normal(size=(C, N))
    sites = form(precision, nu - nu.mean(0))
    dense = dense_gaussian(k, problem.m, blocks(sites), sites.location)
    posterior = make_posterior(DensePrior(k, problem.m), sites.form, precision, dense.weights.reshape(C, N))
    return Setting(posterior, sites, dense, k_cross, k_new, rng.normal(size=(C, NEW)))


@pytest.fixture(scope="module", params=[False, True], ids=["shared", "per class"])
def per_class(request):
    return request.param


@pytest.fixture(scope="module", params=SITES)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def setting(name, per_class):
    return make_setting(name, per_class)


def at_points(covariance, size=N):
    """The blocks (n, c, c) on the diagonal, one for each point."""
    return covariance.reshape(C, size, C, size)[:, range(size), :, range(size)]


def test_posterior_by_weights_equals_posterior_by_site_locations(setting):
    posterior, sites = setting.posterior, setting.sites
    assert posterior.sites.form == sites.form
    assert_allclose(posterior.sites.location, sites.location, atol=1e-10)
    again = posterior_of(posterior.prior, sites)
    assert again.sites is sites
    assert_allclose(again.weights, posterior.weights, atol=1e-10)
    assert_allclose(again.mean, posterior.mean, atol=1e-10)


def test_site_log_density_and_slope_match_dense_algebra(setting):
    sites = setting.sites
    f = np.random.default_rng(4).normal(size=(5, C, N))
    flat = f.reshape(5, -1)
    precision = setting.dense.precision
    expected = flat @ sites.location.ravel() - 0.5 * np.einsum("si,ij,sj->s", flat, precision, flat)
    assert_allclose(sites.log_density(f), expected, rtol=1e-12)
    assert_allclose(setting.posterior.sites.log_density(f), expected, rtol=1e-9, atol=1e-9)
    assert_allclose(sites.log_density(f[0]), expected[0], rtol=1e-12)
    slope = sites.location - (precision @ flat.T).T.reshape(f.shape)
    assert_allclose(sites.slope(f), slope, atol=1e-12)
    assert_allclose(sites.slope(f[0]), slope[0], atol=1e-12)


def test_scaled_sites_have_density_one_at_the_mean(setting):
    posterior = setting.posterior
    x = np.random.default_rng(5).normal(size=(5, C, N))
    at_mean = posterior.sites.log_density(posterior.mean)
    relative = posterior.sites.log_density(posterior.mean + x) - at_mean
    assert_allclose(posterior.relative_site_log_density(x), relative, atol=1e-10)
    assert_allclose(posterior.relative_log_normaliser, posterior.log_normaliser - at_mean, atol=1e-10)


def test_log_normaliser_equals_dense_algebra(setting):
    assert_allclose(setting.posterior.log_normaliser, setting.dense.log_normaliser, rtol=1e-10, atol=1e-10)


def test_prior_times_sites_is_the_posterior_times_the_normaliser(name, per_class):
    posterior = make_setting(name, per_class, jitter=0.1).posterior
    prior = multivariate_normal(posterior.prior.mean.ravel(), block_diagonal(posterior.prior.k, C))
    covariance = posterior.joint_covariance(posterior.prior.k, posterior.prior.k).reshape(C * N, C * N)
    q = multivariate_normal(posterior.mean.ravel(), covariance)
    f = posterior.draw(np.random.default_rng(6), 5)
    flat = f.reshape(5, -1)
    normaliser = prior.logpdf(flat) + posterior.sites.log_density(f) - q.logpdf(flat)
    assert_allclose(normaliser, posterior.log_normaliser, atol=1e-8)


def test_derivatives_are_slopes_of_the_log_normaliser(setting):
    posterior, sites = setting.posterior, setting.sites
    k, mean = posterior.prior.k, posterior.prior.mean
    rng = np.random.default_rng(7)
    of_k, of_mean = rng.normal(size=k.shape), rng.normal(size=mean.shape)
    of_k += of_k.swapaxes(1, 2)

    def log_normaliser(step):
        there = k + step * of_k, mean + step * of_mean
        return dense_gaussian(*there, blocks(sites), sites.location).log_normaliser

    step = 1e-5
    slope = (log_normaliser(step) - log_normaliser(-step)) / (2 * step)
    gradient, gradient_mean = posterior.derivatives()
    assert gradient.shape == k.shape
    assert (gradient == gradient.swapaxes(1, 2)).all()
    assert_allclose((gradient * of_k).sum() + (gradient_mean * of_mean).sum(), slope, rtol=1e-6)


def test_marginals_equal_dense_algebra(setting):
    mean, cov = setting.posterior.marginals()
    assert_allclose(mean.ravel(), setting.dense.mean, atol=1e-10)
    assert_allclose(cov, at_points(setting.dense.covariance), atol=1e-10)


def test_divergence_from_the_prior_equals_dense_algebra(name, per_class):
    setting = make_setting(name, per_class, jitter=0.1)
    dense = setting.dense
    shift = dense.mean - setting.posterior.prior.mean.ravel()
    ratio = np.linalg.solve(dense.prior, dense.covariance)
    expected = 0.5 * (np.trace(ratio) - C * N + dense.weights @ shift - np.linalg.slogdet(ratio)[1])
    assert setting.posterior.divergence == pytest.approx(expected, abs=1e-9)


def test_prediction_equals_dense_algebra(setting):
    variance = setting.k_new.diagonal(axis1=1, axis2=2)
    mean, cov = setting.posterior.predict(setting.k_cross, variance, setting.mean_new)
    cross, dense = block_diagonal(setting.k_cross, C), setting.dense
    assert_allclose(mean.ravel(), setting.mean_new.ravel() + cross @ dense.weights, rtol=1e-11, atol=1e-11)
    expected = block_diagonal(setting.k_new, C) - cross @ dense.m_matrix @ cross.T
    assert_allclose(cov, at_points(expected, NEW), atol=1e-10)


def test_prediction_of_a_point_does_not_depend_on_other_points(setting):
    variance = setting.k_new.diagonal(axis1=1, axis2=2)
    mean, cov = setting.posterior.predict(setting.k_cross, variance, setting.mean_new)
    for i in range(NEW):
        own = np.s_[:, i : i + 1]
        alone = setting.posterior.predict(setting.k_cross[own], variance[own], setting.mean_new[own])
        assert_allclose(alone[0][:, 0], mean[:, i], rtol=1e-12)
        assert_allclose(alone[1][0], cov[i], atol=1e-12)


def test_prediction_at_the_training_inputs_is_the_posterior(setting):
    posterior = setting.posterior
    k = posterior.prior.k
    mean, cov = posterior.predict(k, k.diagonal(axis1=1, axis2=2), posterior.prior.mean)
    assert_allclose(mean.ravel(), setting.dense.mean, atol=1e-10)
    assert_allclose(cov, at_points(setting.dense.covariance), atol=1e-10)


def test_prediction_far_away_is_the_prior(setting):
    variance = np.full((len(setting.posterior.prior.k), NEW), 6.0)
    mean, cov = setting.posterior.predict(np.zeros_like(setting.k_cross), variance, setting.mean_new)
    assert (mean == setting.mean_new).all()
    assert (cov == 6.0 * np.eye(C)).all()


def test_cavity_is_the_posterior_without_the_site(name, per_class):
    setting = make_setting(name, per_class, jitter=0.1)
    posterior, sites = setting.posterior, setting.sites
    mean, cov = posterior.cavities(*posterior.marginals())
    for i in range(N):
        others = np.arange(N) != i
        expected = dense_gaussian(
            posterior.prior.k, posterior.prior.mean, blocks(sites) * others[:, None, None], sites.location * others
        )
        assert_allclose(mean[i], expected.mean.reshape(C, N)[:, i], atol=1e-9)
        assert_allclose(cov[i], at_points(expected.covariance)[i], atol=1e-9)


def test_covariance_of_latent_values_equals_dense_algebra(setting):
    posterior, dense = setting.posterior, setting.dense
    k = posterior.prior.k
    assert_allclose(posterior.joint_covariance(k, k).reshape(C * N, C * N), dense.covariance, atol=1e-10)
    variance = posterior.marginal_variance(k, k)
    assert variance.shape == (C, N)
    assert_allclose(variance.ravel(), dense.covariance.diagonal(), atol=1e-10)


def whitened_covariance(setting):
    """Covariance I − Lᵀ M L, (cn, cn), of z = L⁻¹ (f − m)."""
    roots = block_diagonal(setting.posterior.prior.roots, C)
    return np.eye(C * N) - roots.T @ setting.dense.m_matrix @ roots


def test_covariance_of_whitened_values_equals_dense_algebra(setting):
    posterior = setting.posterior
    identity, roots = np.eye(N)[None], posterior.prior.roots
    expected = whitened_covariance(setting)
    cov = posterior.joint_covariance(roots, identity)
    assert_allclose(cov.reshape(C * N, C * N), expected, atol=1e-11)
    assert_allclose(posterior.marginal_variance(roots, identity).ravel(), expected.diagonal(), atol=1e-11)


class UnitVectors:
    """Generator whose calls return the columns of the identity, row by row, and then zeros once."""

    def __init__(self, size):
        self.draws = size + 1
        self.rows = np.column_stack([np.eye(size), np.zeros(size)])

    def standard_normal(self, size):
        assert size[-1] == self.draws
        count = int(np.prod(size[:-1]))
        part, self.rows = np.split(self.rows, [count])
        return part.reshape(size).copy()


def test_draws_are_a_linear_map_of_noise_with_the_posterior_covariance(setting):
    """Draws from unit vectors give the columns of the map A. A Aᵀ is the covariance, and the offset is the mean."""
    posterior = setting.posterior
    beside = {SiteForm.BLOCK: N * (C - 1), SiteForm.SIGNED: 0}.get(setting.sites.form, C * N)
    noise = UnitVectors(C * N + beside)
    z = posterior.draw_whitened(noise, noise.draws)
    assert len(noise.rows) == 0
    columns = z.reshape(-1, C * N)
    offset, columns = columns[-1], columns[:-1] - columns[-1]
    assert_allclose(columns.T @ columns, whitened_covariance(setting), atol=1e-10)
    expected = block_diagonal(posterior.prior.roots, C).T @ setting.dense.weights
    assert_allclose(offset, expected, atol=1e-10)
    again = posterior.draw(UnitVectors(len(columns)), noise.draws)
    if setting.sites.form is not SiteForm.SIGNED:  # signed sites draw by a root of the covariance
        assert_allclose(again, posterior.prior.latent(z), atol=1e-12)
    assert_allclose(again[-1].ravel(), setting.dense.mean, atol=1e-10)


@pytest.mark.parametrize("form", [SiteForm.COUPLED, SiteForm.INDEPENDENT])
def test_rounded_prior_variances_do_not_cause_negative_variances(form):
    """For a nearly constant function, prior variances that are 1e-6 too small exceed the posterior variances."""
    k = np.full((1, 5, 5), 1e6)
    posterior = make_posterior(DensePrior(k, np.zeros((2, 5))), form, np.ones((2, 5)), np.zeros((2, 5)))
    _, cov = posterior.predict(k, (1 - 1e-6) * k[:, 0], np.zeros((2, 5)))
    assert (np.linalg.eigvalsh(cov) > -1e-8).all()


@pytest.mark.parametrize("form", list(SiteForm))
def test_indefinite_covariance_is_refused(form):
    k = np.array([[[1.0, 5.0], [5.0, 1.0]]])
    prior = DensePrior(k, np.zeros((2, 2)))
    precision = (
        np.ones((2, 2)) if form not in (SiteForm.BLOCK, SiteForm.SIGNED) else np.tile(np.eye(2) - 0.5, (2, 1, 1))
    )
    posterior = make_posterior(prior, form, precision, np.zeros((2, 2)))
    for use in (lambda: posterior.predict(k, k[:, 0], np.zeros((2, 2))), lambda: posterior.joint_covariance(k, k)):
        with pytest.raises(np.linalg.LinAlgError, match="not positive semi-definite"):
            use()
    with pytest.raises(NotPositiveDefiniteError, match="not positive semi-definite"):
        posterior_of(prior, posterior.sites)


def test_error_for_an_unsupported_pair_of_forms_names_the_pair():
    with pytest.raises(ValueError, match=r"no entry for DensePrior with round sites. .*DensePrior with block sites"):
        pair_of(DensePrior, "round")


def test_sites_without_a_map_from_standard_normals_raise_type_error():
    setting = make_setting("block", per_class=False)
    assert not whitens(setting.sites.form)
    with pytest.raises(TypeError, match=r"not implemented for block sites"):
        whitening_of(setting.posterior.prior, setting.sites)
