"""Leave-one-out cross-validation from one fit, against refits without each point and exact sampling."""

import warnings

import arviz as az
import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose
from scipy.special import log_ndtr, logsumexp

import pymc_gpep as gpep
from pymc_gpep.approximations import Laplace, LaplaceProbit, NestedEP, QEPSoftmax, VariationalBayes
from pymc_gpep.gaussians.posterior import make_posterior
from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.likelihoods import likelihood as log_predictive
from pymc_gpep.likelihoods.all_likelihoods import LIKELIHOODS
from pymc_gpep.likelihoods.likelihood import log_predictive as log_predictive_density
from pymc_gpep.likelihoods.multinomial_probit import MultinomialProbitLikelihood
from pymc_gpep.likelihoods.softmax import SoftmaxLikelihood
from pymc_gpep.log_posteriors.latent_functions import leave_one_out_moments
from pymc_gpep.rivals.class_independent_ep import IEP, QIEP, QIEPSoftmax
from pymc_gpep.rivals.qep import QEP
from tests import models
from tests.approximations.every import EVERY
from tests.reference.data import Problem, random_problem
from tests.reference.dense_posterior import dense_posterior
from tests.reference.leave_one_out import integrated_log_likelihood, without_each_point
from tests.reference.stored import stored

C, N = 3, 6


def solve(approximation, problem):
    solution = approximation.solve(problem.K, problem.m, problem.y)
    assert solution.convergence.converged
    return solution


def cavity_loo(approximation, problem):
    """log p(y_i | y_-i) from the cavities, and the excess of the log density under the whole posterior."""
    solution = solve(approximation, problem)
    likelihood = solution.likelihood
    elpd = log_predictive_density(likelihood, *leave_one_out_moments(approximation, solution), problem.y)
    return elpd, log_predictive_density(likelihood, solution.mean.T, solution.cov, problem.y) - elpd


@pytest.mark.variation(but=["10000.0"])
@pytest.mark.parametrize("variance", [1e-6, 1.0, 1e4, 1e8])
def test_cavity_of_coupled_sites_keeps_its_digits(variance):
    """The reference has 60 digits. Errors are in differences between classes, on which the likelihood depends."""
    problem = random_problem(5, N, C, variance=variance, with_mean=False)
    k = problem.K[None] + 1e-3 * variance * np.eye(N)
    rng = np.random.default_rng(6)
    pi = 10.0 ** rng.uniform(-9, 0, size=(C, N))
    nu = rng.normal(size=(C, N)) * np.sqrt(pi)
    nu -= pi * nu.sum(0) / pi.sum(0)
    whole = dense_posterior(k, pi, nu)
    posterior = make_posterior(DensePrior(k, np.zeros((C, N))), SiteForm.COUPLED, pi, whole.weights.astype(float))
    cov = np.einsum("aibi->iab", whole.covariance).astype(float)
    mean, cov = posterior.cavities(whole.mean.astype(float), cov)
    to_differences = np.eye(C)[1:] - np.eye(C)[0]
    for i in range(N):
        others = np.where(np.arange(N) == i, 1e-45, 1.0)  # a zero site would lead to 0 / 0
        without = dense_posterior(k, pi * others, nu * others)
        expected = to_differences @ without.covariance[:, i, :, i].astype(float) @ to_differences.T
        unit = to_differences / np.sqrt(expected.diagonal())[:, None]
        error = max(1e-11, 1e-14 * variance)
        assert_allclose(unit @ (cov[i] - without.covariance[:, i, :, i].astype(float)) @ unit.T, 0, atol=error)
        assert_allclose(unit @ (mean[i] - without.mean[:, i].astype(float)), 0, atol=error)


def psis_loo(log_likelihood):
    first = next(iter(log_likelihood.values()))
    data = az.from_dict({"posterior": {"x": first[..., 0]}, "log_likelihood": log_likelihood})
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Estimated shape parameter of Pareto distribution")
        return az.loo(data, pointwise=True)


PROBLEMS = {
    "two classes": random_problem(5, 25, 2, variance=4.0),
    "with a mean": random_problem(5, 25, 3, variance=4.0, with_mean=True),
    "per class": random_problem(5, 25, 3, variance=20.0, per_class=True, with_mean=True),
}
problems = pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)


CLOSE = [
    (NestedEP(), 0.20, 0.05),
    (QEP(), 0.20, 0.05),
    (QEP(full=True), 0.20, 0.05),
    (IEP(), 0.20, 0.05),
    (QIEP(), 0.20, 0.05),
    (VariationalBayes(), 0.30, 0.06),
    (LaplaceProbit(), 0.12, 0.04),
    (Laplace(), 0.08, 0.03),
    (QEPSoftmax(), 0.20, 0.05),
    (QIEPSoftmax(), 0.20, 0.05),
]
"""Approximations, with their largest and root mean squared errors."""


@pytest.mark.parametrize(
    ("approximation", "most", "typical", "problem"),
    [(*each, list(PROBLEMS.values())[i % 3]) for i, each in enumerate(CLOSE)],
    ids=[f"{each.name}-{each.first_likelihood().name}-{i}" for i, (each, *_) in enumerate(CLOSE)],
)
def test_leave_one_out_is_close_to_refits(approximation, most, typical, problem):
    elpd, excess = cavity_loo(approximation, problem)
    error = np.abs(elpd - without_each_point(approximation, problem))
    assert error.max() < most
    assert np.sqrt((error**2).mean()) < typical
    assert error[excess < 0.3].max() < 0.14
    assert error[excess < 0.05].max() < 0.012


@stored
def by_exact_sampling(*problem):
    return psis_loo({"y": integrated_log_likelihood(Problem(*problem))}).elpd_i.values


@problems
def test_nested_ep_agrees_with_exact_sampling(problem):
    exact = by_exact_sampling(*problem)
    elpd, excess = cavity_loo(NestedEP(), problem)
    error = np.abs(elpd - exact)
    assert np.sqrt((error**2).mean()) < 0.07
    assert error[excess < 0.3].max() < 0.12
    refitted = np.abs(without_each_point(NestedEP(), problem) - exact)
    assert np.sqrt((refitted**2).mean()) < 0.04


def force(problem, approximation, solution):
    """Derivative of posterior means (c, n) in a force on one latent value, by differences and by `response`.

    A force h adds K h to the prior mean.
    """
    i, step = 4, 1e-4
    k = solution.posterior.prior.k
    shift = np.zeros_like(problem.m)
    shift[1] = step * k[1 % len(k), i]
    up, down = (approximation.solve(problem.K, problem.m + sign * shift, problem.y).mean for sign in (1, -1))
    response = approximation.response(solution)
    return (up - down) / (2 * step), *(p.joint_covariance(k, k)[:, :, 1, i] for p in (response, solution.posterior))


@problems
@pytest.mark.parametrize("approximation", [VariationalBayes(tolerance=1e-10), LaplaceProbit(), Laplace()])
def test_linear_response_of_a_mode_matches_differences(approximation, problem):
    moved, response, _ = force(problem, approximation, solve(approximation, problem))
    assert_allclose(response, moved, atol=1e-5)


@problems
@pytest.mark.parametrize("case", [case for case in EVERY if case.likelihood.function_axis], ids=str)
def test_linear_response_of_means_matches_differences(case, problem):
    """For EP, the response ignores changes of the tilted covariances, which are of higher order."""
    tight = case(tolerance=1e-9)
    moved, response, _ = force(problem, tight, solve(tight, problem))
    assert np.linalg.norm(response - moved) < 0.1 * np.linalg.norm(moved)


@problems
@pytest.mark.parametrize("approximation", [IEP(tolerance=1e-9), QIEP(tolerance=1e-9)])
def test_covariances_of_independent_sites_differ_from_the_linear_response(approximation, problem):
    moved, _, own = force(problem, approximation, solve(approximation, problem))
    assert np.linalg.norm(own - moved) > 0.3 * np.linalg.norm(moved)


@pytest.mark.parametrize(
    "approximation", [NestedEP(), QEP(), IEP(), QIEP(), VariationalBayes(), LaplaceProbit(), Laplace()]
)
@pytest.mark.parametrize("c", [2, 3, 5])
def test_prior_without_variance_keeps_leave_one_out_probabilities(approximation, c):
    problem = random_problem(2, 8, c, variance=1e-8)
    elpd, excess = cavity_loo(approximation, problem._replace(K=problem.K - 1e-8 * np.eye(8) * (1 - 1e-4)))
    assert_allclose(elpd, -np.log(c), atol=1e-4)
    assert_allclose(excess, 0, atol=1e-4)


@pytest.mark.parametrize("gap", [1.0, 8.0, 40.0, 400.0])
@pytest.mark.parametrize("variance", [0.5, 5.0])
def test_log_probability_of_two_classes_matches_quadrature(gap, variance):
    mean, cov = np.array([[-gap, 0.0]]), variance * np.eye(2)[None]
    probit = log_predictive_density(MultinomialProbitLikelihood(), mean, cov, [0])
    assert_allclose(probit, log_ndtr(-gap / np.sqrt(2 + 2 * variance)), rtol=1e-10, atol=1e-14)
    d = np.linspace(-60, 60, 200_001) * np.sqrt(2 * variance) - gap
    weight = -0.5 * (d + gap) ** 2 / (2 * variance) - np.logaddexp(0.0, -d)
    exact = logsumexp(weight) + np.log((d[1] - d[0]) / np.sqrt(4 * np.pi * variance))
    assert_allclose(log_predictive_density(SoftmaxLikelihood(), mean, cov, [0]), exact, atol=0.02 if gap > 8 else 1e-9)


@pytest.mark.variation(but=["softmax-5", "softmax-4"])
@pytest.mark.parametrize(
    ("likelihood", "c"),
    [
        (likelihood, c)
        for likelihood in LIKELIHOODS
        if not likelihood.has_parameters and likelihood.observed_axes == 1
        for c in ((3, 4, 5) if likelihood.function_axis else (1,))
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_log_probability_is_continuous_where_its_formula_changes(c, likelihood, monkeypatch):
    """The formulas for small and for large probabilities agree where both apply, and the tail keeps its digits."""
    rng = np.random.default_rng(c)
    root = rng.normal(size=(c, c))
    mean = np.zeros((40, c))
    mean[:, 0] = -np.linspace(0, 60, 40)
    label = 0 if likelihood.function_axis else 1  # the mean makes this label unlikely
    cov, labels = np.tile(root @ root.T, (40, 1, 1)), np.full(40, label)
    log_p = log_predictive_density(likelihood, mean, cov, labels, tolerance=1e-6)
    assert np.isfinite(log_p).all()
    assert (np.diff(log_p) < 0).all()
    assert (np.diff(log_p, 2) < 0.05).all()  # log-concave in the mean
    middle = (log_p > -14) & (log_p < -2)
    monkeypatch.setattr(log_predictive, "_TINY", 1.0)
    tails = log_predictive_density(likelihood, mean[middle], cov[middle], labels[middle])
    assert_allclose(log_p[middle], tails, atol=0.03)


def test_log_probability_of_nan_is_nan():
    for likelihood in (each for each in LIKELIHOODS if not each.has_parameters):
        c = 3 if likelihood.function_axis else 1
        mean = np.array([[np.nan, 0.0, 0.0]])[:, :c]
        observed = [1] if likelihood.observed_axes == 1 else [[0, 1, 2]]
        assert np.isnan(log_predictive_density(likelihood, mean, np.eye(c)[None], observed)).all()


@pytest.fixture(scope="module")
def fits():
    model, _ = models.probit()
    with model:
        return model, {method: pm.fit(method=method, progressbar=False) for method in ("nested_ep", "vb", "iep")}


def test_result_has_the_structure_of_arviz_loo(fits):
    loo = fits[1]["nested_ep"].loo()
    n = loo.n_data_points
    assert n == 30
    assert loo.kind == "loo"
    assert not loo.warning
    assert "cavities of nested_ep at 30 observations." in str(loo)
    assert loo.elpd_i.dims == loo.p_loo_i.dims == ("flower",)
    assert (loo.elpd_i["flower"] == np.arange(30) + 100).all()
    assert loo.elpd == pytest.approx(loo.elpd_i.sum())
    assert loo.p == pytest.approx(loo.p_loo_i.sum())
    assert loo.se == pytest.approx(np.sqrt(n) * loo.elpd_i.std())
    assert 0 < loo.p < 5
    assert -n * np.log(3) < loo.elpd < -1


def test_labels_without_dims_get_default_dims(fixed):
    loo = fixed.fit.loo()
    assert loo.elpd_i.dims == ("y_dim_0",)
    assert (loo.elpd_i["y_dim_0"] == np.arange(30)).all()


def test_rough_points_are_refitted_on_request(fits):
    fit = fits[1]["nested_ep"]
    posterior = fit.solution.posterior
    quick, some, all_of_them = (fit.loo(refit_above=above) for above in (np.inf, 0.05, -np.inf))
    problem = random_problem(0, 30, 3)._replace(K=posterior.prior.k, m=posterior.prior.mean, y=fit.solution.labels)
    assert_allclose(all_of_them.elpd_i, without_each_point(NestedEP(), problem), atol=1e-12)
    again = quick.p_loo_i.values > 0.05
    assert 0 < some.n_refitted == again.sum() < 30
    assert "and from fits without each of" in str(some)
    assert_allclose(some.elpd_i, np.where(again, all_of_them.elpd_i, quick.elpd_i), atol=1e-12)


def test_fit_that_did_not_converge_is_flagged(fits):
    model, _ = models.probit()
    with model, pytest.warns(RuntimeWarning, match="did not converge"):
        fit = pm.fit(1, method="nested_ep", progressbar=False)
    assert fit.loo().warning


@pytest.mark.filterwarnings("ignore:Estimated shape parameter of Pareto distribution")
@pytest.mark.filterwarnings("ignore:Detected variables likely created by GP objects")
def test_arviz_compares_leave_one_out_results(fits):
    """The reference is PSIS-LOO of draws, as a result and as draws."""
    model, by_method = fits
    draws = by_method["nested_ep"].sample(100, chains=2, random_seed=1)
    with model:
        pm.compute_log_likelihood(draws, progressbar=False)
    psis = az.loo(draws, pointwise=True)
    own = {method: fit.loo() for method, fit in by_method.items()}
    assert own["vb"].elpd_i.dims == psis.elpd_i.dims
    for other in (psis, draws):
        table = az.compare({**own, "draws": other}, round_to="none")
        assert set(table.index) == {"nested_ep", "vb", "iep", "draws"}
        assert table.loc["nested_ep", "elpd"] == pytest.approx(own["nested_ep"].elpd)
        assert table["weight"].sum() == pytest.approx(1)
    assert own["nested_ep"].elpd == pytest.approx(psis.elpd, abs=1.0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Estimated shape parameter of Pareto distribution")
@pytest.mark.filterwarnings("ignore:Detected variables likely created by GP objects")
def test_arviz_compares_with_mcmc(fits):
    model, by_method = fits
    with model:
        mcmc = pm.sample(
            100, tune=30, chains=2, cores=1, step=gpep.samplers.GuidedHMC(), progressbar=False, random_seed=1,
            compute_convergence_checks=False,
        )  # fmt: skip
        pm.compute_log_likelihood(mcmc, progressbar=False)
    own = {method: fit.loo() for method, fit in by_method.items()}
    table = az.compare({**own, "mcmc": mcmc}, round_to="none")
    assert abs(table.loc["nested_ep", "elpd"] - table.loc["mcmc", "elpd"]) < 1.0


def test_text_counts_points_where_cavities_of_a_mode_are_rough():
    """Refits of these points are three times closer to quadrature."""
    rng = np.random.default_rng(0)
    y = rng.poisson(1.0, 8)
    y[0] = 12
    with pm.Model():
        u = pm.Normal("u", 0.0, 1.5, shape=8)
        pm.Poisson("y", pm.math.exp(u + 0.5 * pm.Normal("a")), observed=y)
        fit = pm.fit(method="laplace", progressbar=False)
        by_moments = pm.fit(method="ep", progressbar=False)
    found = fit.loo()
    rough = int((found.p_loo_i > 0.3).sum())
    assert rough > 0
    assert found.n_rough == rough
    assert f"{rough} observations have p_loo_i above 0.3" in str(found)
    again = fit.loo(refit_above=0.3)
    assert again.n_rough == 0
    assert "p_loo_i above" not in str(again)
    assert by_moments.loo().n_rough == 0
    with pm.Model():
        pm.Normal("z", pm.Normal("u", 0.0, 1.5, shape=8), 1.0, observed=3.0 * y)
        assert pm.fit(method="laplace", progressbar=False).loo().n_rough == 0
