"""The exact Laplace approximation of a multinomial probit against a dense reference of its own."""

import re

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import norm

from pymc_gpep.approximations.laplace_probit import LaplaceProbit
from pymc_gpep.kernels.status import CONVERGED, NOT_FINITE, NOT_POSITIVE_DEFINITE, OUT_OF_ITERATIONS, TOO_LARGE
from tests.reference.data import iris, random_problem, squared_exponential
from tests.reference.laplace import laplace as dense_laplace
from tests.reference.laplace import multinomial_probit

TIGHT = LaplaceProbit(tolerance=1e-12)


def run(approximation, k, mean, y, start=None):
    """The compiled solver's outcome with gradients."""
    n = y.size
    k = np.ascontiguousarray(k).reshape(-1, n, n)
    sites = np.zeros(mean.size) if start is None else start
    return approximation.run(k, mean, y, sites, gradient=True)


def part_of_iris(log_variance, log_lengthscale, every=4):
    X, y = iris()
    X, y = X[::every], y[::every]
    return squared_exponential(X, variance=np.exp(log_variance), lengthscale=np.exp(log_lengthscale)), y


@pytest.mark.parametrize("per_class", [False, True])
@pytest.mark.parametrize(("n", "c", "variance"), [(8, 3, 1.0), (6, 5, 30.0), (8, 2, 1000.0)])
def test_equals_dense_reference(n, c, variance, per_class):
    problem = random_problem(7, n, c, variance=variance, per_class=per_class, with_mean=True)
    dense = dense_laplace(problem.K, problem.y, problem.m, multinomial_probit)
    solution = TIGHT.solve(problem.K, problem.m, problem.y)
    assert solution.convergence.converged
    assert solution.evidence == pytest.approx(dense.evidence, rel=1e-9, abs=1e-9)
    assert_allclose(solution.mean, dense.mean, atol=1e-8 * np.sqrt(variance))
    assert_allclose(solution.cov, np.einsum("aibi->iab", dense.covariance), atol=1e-9 * variance)
    assert_allclose(solution.posterior.weights, dense.weights, atol=1e-9)
    assert_allclose(solution.posterior.precision, dense.curvature, atol=1e-9)

    outcome = run(TIGHT, problem.K, problem.m, problem.y)
    expected = dense.gradient if per_class else dense.gradient.sum(0, keepdims=True)
    assert outcome.status == CONVERGED
    assert outcome.evidence == solution.evidence
    assert_allclose(outcome.gradient, expected, atol=1e-8)
    assert_allclose(outcome.gradient_mean, dense.gradient_mean, atol=1e-8)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("per_class", [False, True])
@pytest.mark.parametrize(("c", "variance"), [(2, 2.0), (3, 50.0), (5, 5.0)])
def test_gradient_is_that_of_the_evidence(seed, per_class, c, variance):
    problem = random_problem(seed, 6, c, variance=variance, per_class=per_class, with_mean=True)
    k = problem.K + 0.02 * variance * np.eye(problem.y.size)  # so that it stays a covariance
    outcome = run(TIGHT, k, problem.m, problem.y)
    rng = np.random.default_rng(seed)
    to_k = rng.normal(size=problem.K.shape)
    to_k = 0.5 * (to_k + to_k.swapaxes(-1, -2))
    to_mean = rng.normal(size=problem.m.shape)

    def evidence(t):
        return TIGHT.solve(k + t * to_k, problem.m + t * to_mean, problem.y).evidence

    h = 2e-4
    slope = (8 * (evidence(h) - evidence(-h)) - evidence(2 * h) + evidence(-2 * h)) / (12 * h)
    expected = (outcome.gradient * to_k).sum() + (outcome.gradient_mean * to_mean).sum()
    assert slope == pytest.approx(expected, rel=2e-8, abs=2e-8)


def test_two_classes_are_binary_probit():
    """f = (f_1 − f_0) / √2 has a probit likelihood and covariance (K_0 + K_1) / 2 (R & W, algorithm 3.1)."""
    problem = random_problem(3, 12, 2, variance=4.0, per_class=True)
    k, sign = problem.K.mean(0), 2.0 * problem.y - 1.0
    f = np.zeros(12)
    for _ in range(100):
        ratio = np.exp(norm.logpdf(f) - norm.logcdf(sign * f))
        w = ratio * (ratio + sign * f)
        f = k @ np.linalg.solve(np.eye(12) + w[:, None] * k, w * f + sign * ratio)
    evidence = norm.logcdf(sign * f).sum() - 0.5 * f @ np.linalg.solve(k, f)
    evidence -= 0.5 * np.linalg.slogdet(np.eye(12) + w[:, None] * k)[1]
    solution = TIGHT.solve(problem.K, np.zeros((2, 12)), problem.y)
    assert solution.evidence == pytest.approx(evidence, abs=1e-8)
    assert_allclose((solution.mean[1] - solution.mean[0]) / np.sqrt(2), f, atol=1e-8)


@pytest.mark.parametrize("log_lengthscale", [-2, 1, 3, 5])
@pytest.mark.parametrize("log_variance", [-2, 5, 12])
def test_mode_is_found_to_rounding(log_variance, log_lengthscale):
    k, y = part_of_iris(log_variance, log_lengthscale)
    solution = LaplaceProbit().solve(k, np.zeros((3, y.size)), y)
    assert solution.convergence.converged
    f = solution.posterior.weights @ k
    _, first, *_ = multinomial_probit(f.T, y)
    assert np.abs(first.T - solution.posterior.weights).max() < 1e-8


def test_every_step_ends_higher():
    k, y = part_of_iris(12, 1)
    mean = np.zeros((3, y.size))
    values = []
    for i in range(1, LaplaceProbit().solve(k, mean, y).convergence.iterations + 1):
        b = LaplaceProbit(max_iterations=i).solve(k, mean, y).posterior.weights
        values.append(multinomial_probit(k @ b.T, y)[0].sum() - 0.5 * np.einsum("ki,ij,kj->", b, k, b))
    assert np.diff(values).min() > -1e-8
    assert values[-1] > values[0] + 10


@pytest.mark.parametrize("scale", [0.01, 100.0])
def test_the_start_does_not_matter(scale):
    k, y = part_of_iris(6, 1)
    mean = np.zeros((3, y.size))
    cold = LaplaceProbit().solve(k, mean, y)
    warm = LaplaceProbit().solve(k, mean, y, start=scale * np.random.default_rng(0).normal(size=cold.start.size))
    again = LaplaceProbit().solve(k, mean, y, start=cold.start)
    assert again.convergence.iterations == 1
    assert warm.convergence.converged
    assert warm.evidence == pytest.approx(cold.evidence, abs=1e-8)
    assert_allclose(warm.mean, cold.mean, atol=1e-6)


def test_what_is_too_large_is_refused():
    problem = random_problem(0, 6, 3)
    small = LaplaceProbit(max_size=17)
    with pytest.raises(ValueError, match=re.escape("18 latent values") + ".*nested_ep.*max_size=18"):
        small.solve(problem.K, problem.m, problem.y)
    outcome = run(small, problem.K, problem.m, problem.y)
    assert outcome.status == TOO_LARGE
    assert np.isnan(outcome.evidence)


def test_running_out_of_iterations_is_reported():
    k, y = part_of_iris(8, 1)
    solution = LaplaceProbit(max_iterations=3).solve(k, np.zeros((3, y.size)), y)
    assert solution.convergence.status == OUT_OF_ITERATIONS
    assert np.isfinite(solution.cov).all()


def test_covariance_that_is_not_positive_definite_is_reported():
    k = np.array([[1.0, 9.0, 0.0], [9.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    solution = LaplaceProbit().solve(k, np.zeros((2, 3)), np.array([0, 1, 0]))
    assert np.isnan(solution.evidence)
    assert solution.convergence.status == NOT_POSITIVE_DEFINITE


@pytest.mark.parametrize("what", ["k", "mean", "sites"])
def test_values_that_are_not_finite_are_reported(what):
    problem = random_problem(0, 5, 3, with_mean=True)
    arrays = {"k": problem.K[None].copy(), "mean": problem.m.copy(), "sites": np.zeros(15)}
    arrays[what].flat[3] = np.nan
    outcome = run(LaplaceProbit(), arrays["k"], arrays["mean"], problem.y, arrays["sites"])
    assert outcome.status == NOT_FINITE
    assert outcome.iterations == 0
    assert np.isnan(outcome.evidence)


@pytest.mark.parametrize(("option", "value"), [("tolerance", 0), ("max_iterations", 0), ("max_size", 0)])
def test_options_are_checked(option, value):
    with pytest.raises(ValueError, match=option):
        LaplaceProbit(**{option: value})
