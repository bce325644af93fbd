"""Annealing from a base density to the posterior: weights, standard errors and paths, against quadrature."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from pymc_gpep.approximations.methods import approximator
from pymc_gpep.checks.annealed_evidence import (
    Base,
    anneal,
    importance_weights,
    posterior_base,
    prior_base,
    thermodynamic_estimate,
)
from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.hyper.weights import importance_estimate
from pymc_gpep.likelihoods.multinomial_probit import MultinomialProbitLikelihood
from pymc_gpep.likelihoods.softmax import SoftmaxLikelihood
from tests.reference.data import random_problem

MEAN = np.array([[0.3, -0.2]])
K = np.array([[2.0, 1.2], [1.2, 1.5]])
MEASURED = np.array([1.0, -1.0])
NOISE = 0.7
PATH = np.linspace(0, 1, 8) ** 2

EVIDENCE = multivariate_normal(MEAN[0], K + NOISE**2 * np.eye(2)).logpdf(MEASURED)
"""Exact log evidence of `measured`."""


def measured(f):
    return float(-0.5 * (((MEASURED - f[0]) / NOISE) ** 2 + np.log(2 * np.pi * NOISE**2)).sum())


def run(seed, runs, path=PATH, sweeps=1):
    rng = np.random.default_rng(seed)
    return anneal(prior_base(DensePrior(K[None], MEAN)), measured, path, runs, sweeps, rng)[0]


def test_weights_are_unbiased_even_on_a_coarse_path():
    path = np.array([0.0, 0.3, 1.0])
    log_weights = importance_weights(run(1, 4000, path), path)
    weights = np.exp(log_weights - EVIDENCE)
    error = weights.std(ddof=1) / np.sqrt(len(weights))
    assert abs(weights.mean() - 1) < 4 * error < 0.1


def test_both_estimates_match_quadrature_on_a_fine_path():
    path = np.linspace(0, 1, 25) ** 3
    u = run(2, 400, path, sweeps=3)
    estimate, effective = importance_estimate(importance_weights(u, path))
    assert abs(estimate.value - EVIDENCE) < 4 * estimate.error < 0.1
    assert 300 < effective < 400
    thermodynamic = thermodynamic_estimate(u, path)
    assert abs(thermodynamic.value - EVIDENCE) < 4 * thermodynamic.error < 0.1


def test_standard_errors_match_the_spread_of_repeated_estimates():
    both = []
    for seed in range(60):
        u = run(100 + seed, 40)
        both.append((importance_estimate(importance_weights(u, PATH))[0], thermodynamic_estimate(u, PATH)))
    for estimates in zip(*both, strict=True):
        spread = np.std([estimate.value for estimate in estimates], ddof=1)
        claimed = np.sqrt(np.mean([estimate.error**2 for estimate in estimates]))
        assert 0.65 < spread / claimed < 1.4  # 4 standard errors of the standard deviation of 60 numbers


def test_expected_log_likelihood_along_the_path_matches_closed_form():
    u = run(3, 1500, sweeps=4)
    precision = np.linalg.inv(K)
    for temperature, column in zip(PATH, u, strict=True):
        covariance = np.linalg.inv(precision + temperature * np.eye(2) / NOISE**2)
        mean = covariance @ (precision @ MEAN[0] + temperature * MEASURED / NOISE**2)
        expected = measured(mean[None]) - 0.5 * np.trace(covariance) / NOISE**2
        assert abs(column.mean() - expected) < 4.5 * column.std(ddof=1) / np.sqrt(len(column))


def test_zero_likelihood_gives_zero_weight_and_no_thermodynamic_estimate():
    def positive(f):
        return 0.0 if f[0, 0] > 0 else -np.inf if f[0, 1] > 0 else np.nan

    base = prior_base(DensePrior(np.eye(2)[None], np.zeros((1, 2))))
    u, evaluations = anneal(base, positive, PATH, 2000, 1, np.random.default_rng(4))
    estimate, effective = importance_estimate(importance_weights(u, PATH))
    assert abs(estimate.value - np.log(0.5)) < 4 * estimate.error < 0.1
    assert effective == pytest.approx(np.isfinite(u[0]).sum())
    assert np.isnan(thermodynamic_estimate(u, PATH)).all()
    assert evaluations > 2000 * len(PATH)


def test_zero_likelihood_everywhere_gives_zero_evidence():
    estimate, effective = importance_estimate(np.full(5, -np.inf))
    assert estimate.value == -np.inf
    assert np.isnan(estimate.error)
    assert effective == 0


def test_corrected_trapezoid_rule_is_exact_for_a_cubic():
    # Over runs, the log ratios u at temperature t have the mean t³ and its derivative as variance, as on any path.
    path = np.array([0.0, 0.1, 0.5, 1.0])
    pattern = np.array([-1.0, 1.0, -1.0, 1.0])
    pattern /= pattern.std(ddof=1)
    u = path[:, None] ** 3 + np.sqrt(3 * path[:, None] ** 2) * pattern
    assert thermodynamic_estimate(u, path).value == pytest.approx(0.25, rel=1e-12)


def test_progress_advances_at_each_temperature():
    ticks = []
    base = Base(np.zeros((1, 1)), lambda rng, count: rng.standard_normal((count, 1, 1)), lambda x: 0.0, 0.0)
    anneal(base, lambda f: 0.0, PATH, 2, 1, np.random.default_rng(5), lambda: ticks.append(None))
    assert len(ticks) == len(PATH)


APPROXIMATIONS = [
    ("nested_ep", MultinomialProbitLikelihood()),
    ("qep", MultinomialProbitLikelihood()),
    ("iep", MultinomialProbitLikelihood()),
    ("laplace", MultinomialProbitLikelihood()),
    ("vb", MultinomialProbitLikelihood()),
    ("laplace", SoftmaxLikelihood()),
]


@pytest.mark.parametrize("per_class", [False, True], ids=["shared", "per_class"])
@pytest.mark.parametrize(("method", "likelihood"), APPROXIMATIONS)
def test_base_density_equals_the_approximation_with_the_normaliser_of_prior_times_sites(method, likelihood, per_class):
    problem = random_problem(7, 4, 3, per_class=per_class, with_mean=True)
    c, n = problem.m.shape
    k = np.atleast_3d(problem.K.T).T
    solution = approximator(method, likelihood, {}).solve(k, problem.m, problem.y, likelihood=likelihood)
    roots = np.linalg.cholesky(k)
    base = posterior_base(solution.posterior)
    np.testing.assert_array_equal(base.mean, solution.mean)

    prior = np.zeros((c, n, c, n))
    prior[range(c), :, range(c), :] = k
    covariance = solution.posterior.joint_covariance(np.broadcast_to(k, (c, n, n)), k)
    before = multivariate_normal(problem.m.ravel(), prior.reshape(c * n, c * n))
    after = multivariate_normal(solution.mean.ravel(), covariance.reshape(c * n, c * n))
    rng = np.random.default_rng(8)
    for scale in (0.1, 1.0, 5.0):
        x = scale * np.squeeze(roots @ rng.standard_normal((c, n, 1)), -1)
        f = (base.mean + x).ravel()
        normaliser = before.logpdf(f) + base.log_sites(x) - after.logpdf(f)
        assert base.log_normaliser == pytest.approx(normaliser, rel=1e-6, abs=1e-6)

    draws = base.draw(rng, 4000).reshape(4000, c * n)
    flat = covariance.reshape(c * n, c * n)
    errors = np.sqrt((np.outer(np.diag(flat), np.diag(flat)) + flat**2) / len(draws))
    assert (np.abs(draws.mean(axis=0)) < 4.5 * np.sqrt(np.diag(flat) / len(draws))).all()
    assert (np.abs(draws.T @ draws / len(draws) - flat) < 4.5 * errors).all()
