"""Leave-one-group-out from one fit, against posteriors without the sites of a group, and against refits."""

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose
from scipy.special import gammaln, log_ndtr, logsumexp

from pymc_gpep.approximations import EP, NestedEP
from pymc_gpep.approximations.laplace import ScalarLaplace
from pymc_gpep.checks.left_out import left_out_group
from pymc_gpep.gaussians.row_prior import RowPrior
from pymc_gpep.likelihoods.all_likelihoods import LIKELIHOODS
from pymc_gpep.log_posteriors.latent_functions import DenseFunctions
from tests.reference.data import random_problem
from tests.reference.exact import log_likelihood
from tests.sum_models import MODELS

PROBIT, POISSON = (next(each for each in LIKELIHOODS if each.name == name) for name in ("probit", "poisson"))
N = 12
PAIR = np.array([3, 7])


def one_function():
    """Coefficients J (n, q) of few normals, a mean, and labels."""
    rng = np.random.default_rng(2)
    return 1.2 * rng.normal(size=(N, 5)), 0.3 * rng.normal(size=(1, N)), rng.integers(0, 2, N)


def without_sites(k, mean, sites, rows):
    """Mean and covariance of one function at some rows, from the posterior with the sites of the other rows."""
    others = np.setdiff1d(np.arange(k.shape[0]), rows)
    pi, nu = sites.precision[0, others], sites.location[0, others]
    noisy = np.linalg.inv(k[np.ix_(others, others)] + np.diag(1.0 / pi))
    cross = k[np.ix_(rows, others)]
    centre = mean[0, rows] + cross @ noisy @ (nu / pi - mean[0, others])
    return centre, k[np.ix_(rows, rows)] - cross @ noisy @ cross.T


def by_quadrature(centre, cov, y, log_p=lambda f, y: log_ndtr((2 * y - 1) * f)):
    """log ∫ ∏ p(y | f) N(f | centre, cov) df of two latent values."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    grid = np.stack(np.meshgrid(nodes, nodes), axis=-1).reshape(-1, 2)
    f = centre + grid @ np.linalg.cholesky(cov).T
    return logsumexp(np.log(np.outer(weights, weights).ravel() / (2 * np.pi)) + log_p(f, y).sum(axis=1))


@pytest.mark.parametrize("method", [EP(), ScalarLaplace()], ids=lambda method: method.name)
def test_left_out_group_of_two_rows_matches_quadrature(method):
    j, mean, y = one_function()
    k = j @ j.T
    solution = method.solve(k, mean, y, likelihood=PROBIT)
    functions = DenseFunctions(method, solution, {}, lambda _: None, "f")
    by_rows = method.solve(j[None], mean, y, likelihood=PROBIT, prior_type=RowPrior)
    rows = DenseFunctions(method, by_rows, {}, lambda _: None, "f")
    expected = by_quadrature(*without_sites(k, mean, solution.posterior.sites, PAIR), y[PAIR])
    whole = solution.posterior.joint_covariance(k[None][:, :, PAIR], k[None][:, PAIR][:, :, PAIR])[0, :, 0]
    for each in (functions, rows):
        found = left_out_group(each.group(PAIR), 4000, 5e-5)
        assert 0 < found.error < 0.01
        assert found.without == pytest.approx(expected, abs=4 * found.error)
        assert found.within == pytest.approx(by_quadrature(solution.mean[0, PAIR], whole, y[PAIR]), abs=0.02)


def test_weights_of_left_out_groups_have_no_heavy_tail():
    """For counts, weights of draws from the fit itself have infinite variance, and a Pareto k far above 1."""
    rng = np.random.default_rng(5)
    j, mean = np.repeat(np.eye(4), 3, axis=0), np.full((1, N), 0.2)
    y = rng.poisson(np.exp(0.2 + j @ rng.normal(size=4)))
    counts = POISSON.given(np.zeros((1, N)))
    solution = EP().solve(j @ j.T + 1e-9 * np.eye(N), mean, y, likelihood=counts)
    functions, rows = DenseFunctions(EP(), solution, {}, lambda _: None, "f"), np.array([0, 1])
    centre, cov = without_sites(j @ j.T, mean, solution.posterior.sites, rows)
    cov = cov + 1e-10 * np.eye(2)
    expected = by_quadrature(centre, cov, y[rows], lambda f, y: y * f - np.exp(f) - gammaln(y + 1))
    found = left_out_group(functions.group(rows), 4000, 5e-5)
    assert found.without == pytest.approx(expected, abs=4 * found.error)
    assert found.error < 0.02
    assert found.pareto_k < 0.7
    group = functions.group(rows)
    elsewhere = left_out_group(group._replace(mean=group.mean + 6.0), 4000, 5e-5)
    assert elsewhere.pareto_k > 0.7


@pytest.mark.variation
def test_left_out_coupled_sites_match_draws():
    """The weights remove sites from the posterior. The reference posterior is computed without these sites."""
    c, problem = 3, random_problem(5, N, 3, variance=3.0)
    method = NestedEP()
    solution = method.solve(problem.K, problem.m, problem.y)
    functions = DenseFunctions(method, solution, {}, lambda _: None, "f")
    k = np.kron(np.eye(c), problem.K)
    columns = np.eye(c * N).reshape(c * N, c, N)
    precision = solution.posterior.sites.product(columns).reshape(c * N, c * N)
    keep = np.ones((c, N), bool)
    keep[:, PAIR] = False
    precision *= np.outer(keep.ravel(), keep.ravel())
    cov = k - k @ precision @ np.linalg.inv(np.eye(c * N) + k @ precision) @ k
    location = np.where(keep, solution.posterior.sites.location, 0.0).ravel()
    centre = problem.m.ravel() + cov @ (location - precision @ problem.m.ravel())
    some = np.ravel_multi_index((np.repeat(range(c), 2), np.tile(PAIR, c)), (c, N))
    root = np.linalg.cholesky(cov[np.ix_(some, some)] + 1e-12 * np.eye(2 * c))
    f = centre[some] + np.random.default_rng(1).standard_normal((60_000, 2 * c)) @ root.T
    p = np.exp(log_likelihood(f.reshape(-1, c, 2).swapaxes(1, 2), problem.y[PAIR]).sum(axis=1))
    found = left_out_group(functions.group(PAIR), 4000, 5e-5)
    error = np.hypot(found.error, p.std() / p.mean() / np.sqrt(len(p)))
    assert error < 0.02
    assert found.without == pytest.approx(np.log(p.mean()), abs=4 * error)


@pytest.fixture(scope="module")
def fit():
    with MODELS["varying_intercepts"]():
        return pm.fit(method="ep", progressbar=False)


def test_groups_given_by_data_and_by_arrays_have_equal_results(fit):
    by_name = fit.loo(groups="where")
    where = fit.model["where"].get_value()
    again = fit.loo(groups=np.array([f"group {i}" for i in where]))
    assert by_name.elpd_i.dims == ("where",)
    assert by_name.elpd_i.sizes == {"where": 8}
    assert list(again.elpd_i["group"].values[:2]) == ["group 0", "group 1"]
    assert_allclose(by_name.elpd_i, again.elpd_i)
    assert by_name.n_data_points == 8
    assert by_name.elpd == pytest.approx(float(by_name.elpd_i.sum()))
    assert (by_name.p_loo_i > 0).all()
    assert (by_name.error_i < 0.05).all()
    assert "outside each of 8 groups" in str(by_name)


def test_group_densities_match_fits_without_the_group(fit):
    """The reference uses draws from the posterior of the remaining rows, at the same hyperparameters."""
    found = fit.loo(groups="where").elpd_i.values
    prior, y = fit.solution.posterior.prior, fit.solution.labels
    where = fit.model["where"].get_value()
    likelihood, refitted = fit.solution.likelihood, []
    for group in range(8):
        own, others = np.flatnonzero(where == group), np.flatnonzero(where != group)
        again = EP().solve(prior.k[:, others][:, :, others], prior.mean[:, others], y[others], likelihood=likelihood)
        cross = prior.k[0][np.ix_(own, others)]
        pi, b = again.posterior.sites.precision[0], again.posterior.weights[0]
        noisy = np.linalg.inv(prior.k[0][np.ix_(others, others)] + np.diag(1.0 / pi))
        cov = prior.k[0][np.ix_(own, own)] - cross @ noisy @ cross.T
        root = np.linalg.cholesky(cov + 1e-10 * np.eye(own.size))
        f = prior.mean[0, own] + cross @ b + np.random.default_rng(1).standard_normal((20_000, own.size)) @ root.T
        log_p = -np.logaddexp(0.0, -(2 * y[own] - 1) * f).sum(axis=1)
        refitted.append(logsumexp(log_p) - np.log(len(f)))
    assert_allclose(found, refitted, atol=0.1)


def test_group_of_one_row_equals_leave_one_out_of_the_row(fit):
    found, rows = fit.loo(groups=np.arange(30)), fit.loo()
    assert_allclose(found.elpd_i, rows.elpd_i, atol=1e-6)
    assert_allclose(found.p_loo_i, rows.p_loo_i, atol=1e-6)


def test_weights_of_hyperparameters_exclude_the_group(fit):
    """Node weights exclude the labels of the group. A fit at the maximum keeps their influence on hyperparameters."""
    with MODELS["varying_intercepts"]():
        integrated = pm.fit(method="ep", hyper="ccd", progressbar=False)
    found = integrated.loo(groups="where")
    assert_allclose(found.elpd_i, fit.loo(groups="where").elpd_i, atol=0.5)
    assert (found.elpd_i != fit.loo(groups="where").elpd_i).all()


@pytest.mark.parametrize(
    ("groups", "options", "message"),
    [
        (np.zeros(30), {}, "one label for all rows"),
        (np.arange(29), {}, r"a label for each of 30 rows, but has the shape \(29,\)"),
        (np.where(np.arange(30) == 4, np.nan, np.arange(30)), {}, "no label for 1 rows. The first is row 4"),
        ("place", {}, "groups is 'place', but the data of the model are 'where', 'floor'"),
        ("where", {"refit_above": 0.3}, "single rows, not to groups"),
        ("where", {"draws": 10}, "draws must be at least 100"),
    ],
)
def test_invalid_groups_raise_value_error(fit, groups, options, message):
    with pytest.raises(ValueError, match=message):
        fit.loo(groups=groups, **options)


def test_leave_one_group_out_with_several_functions_matches_refits(shared):
    groups = np.arange(30) // 3
    found = shared.fit.loo(groups=groups)
    rows = shared.fit.loo().elpd_i.values.reshape(-1, 3).sum(axis=1)
    assert found.elpd_i.shape == (10,)
    # Labels of neighbours are more informative than distant labels.
    assert found.elpd < rows.sum() + 0.5
    assert np.isfinite(found.error_i).all()
