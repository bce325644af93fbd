"""Likelihoods of several observed variables as one likelihood, each at its own rows."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from pymc_gpep.approximations import EP, KL
from pymc_gpep.approximations.laplace import ScalarLaplace
from pymc_gpep.likelihoods.all_likelihoods import LIKELIHOODS
from pymc_gpep.likelihoods.local_computations import GaussianAverage
from pymc_gpep.likelihoods.stacked import StackedLikelihood
from pymc_gpep.solvers.site_ep import site_of
from tests.likelihoods.with_parameters import COUNTS, EVERY

N = 12
FAR = np.finfo(np.float64).max  # as a bound, the largest number does not censor
NUMBERS = np.random.default_rng(1).permutation(np.arange(N) % 2)  # number of the likelihood of each row
KINDS = [each for each in LIKELIHOODS if not each.function_axis]
METHODS = [EP(tolerance=1e-11), ScalarLaplace(), KL(tolerance=1e-11)]


def given(likelihood):
    """Return a likelihood with its parameters, and observations of it."""
    case = EVERY.get(likelihood.name)
    if case is None:
        return likelihood, np.minimum(COUNTS, 1)
    return likelihood.given(case.parameters), case.y


def stacked(first, second):
    """Return two likelihoods as one, each at some of the rows."""
    parts = [first, second]
    most = max(len(each.parameters) for each in parts)
    parameters = np.ones((1 + most, N))
    parameters[0] = NUMBERS
    for number, each in enumerate(parts):
        own = number == NUMBERS
        parameters[1 : 1 + len(each.parameters), own] = each.parameters[:, own] if each.has_parameters else 0.0
    return StackedLikelihood(parameters, tuple(parts), tuple(len(each.parameters) for each in parts))


def problem(independent=False):
    """Return a mean and a prior covariance. Rows of different likelihoods can be independent."""
    x = np.linspace(-2.0, 2.0, N)
    k = np.exp(-0.5 * (x[:, None] - x) ** 2) + 0.1 * np.eye(N)
    if independent:
        k *= NUMBERS[:, None] == NUMBERS
    return k[None], np.full((1, N), 0.2)


def solved(method, k, mean, y, likelihood):
    """Return the evidence with its derivatives, and the posterior."""
    y = np.ascontiguousarray(y, likelihood.observed_dtype)
    start = method.cold(1, k.shape[1])
    return (
        method.run(k, mean, y, start, gradient=True, likelihood=likelihood),
        method.solve(k, mean, y, likelihood=likelihood),
    )


@pytest.mark.parametrize("likelihood", KINDS, ids=lambda each: each.name)
def test_rows_divided_between_equal_likelihoods_match_one_likelihood(likelihood):
    one, y = given(likelihood)
    method = METHODS[KINDS.index(likelihood) % len(METHODS)]
    method = method if method.approximates(one) else METHODS[0]
    both = stacked(one, one)
    k, mean = problem()
    (alone, posterior), (run, solution) = (solved(method, k, mean, y, each) for each in (one, both))
    assert run.evidence == pytest.approx(alone.evidence, abs=1e-10)
    np.testing.assert_allclose(run.gradient, alone.gradient, atol=1e-10)
    if one.has_parameters:
        np.testing.assert_allclose(run.gradient_parameters[1:], alone.gradient_parameters, atol=1e-10)
    assert not run.gradient_parameters[0].any()
    np.testing.assert_allclose(solution.mean, posterior.mean, atol=1e-10)
    np.testing.assert_allclose(solution.cov, posterior.cov, atol=1e-10)
    moments = solution.mean.T, solution.cov
    np.testing.assert_allclose(both.log_tail(*moments, y), one.log_tail(*moments, y), atol=1e-10)
    if not one.n_classes(1):
        np.testing.assert_allclose(both.ends(y, *moments), one.ends(y, *moments), atol=1e-10)
    np.testing.assert_allclose(both.log_densities(mean, y), one.log_densities(mean, y), atol=1e-12)


@pytest.mark.parametrize("pair", ["poisson-weibull", "logit-asymmetric_laplace", "ordered_probit-normal"])
def test_evidence_of_independent_likelihoods_is_the_sum_of_log_evidences(pair):
    by_name = {each.name: each for each in KINDS}
    (first, y_first), (second, y_second) = (given(by_name[name]) for name in pair.split("-"))
    both = stacked(first, second)
    k, mean = problem(independent=True)
    whole, _ = solved(METHODS[0], k, mean, np.where(NUMBERS == 0, y_first, y_second), both)
    apart = []
    for number, (each, y) in enumerate([(first, y_first), (second, y_second)]):
        own = np.flatnonzero(number == NUMBERS)
        found, _ = solved(METHODS[0], k[:, own[:, None], own], mean[:, own], y[own], each.at(own))
        apart.append(found)
        count = len(each.parameters)
        slopes = whole.gradient_parameters[1 : 1 + count, own]
        np.testing.assert_allclose(slopes, found.gradient_parameters if count else slopes, atol=1e-9)
    assert whole.evidence == pytest.approx(sum(each.evidence for each in apart), abs=1e-9)


def test_labels_outside_a_likelihood_of_the_stack_raise_value_error():
    by_name = {each.name: each for each in KINDS}
    (poisson, y), (probit, classes) = given(by_name["poisson"]), given(by_name["probit"])
    both = stacked(poisson, probit)
    legal = np.where(NUMBERS == 0, y, classes)
    np.testing.assert_array_equal(both.check(legal, 1, N), legal)
    legal[np.flatnonzero(NUMBERS == 1)[0]] = 2
    with pytest.raises(ValueError, match="must be 0 or 1"):
        both.check(legal, 1, N)
    with pytest.raises(ValueError, match="must be"):
        both.check(legal[1:], 1, N)


@pytest.mark.parametrize(
    "likelihood", [each for each in KINDS if each.offers(GaussianAverage)], ids=lambda each: each.name
)
def test_sites_of_normal_rows_match_moments(likelihood):
    one, y = given(likelihood)
    y = np.ascontiguousarray(y, likelihood.observed_dtype)
    average, mean, variance = one.computation(GaussianAverage), np.linspace(-1.0, 1.0, N), np.linspace(0.3, 2.0, N)
    sites, h = np.full((2, N), np.nan), np.empty((5, N))
    if average.normal is not None:
        average.normal(y, one.parameters, sites)
    normal = np.isfinite(sites).all(axis=0)
    # Sites of normal rows do not depend on the cavity. Other sites do.
    average.terms(mean, variance, y, one.parameters, h)
    near = np.stack(site_of(h[1], -h[2], mean, variance))
    average.terms(mean + 0.5, variance, y, one.parameters, h)
    far = np.stack(site_of(h[1], -h[2], mean + 0.5, variance))
    np.testing.assert_array_equal(normal, np.abs(near - far).max(axis=0) < 1e-9)
    np.testing.assert_allclose(sites[:, normal], near[:, normal], rtol=1e-9)


@pytest.mark.parametrize("sigma", [1e-7, 1e-3, 1e3])
def test_ep_of_normal_rows_is_exact_after_one_sweep(sigma):
    normal = next(each for each in KINDS if each.name == "normal")
    k, mean = problem()
    y = np.sin(np.arange(N))
    one = normal.given(np.outer([sigma, -FAR, FAR], np.ones(N)))
    solution = METHODS[0].solve(k, mean, y, likelihood=one)
    assert solution.converged
    assert solution.convergence.iterations == 1
    expected = multivariate_normal(mean[0], k[0] + sigma**2 * np.eye(N)).logpdf(y)
    assert solution.log_evidence == pytest.approx(expected, rel=1e-8)
