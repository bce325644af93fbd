"""Nested EP against dense implementations of the same fixed point, and its known properties."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.approximations import NestedEP
from pymc_gpep.kernels.status import CONVERGED, NOT_FINITE, NOT_POSITIVE_DEFINITE, OUT_OF_ITERATIONS
from tests.reference.binary_ep import binary_ep
from tests.reference.data import iris, random_problem, squared_exponential, wine
from tests.reference.dense_nested_ep import nested_ep as dense_nested_ep
from tests.reference.gibbs import gibbs

TIGHT = NestedEP(tolerance=1e-11)


def standardised(data, log_variance, log_lengthscale, jitter=1e-8):
    X, y = data()
    k = squared_exponential(X, variance=np.exp(log_variance), lengthscale=np.exp(log_lengthscale))
    return k + jitter * np.eye(y.size), np.zeros((y.max() + 1, y.size)), y


@pytest.mark.parametrize("per_class", [False, True])
@pytest.mark.parametrize("with_mean", [False, True])
@pytest.mark.parametrize(("n", "c", "variance"), [(12, 3, 1.0), (9, 5, 30.0), (10, 2, 1000.0)])
def test_nested_ep_equals_dense_reference(n, c, variance, per_class, with_mean):
    problem = random_problem(7, n, c, variance=variance, per_class=per_class, with_mean=with_mean)
    mean = np.zeros((c, n)) if problem.m is None else np.broadcast_to(problem.m, (c, n))
    dense = dense_nested_ep(problem.K, problem.y, mean, c=c)
    solution = TIGHT.solve(problem.K, mean, problem.y)
    assert solution.convergence.converged
    scale = np.sqrt(variance)
    assert_allclose(solution.evidence, dense.evidence, rtol=1e-9)
    assert_allclose(solution.mean, dense.mean, atol=1e-8 * scale)
    cov = dense.covariance.reshape(c, n, c, n)
    assert_allclose(solution.cov, np.einsum("aibi->iab", cov), atol=1e-8 * variance)
    alpha, beta = solution.start.reshape(2, n, c - 1)
    assert_allclose(alpha, dense.alpha, atol=1e-8)
    assert_allclose(beta, dense.beta, atol=1e-8 * scale)

    k = problem.K.reshape(-1, n, n)
    outcome = TIGHT.run(k, mean, problem.y, 0 * solution.start, gradient=True)
    expected = dense.gradient_covariance if per_class else dense.gradient_covariance.sum(0)
    assert outcome.status == CONVERGED
    assert outcome.evidence == solution.evidence
    assert_allclose(outcome.gradient, expected.reshape(k.shape), atol=1e-8)
    assert_allclose(outcome.gradient_mean, dense.gradient_mean, atol=1e-8)


@pytest.mark.parametrize("seed", range(3))
def test_nested_ep_of_two_classes_equals_binary_ep(seed):
    """u_1 − u_0 has variance 2: f = (f_1 − f_0) / √2 has a probit likelihood and the covariance (K_0 + K_1) / 2."""
    problem = random_problem(seed, 15, 2, variance=4.0, per_class=True)
    solution = TIGHT.solve(problem.K, np.zeros((2, 15)), problem.y)
    binary = binary_ep(problem.K.mean(0), 2 * problem.y - 1)
    assert solution.evidence == pytest.approx(binary.evidence, abs=1e-8)
    assert_allclose((solution.mean[1] - solution.mean[0]) / np.sqrt(2), binary.mean, atol=1e-7)


@pytest.mark.parametrize(
    ("data", "log_variance", "log_lengthscale", "evidence"),
    [(wine, 1, 1, -51.02103), (wine, 4, 2, -32.51898), (iris, 8, 2.5, -27.2217)],
)
def test_evidence_on_real_data_equals_stored_values(data, log_variance, log_lengthscale, evidence):
    solution = NestedEP().solve(*standardised(data, log_variance, log_lengthscale))
    assert solution.convergence.converged
    assert solution.evidence == pytest.approx(evidence, abs=6e-5 if data is iris else 6e-6)


@pytest.mark.slow
def test_nested_ep_of_wine_agrees_with_gibbs_sampling():
    k, mean, y = standardised(wine, 1, 1)
    k, mean, y = k[::2, ::2], mean[:, ::2], y[::2]
    solution = NestedEP().solve(k, mean, y)
    exact = gibbs(k, y, sweeps=1500, burn=100, chains=16, seed=1)
    assert np.abs(solution.mean - exact.mean).mean() < 0.05
    assert np.abs(solution.cov.diagonal(axis1=1, axis2=2).T - exact.variance).mean() < 0.08


@pytest.mark.parametrize(
    "options", [{"depth": 0, "damping": 0.5}, {"depth": 0}, {"max_inner": 30}, {"depth": 8, "mixing": 0.5}]
)
def test_every_schedule_has_the_same_fixed_point(options):
    prior = standardised(iris, 1, 1)
    expected = NestedEP(tolerance=1e-8).solve(*prior)
    solution = NestedEP(tolerance=1e-8, **options).solve(*prior)
    assert solution.convergence.converged
    assert solution.evidence == pytest.approx(expected.evidence, abs=1e-9)
    assert_allclose(solution.mean, expected.mean, atol=1e-6)


def test_acceleration_converges_where_damping_does_not():
    prior = standardised(iris, 8, 2.5)
    plain = NestedEP(depth=0, damping=0.8, max_iterations=200, ladder=False).solve(*prior)
    accelerated = NestedEP(max_iterations=100).solve(*prior)
    assert plain.convergence.status == OUT_OF_ITERATIONS
    assert "ran out of iterations after 200 iterations of accelerated EP" in str(plain.convergence)
    assert accelerated.convergence.converged


def test_warm_start_reaches_the_same_solution_sooner():
    near = NestedEP().solve(*standardised(wine, 3.8, 2.0))
    cold = NestedEP().solve(*standardised(wine, 4.0, 2.0))
    warm = NestedEP().solve(*standardised(wine, 4.0, 2.0), start=near.start)
    assert warm.convergence.iterations < cold.convergence.iterations
    assert warm.evidence == pytest.approx(cold.evidence, abs=1e-9)


def test_history_ends_with_the_solution():
    solution = NestedEP().solve(*standardised(iris, 1, 1))
    record = solution.convergence
    assert record.evidence.shape == record.residual.shape == (record.iterations,)
    assert record.evidence[-1] == solution.evidence
    assert record.residual[-1] < record.tolerance < record.residual[-2]


def test_covariance_that_is_not_positive_definite_is_reported():
    k = np.array([[1.0, 5.0, 0.0], [5.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    solution = NestedEP().solve(k, np.zeros((2, 3)), np.array([0, 1, 0]))
    assert np.isnan(solution.evidence)
    assert solution.convergence.status == NOT_POSITIVE_DEFINITE


@pytest.mark.parametrize("what", ["k", "mean", "sites"])
def test_values_that_are_not_finite_are_reported(what):
    problem = random_problem(0, 5, 3, with_mean=True)
    arrays = {"k": problem.K[None].copy(), "mean": problem.m.copy(), "sites": np.zeros(20)}
    arrays[what].flat[3] = np.nan
    outcome = NestedEP().run(arrays["k"], arrays["mean"], problem.y, arrays["sites"])
    assert outcome.status == NOT_FINITE
    assert outcome.iterations == 0
    assert np.isnan(outcome.evidence)


@pytest.mark.parametrize(
    ("option", "value"),
    [("tolerance", 0), ("max_iterations", 0), ("max_inner", 0), ("depth", -1), ("mixing", 0), ("damping", 1.5)],
)
def test_invalid_options_raise_value_error(option, value):
    with pytest.raises(ValueError, match=option):
        NestedEP(**{option: value})
