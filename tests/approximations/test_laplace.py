"""Laplace approximations against dense implementations, and their known properties."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import norm

from pymc_gpep.approximations import Laplace, LaplaceProbit
from pymc_gpep.kernels.status import CONVERGED, NOT_FINITE, NOT_POSITIVE_DEFINITE, OUT_OF_ITERATIONS, TOO_LARGE
from tests.reference.data import iris, random_problem, squared_exponential, wine
from tests.reference.laplace import laplace as dense_laplace
from tests.reference.laplace import multinomial_probit, softmax


class Kind(NamedTuple):
    """An approximation, and the constants of its tests."""

    approximation: type[Laplace] | type[LaplaceProbit]
    likelihood: Callable[..., Any]
    """Likelihood of the dense reference."""
    every: int
    """Data sets are thinned to every n-th point: dense algebra is slow."""
    size: float
    """Relative size of problems."""
    error: float
    """Relative tolerance, limited by the quadrature of the reference."""


KINDS = [Kind(Laplace, softmax, 1, 1.0, 1.0), Kind(LaplaceProbit, multinomial_probit, 4, 0.7, 10.0)]
kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.approximation.__name__)
TIGHT = Laplace(tolerance=1e-12)


def standardised(data, log_variance, log_lengthscale, every=1):
    X, y = (x[::every] for x in data())
    k = squared_exponential(X, variance=np.exp(log_variance), lengthscale=np.exp(log_lengthscale))
    return k, np.zeros((y.max() + 1, y.size)), y


def run(approximation, k, mean, y, start=None):
    """Result of the solver with gradients."""
    n = y.size
    k = np.ascontiguousarray(k).reshape(-1, n, n)
    sites = np.zeros(mean.size) if start is None else start
    return approximation.run(k, mean, y, sites, gradient=True)


def mode_gradient(kind, k, mean, y, weights):
    """∇ log p(y | f) − b at f = m + K b."""
    f = mean + np.einsum("kij,kj->ki", np.broadcast_to(k, (len(mean), y.size, y.size)), weights)
    return kind.likelihood(f.T, y)[1].T - weights


def log_posterior(kind, k, mean, y, weights):
    """log p(y | f) − ½ (f − m)ᵀ K⁻¹ (f − m)."""
    image = np.einsum("kij,kj->ki", np.broadcast_to(k, (len(mean), y.size, y.size)), weights)
    return kind.likelihood((mean + image).T, y)[0].sum() - 0.5 * (weights * image).sum()


@kinds
@pytest.mark.parametrize(
    ("n", "c", "variance", "per_class", "with_mean"), [(10, 3, 1.0, True, True), (8, 4, 30.0, False, False)]
)
def test_laplace_equals_dense_reference(kind, n, c, variance, per_class, with_mean):
    tight, error = kind.approximation(tolerance=1e-12), kind.error
    problem = random_problem(7, int(n * kind.size), c, variance=variance, per_class=per_class, with_mean=with_mean)
    dense = dense_laplace(problem.K, problem.y, problem.m, kind.likelihood)
    solution = tight.solve(problem.K, problem.m, problem.y)
    assert solution.convergence.converged
    assert solution.evidence == pytest.approx(dense.evidence, rel=error * 1e-10, abs=error * 1e-10)
    assert_allclose(solution.mean, dense.mean, atol=error * 1e-9 * np.sqrt(variance))
    assert_allclose(solution.cov, np.einsum("aibi->iab", dense.covariance), atol=1e-9 * variance)
    assert_allclose(solution.posterior.weights, dense.weights, atol=error * 1e-10)

    outcome = run(tight, problem.K, problem.m, problem.y)
    expected = dense.gradient if per_class else dense.gradient.sum(0, keepdims=True)
    assert outcome.status == CONVERGED
    assert outcome.evidence == solution.evidence
    assert_allclose(outcome.gradient, expected, atol=error * 1e-9)
    assert_allclose(outcome.gradient_mean, dense.gradient_mean, atol=error * 1e-9)
    assert (outcome.gradient == outcome.gradient.transpose(0, 2, 1)).all()


def test_curvature_of_a_probit_matches_the_dense_reference():
    problem = random_problem(7, 8, 3, variance=1.0, with_mean=True)
    dense = dense_laplace(problem.K, problem.y, problem.m, multinomial_probit)
    solution = LaplaceProbit(tolerance=1e-12).solve(problem.K, problem.m, problem.y)
    assert_allclose(solution.posterior.precision, dense.curvature, atol=1e-9)


@kinds
@pytest.mark.parametrize(
    ("seed", "per_class", "c", "variance"), [(0, False, 2, 2.0), (1, True, 3, 50.0), (2, False, 5, 5.0)]
)
def test_gradient_matches_differences_of_the_evidence(kind, seed, per_class, c, variance):
    tight = kind.approximation(tolerance=1e-12)
    problem = random_problem(seed, int(9 * kind.size), c, variance=variance, per_class=per_class, with_mean=True)
    k = problem.K + 0.02 * variance * np.eye(problem.y.size)  # shifted, so that differences stay positive definite
    outcome = run(tight, k, problem.m, problem.y)
    rng = np.random.default_rng(seed)
    to_k = rng.normal(size=problem.K.shape)
    to_k = 0.5 * (to_k + to_k.swapaxes(-1, -2))
    to_mean = rng.normal(size=problem.m.shape)

    def evidence(t):
        return tight.solve(k + t * to_k, problem.m + t * to_mean, problem.y).evidence

    h = 2e-4
    slope = (8 * (evidence(h) - evidence(-h)) - evidence(2 * h) + evidence(-2 * h)) / (12 * h)
    expected = (outcome.gradient * to_k).sum() + (outcome.gradient_mean * to_mean).sum()
    assert slope == pytest.approx(expected, rel=1e-8, abs=1e-8)


@kinds
@pytest.mark.parametrize(
    ("data", "log_variance", "log_lengthscale"), [(iris, -2, 3), (wine, 6, -2), (iris, 12, 1), (wine, 12, 5)]
)
def test_mode_is_found_to_rounding(kind, data, log_variance, log_lengthscale):
    """Covariances without jitter are numerically singular for long length scales."""
    k, mean, y = standardised(data, log_variance, log_lengthscale, kind.every)
    solution = kind.approximation().solve(k, mean, y)
    assert solution.convergence.converged
    assert np.abs(mode_gradient(kind, k, mean, y, solution.posterior.weights)).max() < 1e-8


@pytest.mark.slow
@pytest.mark.parametrize("log_variance", range(-2, 13, 2))
@pytest.mark.parametrize("data", [iris, wine])
def test_mode_is_found_at_all_hyperparameters_of_a_grid(data, log_variance):
    for log_lengthscale in range(-2, 6):
        k, mean, y = standardised(data, log_variance, log_lengthscale)
        solution = Laplace().solve(k, mean, y)
        assert solution.convergence.converged
        assert solution.convergence.iterations < 20
        assert np.abs(mode_gradient(KINDS[0], k, mean, y, solution.posterior.weights)).max() < 1e-9


@kinds
@pytest.mark.parametrize(("log_variance", "log_lengthscale"), [(12, 2.5)])
def test_each_step_raises_the_log_posterior(kind, log_variance, log_lengthscale):
    k, mean, y = standardised(iris, log_variance, log_lengthscale, kind.every)
    steps = kind.approximation().solve(k, mean, y).convergence.iterations
    values = [
        log_posterior(kind, k, mean, y, kind.approximation(max_iterations=i).solve(k, mean, y).posterior.weights)
        for i in range(1, steps + 1)
    ]
    assert np.diff(values).min() > -1e-8
    assert values[-1] > values[0] + 10


def test_evidence_and_gradient_of_real_data_equal_dense_values():
    k, mean, y = standardised(iris, 4, 1)
    dense = dense_laplace(k, y, mean)
    outcome = run(TIGHT, k, mean, y)
    assert outcome.evidence == pytest.approx(dense.evidence, abs=1e-8)
    assert_allclose(outcome.gradient[0], dense.gradient.sum(0), atol=1e-8)
    assert_allclose(outcome.gradient_mean, dense.gradient_mean, atol=1e-8)


@kinds
@pytest.mark.parametrize(("log_variance", "scale"), [(-2, 1.0), (12, 0.01), (12, 1e6)])
def test_start_does_not_change_the_mode(kind, log_variance, scale):
    k, mean, y = standardised(wine, log_variance, 2, kind.every)
    cold = kind.approximation().solve(k, mean, y)
    start = scale * np.random.default_rng(0).normal(size=cold.start.size)
    warm = kind.approximation().solve(k, mean, y, start=start)
    assert warm.convergence.converged
    assert warm.evidence == pytest.approx(cold.evidence, abs=1e-8)
    assert_allclose(warm.mean, cold.mean, atol=1e-7 * np.sqrt(k[0, 0]))
    again = kind.approximation().solve(k, mean, y, start=cold.start)
    assert again.convergence.iterations == 1


@kinds
def test_warm_start_reaches_the_same_solution_sooner(kind):
    approximation = kind.approximation()
    near = approximation.solve(*standardised(wine, 3.8, 2.0, kind.every))
    cold = approximation.solve(*standardised(wine, 4.0, 2.0, kind.every))
    warm = approximation.solve(*standardised(wine, 4.0, 2.0, kind.every), start=near.start)
    assert warm.convergence.iterations < cold.convergence.iterations
    assert warm.evidence == pytest.approx(cold.evidence, abs=1e-9)


def test_laplace_of_a_softmax_of_two_classes_equals_laplace_of_a_binary_logit():
    """f_1 − f_0 has the covariance K_0 + K_1 and a logistic likelihood (Rasmussen and Williams 2006)."""
    problem = random_problem(3, 15, 2, variance=4.0, per_class=True)
    k, sign = problem.K.sum(0), 2.0 * problem.y - 1.0
    f = np.zeros(15)
    for _ in range(100):
        p = 1 / (1 + np.exp(-f))
        w = p * (1 - p)
        f = k @ np.linalg.solve(np.eye(15) + w[:, None] * k, w * f + (sign + 1) / 2 - p)
    evidence = -0.5 * f @ np.linalg.solve(k, f) - np.log1p(np.exp(-sign * f)).sum()
    evidence -= 0.5 * np.linalg.slogdet(np.eye(15) + w[:, None] * k)[1]
    solution = TIGHT.solve(problem.K, np.zeros((2, 15)), problem.y)
    assert solution.evidence == pytest.approx(evidence, abs=1e-8)
    assert_allclose(solution.mean[1] - solution.mean[0], f, atol=1e-8)


def test_laplace_of_a_multinomial_probit_of_two_classes_equals_laplace_of_a_binary_probit():
    """f = (f_1 − f_0) / √2 has a probit likelihood and the covariance (K_0 + K_1) / 2 (Rasmussen and Williams 2006)."""
    problem = random_problem(3, 12, 2, variance=4.0, per_class=True)
    k, sign = problem.K.mean(0), 2.0 * problem.y - 1.0
    f = np.zeros(12)
    for _ in range(100):
        ratio = np.exp(norm.logpdf(f) - norm.logcdf(sign * f))
        w = ratio * (ratio + sign * f)
        f = k @ np.linalg.solve(np.eye(12) + w[:, None] * k, w * f + sign * ratio)
    evidence = norm.logcdf(sign * f).sum() - 0.5 * f @ np.linalg.solve(k, f)
    evidence -= 0.5 * np.linalg.slogdet(np.eye(12) + w[:, None] * k)[1]
    solution = LaplaceProbit(tolerance=1e-12).solve(problem.K, np.zeros((2, 12)), problem.y)
    assert solution.evidence == pytest.approx(evidence, abs=1e-8)
    assert_allclose((solution.mean[1] - solution.mean[0]) / np.sqrt(2), f, atol=1e-8)


@pytest.mark.parametrize("k", [np.zeros((4, 4)), np.full((4, 4), 1e5), 1e8 * np.eye(4)])
def test_laplace_with_degenerate_covariances_equals_dense_reference(k):
    y = np.array([0, 1, 2, 0])
    mean = np.random.default_rng(0).normal(size=(3, 4))
    dense = dense_laplace(k, y, mean)
    outcome = run(Laplace(), k, mean, y)
    assert outcome.status == CONVERGED
    assert outcome.evidence == pytest.approx(dense.evidence, abs=1e-8)
    assert_allclose(outcome.gradient_mean, dense.gradient_mean, atol=1e-6)


def test_underflowing_probabilities_have_finite_logarithms():
    """Latent values differ by 1000: all softmax probabilities but one underflow, and log p is linear."""
    mean = np.zeros((3, 5))
    mean[0] = 1e3
    solution = Laplace().solve(np.eye(5), mean, np.zeros(5, int))
    assert solution.convergence.converged
    assert solution.evidence == pytest.approx(0.0, abs=1e-12)
    assert_allclose(solution.cov, np.broadcast_to(np.eye(3), (5, 3, 3)), atol=1e-12)
    wrong = Laplace().solve(np.eye(5), mean, np.ones(5, int))
    assert wrong.convergence.converged
    assert wrong.evidence == pytest.approx(
        5 * (-1000 + 1), abs=1e-8
    )  # log E exp(f_1 − f_0) for mean −1000 and variance 2


@kinds
def test_history_ends_with_the_solution(kind):
    solution = kind.approximation().solve(*standardised(iris, 1, 1, kind.every))
    record = solution.convergence
    assert record.evidence.shape == record.residual.shape == (record.iterations,)
    assert record.evidence[-1] == solution.evidence
    assert record.residual[-1] < record.tolerance < record.residual[-2]


def test_too_many_latent_values_raise_value_error():
    problem = random_problem(0, 6, 3)
    small = LaplaceProbit(max_size=17)
    with pytest.raises(ValueError, match=r"matrix of 18 rows.*nested_ep.*max_size=18"):
        small.solve(problem.K, problem.m, problem.y)
    outcome = run(small, problem.K, problem.m, problem.y)
    assert outcome.status == TOO_LARGE
    assert np.isnan(outcome.evidence)


@kinds
def test_running_out_of_iterations_is_reported(kind):
    solution = kind.approximation(max_iterations=3).solve(*standardised(iris, 8, 2.5, kind.every))
    assert solution.convergence.status == OUT_OF_ITERATIONS
    assert "ran out of iterations after 3 iterations of Newton's method" in str(solution.convergence)
    assert np.isfinite(solution.cov).all()


@kinds
@pytest.mark.parametrize("correlation", [5.0, 9.0])
def test_covariance_that_is_not_positive_definite_is_reported(kind, correlation):
    k = np.array([[1.0, correlation, 0.0], [correlation, 1.0, 0.0], [0.0, 0.0, 1.0]])
    solution = kind.approximation().solve(k, np.zeros((2, 3)), np.array([0, 1, 0]))
    assert np.isnan(solution.evidence)
    assert solution.convergence.status == NOT_POSITIVE_DEFINITE


@kinds
@pytest.mark.parametrize("what", ["k", "mean", "sites"])
def test_values_that_are_not_finite_are_reported(kind, what):
    problem = random_problem(0, 5, 3, with_mean=True)
    arrays = {"k": problem.K[None].copy(), "mean": problem.m.copy(), "sites": np.zeros(15)}
    arrays[what].flat[3] = np.nan
    outcome = run(kind.approximation(), arrays["k"], arrays["mean"], problem.y, arrays["sites"])
    assert outcome.status == NOT_FINITE
    assert outcome.iterations == 0
    assert np.isnan(outcome.evidence)


@pytest.mark.parametrize(
    ("approximation", "option"),
    [
        (Laplace, "tolerance"),
        (Laplace, "max_iterations"),
        (LaplaceProbit, "tolerance"),
        (LaplaceProbit, "max_iterations"),
        (LaplaceProbit, "max_size"),
    ],
)
def test_invalid_options_raise_value_error(approximation, option):
    with pytest.raises(ValueError, match=option):
        approximation(**{option: 0})
