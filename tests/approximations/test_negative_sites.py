"""Sites of negative precision, from outliers under heavy tails, against dense algebra, differences and sums."""

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from pymc_gpep.approximations.ep import EP
from pymc_gpep.approximations.kl import KL
from pymc_gpep.gaussians.posterior import posterior_of
from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.gaussians.row_prior import RowPrior
from pymc_gpep.gaussians.sites import IndependentSites
from pymc_gpep.gaussians.whitening import whitening_of
from pymc_gpep.graphs.interpreted import evaluate
from pymc_gpep.log_posteriors.latent_functions import DenseFunctions
from pymc_gpep.reading import read_classifier
from pymc_gpep.solvers.problem import Problem
from pymc_gpep.solvers.site_ep import FunctionSitePosterior, site_sweep

X = np.array([-1.0, 0.0, 0.4, 1.0])
K = 1.5 * np.exp(-0.5 * (X[:, None] - X) ** 2) + 0.1 * np.eye(4)
ROOT = np.linalg.cholesky(K)
MEAN = np.array([[0.2, -0.1, 0.0, 0.3]])
Y = np.array([0.3, 6.0, -0.4, 0.5])
PRECISION, LOCATION = np.array([[2.0, -0.15, 1.0, 0.5]]), np.array([[0.4, -0.3, 0.2, 0.1]])


@pytest.fixture(scope="module")
def student_t():
    with pm.Model() as model:
        pm.StudentT("y", nu=3.0, mu=pm.MvNormal("f", np.zeros(4), K), sigma=0.5, observed=Y)
    found = read_classifier(model)
    (parameters,) = evaluate([found.parameters])
    return found.likelihood_model.given(parameters)


@pytest.mark.parametrize("approximation", [EP(tolerance=1e-9), KL(tolerance=1e-9)], ids=["ep", "kl"])
def test_row_form_matches_dense_form_and_gradient_matches_differences(student_t, approximation):
    dense = approximation.solve(K, MEAN, Y, likelihood=student_t)
    rows = approximation.solve(ROOT[None], MEAN, Y, likelihood=student_t, prior_type=RowPrior)
    assert dense.convergence.converged
    assert dense.posterior.precision.min() < -0.1
    assert rows.evidence == pytest.approx(dense.evidence, abs=1e-9)
    assert_allclose(rows.mean, dense.mean, atol=1e-7)
    assert_allclose(rows.cov, dense.cov, atol=1e-7)

    def run(array, form, gradient=False):
        start = dense.start.copy()
        return approximation.run(array, MEAN, Y, start, gradient, likelihood=student_t, form=form)

    direction = np.outer(np.cos(X), np.cos(X))
    up, down = (run((K + t * direction)[None], DensePrior).evidence for t in (1e-4, -1e-4))
    found = run(K[None], DensePrior, gradient=True).gradient
    assert (found[0] * direction).sum() == pytest.approx((up - down) / 2e-4, rel=1e-5)
    change = np.tril(np.outer(np.sin(X), np.cos(X)))
    up, down = (run((ROOT + t * change)[None], RowPrior).evidence for t in (1e-4, -1e-4))
    found = run(ROOT[None], RowPrior, gradient=True).gradient
    assert (found[0] * change).sum() == pytest.approx((up - down) / 2e-4, rel=1e-5)


@pytest.mark.parametrize("singular", [False, True], ids=["regular", "singular"])
def test_posterior_matches_dense_algebra(singular):
    k = np.outer(X + 2.0, X + 2.0) if singular else K
    posterior = posterior_of(DensePrior(k[None], MEAN), IndependentSites(PRECISION, LOCATION))
    cov = np.linalg.solve(np.eye(4) + k * PRECISION, k)
    mean = MEAN[0] + cov @ (LOCATION[0] - PRECISION[0] * MEAN[0])
    found, blocks = posterior.marginals()
    assert_allclose(found[0], mean, rtol=1e-9)
    assert_allclose(blocks[:, 0, 0], cov.diagonal(), rtol=1e-9)
    assert_allclose(posterior.joint_covariance(k[None], k[None])[0, :, 0], cov, atol=1e-12)
    at, spread = posterior.cavities(found, blocks)
    without = np.where(np.eye(4, dtype=bool), 0.0, PRECISION)
    for i in range(4):
        v = np.linalg.solve(np.eye(4) + k * without[i], k)
        assert spread[i, 0, 0] == pytest.approx(v[i, i], rel=1e-8)
        assert at[i, 0] == pytest.approx(MEAN[0, i] + v[i] @ ((i != np.arange(4)) * LOCATION[0] - without[i] * MEAN[0]))
    half = (mean - MEAN[0]) @ posterior.weights[0]
    log_det = np.linalg.slogdet(np.eye(4) + k * PRECISION)[1]
    assert posterior.log_determinant == pytest.approx(log_det, abs=1e-9)
    divergence = 0.5 * (half + log_det - PRECISION[0] @ cov.diagonal())
    assert posterior.divergence == pytest.approx(divergence, abs=1e-9)
    draws = posterior.draw(np.random.default_rng(0), 20_000)[:, 0]
    assert_allclose(np.cov(draws.T), cov, atol=0.04 * cov.max())


def test_guide_of_a_sampler_has_negative_precisions_set_to_zero():
    made, expected = (
        whitening_of(DensePrior(K[None], MEAN), IndependentSites(precision, LOCATION))
        for precision in (PRECISION, np.maximum(PRECISION, 0.0))
    )
    assert_allclose(made.centre, expected.centre)


def test_ep_from_zero_sites_finds_the_better_of_two_fixed_points():
    """The log density of angles is convex at the prior mean.

    From the mode of the posterior, EP would converge to another fixed point, whose log evidence is off by 18.
    """
    y, k = np.array([2.8, 2.6]), 2.0 * np.array([[1.0, 0.95], [0.95, 1.0]])
    with pm.Model() as model:
        pm.VonMises("y", mu=pm.MvNormal("f", np.zeros(2), k), kappa=4.0, observed=y)
    found = read_classifier(model)
    (parameters,) = evaluate([found.parameters])
    solution = EP().solve(k, np.zeros((1, 2)), y, likelihood=found.likelihood_model.given(parameters))
    assert solution.convergence.converged
    z = np.linspace(-8.0, 8.0, 401)
    f = np.linalg.cholesky(k) @ np.stack(np.meshgrid(z, z, indexing="ij")).reshape(2, -1)
    weights = np.outer(stats.norm.pdf(z), stats.norm.pdf(z)).ravel() * (z[1] - z[0]) ** 2
    exact = np.log(weights @ np.exp(stats.vonmises.logpdf(y[:, None] - f, 4.0).sum(axis=0)))
    assert solution.evidence == pytest.approx(exact, abs=0.3)


@pytest.mark.variation
def test_precisions_are_limited_to_nonnegative_values_if_ep_diverges():
    """The two responses differ by ten times the scale of the density, with nearly equal latent values."""
    y, k = np.array([1.0, 3.0]), 2.0 * np.array([[1.0, 0.95], [0.95, 1.0]])
    with pm.Model() as model:
        pm.StudentT("y", nu=4.0, mu=pm.MvNormal("f", np.zeros(2), k), sigma=0.2, observed=y)
    found = read_classifier(model)
    (parameters,) = evaluate([found.parameters])
    solution = EP().solve(k, np.zeros((1, 2)), y, likelihood=found.likelihood_model.given(parameters))
    assert solution.convergence.converged
    assert "at least 0" in solution.convergence.scheme
    assert solution.posterior.precision.min() == 0.0


@pytest.mark.parametrize("worst", [-5.0, -1e30])
def test_negative_precisions_are_halved_until_the_posterior_is_proper(worst):
    """A precision that fails for every fraction becomes 0."""
    posterior = FunctionSitePosterior(Problem(DensePrior(K[None], MEAN), MEAN, Y), -np.inf)
    sites = np.array([[2.0, worst, 1.0, 0.5], LOCATION[0]])[:, :, None]
    precision = sites[0, :, 0]
    assert site_sweep(posterior, lambda *_: (True, 0.0, 0.0))(sites, sites, sites[0])[0]

    def least(factor):
        return np.linalg.eigvals(np.eye(4) + K * np.where(precision < 0.0, factor * precision, precision)).real.min()

    assert least(1.0) > 0.0
    assert least(2.0) < 0.0 if worst == -5.0 else precision[1] == 0.0
    cov = np.linalg.solve(np.eye(4) + K * precision, K)
    assert_allclose(posterior.mean[0], MEAN[0] + cov @ (LOCATION[0] - precision * MEAN[0]), rtol=1e-9)


def test_refit_without_a_row_that_has_a_negative_site_matches_a_new_solve(student_t):
    method, rest = EP(tolerance=1e-9), np.array([0, 1, 2])
    solution = method.solve(K, MEAN, Y, likelihood=student_t)
    assert (solution.posterior.precision < 0).any()
    functions = DenseFunctions(method, solution, {}, lambda _: None, "f")
    reach = functions.among_fitted()
    assert functions.size == reach.own.shape[1] == len(Y)
    assert_allclose(np.where(np.isnan(reach.cross[0]), K, reach.cross[0]), K)
    again = method.solve(K[rest][:, rest], MEAN[:, rest], Y[rest], likelihood=student_t.at(rest))
    (_, mean, *_), converged = functions.refitted(3)
    assert converged
    assert_allclose(mean[0], MEAN[:, 3] + again.posterior.weights @ K[rest, 3], rtol=1e-9)
