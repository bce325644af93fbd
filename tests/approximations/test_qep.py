"""EP by quadrature against dense implementations, and what the rules are worth."""

from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep import QEP, NestedEP
from pymc_gpep.approximations.base import run
from pymc_gpep.kernels.status import CONVERGED, NOT_FINITE, NOT_POSITIVE_DEFINITE
from tests.reference.data import iris, random_problem, squared_exponential, wine
from tests.reference.dense_nested_ep import inner_ep
from tests.reference.quadrature_ep import quadrature_ep
from tests.reference.tilted import cavity_of_g, full_product_rule, of_latents, product_rule, trapezium


@pytest.mark.parametrize("per_class", [False, True])
@pytest.mark.parametrize(("n", "c", "variance", "order"), [(8, 3, 1.0, 5), (6, 4, 4.0, 5), (8, 2, 10.0, 10)])
def test_equals_dense_reference_with_the_rule_of_the_paper(n, c, variance, order, per_class):
    problem = random_problem(7, n, c, variance=variance, per_class=per_class, with_mean=True)
    dense = quadrature_ep(problem.K, problem.y, problem.m, partial(product_rule, order=order))
    approximation = QEP(order=order, rule="gauss_hermite", tolerance=1e-11)
    solution = approximation.solve(problem.K, problem.m, problem.y)
    assert solution.convergence.converged
    assert_allclose(solution.evidence, dense.evidence, rtol=1e-9)
    assert_allclose(solution.mean, dense.mean, atol=1e-8 * np.sqrt(variance))
    assert_allclose(solution.cov, dense.covariance, atol=1e-8 * variance)
    precision, location = solution.sites.reshape(2, n, c - 1)
    assert_allclose(precision, dense.precision, atol=1e-8)
    assert_allclose(location, dense.location, atol=1e-8)


@pytest.mark.parametrize(("seed", "variance"), [(0, 1.0), (1, 10.0)])
def test_default_rule_is_close_to_exact_moments(seed, variance):
    problem = random_problem(seed, 8, 3, variance=variance, with_mean=True)
    dense = quadrature_ep(problem.K, problem.y, problem.m, trapezium, tolerance=1e-10)
    solution = QEP().solve(problem.K, problem.m, problem.y)
    scale = np.sqrt(variance)
    assert solution.evidence == pytest.approx(dense.evidence, abs=2e-5)
    assert_allclose(solution.mean, dense.mean, atol=1e-4 * scale)
    assert_allclose(solution.cov, dense.covariance, atol=3e-4 * variance)
    hermite = QEP(rule="gauss_hermite").solve(problem.K, problem.m, problem.y)
    assert abs(hermite.evidence - dense.evidence) > 20 * abs(solution.evidence - dense.evidence)


@pytest.mark.parametrize("seed", range(3))
def test_two_classes_need_no_quadrature(seed):
    """g is then a scalar, and inner EP exact: QEP is nested EP, gradient and all."""
    problem = random_problem(seed, 12, 2, variance=10.0, per_class=True, with_mean=True)
    arguments = problem.K, problem.m, problem.y, np.zeros(24)
    found, expected = (run(ep(tolerance=1e-11), *arguments, gradient=True) for ep in (QEP, NestedEP))
    assert found.status == CONVERGED
    assert found.evidence == pytest.approx(expected.evidence, abs=1e-9)
    assert_allclose(found.cov, expected.cov, atol=1e-8)
    assert_allclose(found.gradient, expected.gradient, atol=1e-8)
    assert_allclose(found.gradient_mean, expected.gradient_mean, atol=1e-8)


def test_tilted_moments_after_two_sweeps():
    """Figure 1 of the nested EP paper on a part of iris: Q10 and QD10 like QF10, Q5 worse, inner EP biased in log Ẑ."""
    X, y = iris()
    X, y = X[::5], y[::5]
    K = squared_exponential(X, variance=np.e, lengthscale=np.e) + 1e-8 * np.eye(y.size)
    two = quadrature_ep(K, y, np.zeros((3, y.size)), partial(product_rule, order=10), damping=1.0, sweeps=2)
    errors = {name: [] for name in ("inner EP", "Q5", "Q10", "QD5", "QD10", "exact")}
    for mean, covariance, label in zip(two.cavity_mean, two.cavity_covariance, y, strict=True):
        reference = full_product_rule(mean, covariance, label)
        mu, C = cavity_of_g(mean, covariance, label)
        inner = inner_ep(mean, covariance, label)
        found = {"inner EP": (inner.log_normaliser, inner.mean[:3], inner.covariance[:3, :3])}
        found["exact"] = of_latents(mean, covariance, label, trapezium(mu, C))
        for order in (5, 10):
            tilted = product_rule(mu, C, order)
            found[f"Q{order}"] = of_latents(mean, covariance, label, tilted)
            diagonal = np.diag(np.diag(np.linalg.inv(tilted.covariance) - np.linalg.inv(C)))
            tilted = tilted._replace(covariance=np.linalg.inv(np.linalg.inv(C) + diagonal))
            found[f"QD{order}"] = of_latents(mean, covariance, label, tilted)
        for name, moments in found.items():
            errors[name].append([np.mean(a - b) for a, b in zip(moments, reference, strict=True)])
    log_z, means, covariances = (
        {name: np.abs(np.array(rows)[:, i]).mean() for name, rows in errors.items()} for i in range(3)
    )
    assert log_z["exact"] < 1e-3
    assert log_z["Q10"] < 2e-3
    assert log_z["Q10"] < log_z["Q5"]
    assert np.mean([row[0] for row in errors["inner EP"]]) < -log_z["Q10"]
    assert max(means.values()) < 0.02
    assert max(covariances.values()) < 0.05


@pytest.mark.slow
@pytest.mark.parametrize("data", [iris, wine])
def test_converges_on_the_whole_grid(data):
    X, y = data()
    for log_variance in range(-2, 13, 2):
        for log_lengthscale in range(-2, 6):
            K = squared_exponential(X, variance=np.exp(log_variance), lengthscale=np.exp(log_lengthscale))
            solution = QEP().solve(K + 1e-8 * np.eye(y.size), np.zeros((3, y.size)), y)
            assert solution.convergence.converged, (log_variance, log_lengthscale, str(solution.convergence))


def test_too_many_classes_are_refused():
    with pytest.raises(ValueError, match=r"9 classes would take 10\^7 .* use nested_ep"):
        QEP().solve(np.eye(9), np.zeros((9, 9)), np.arange(9))
    assert QEP(order=3, max_iterations=3).solve(np.eye(9), np.zeros((9, 9)), np.arange(9)).convergence.iterations == 3


def test_input_that_cannot_be_used_is_reported():
    k = np.array([[1.0, 5.0, 0.0], [5.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    solution = QEP().solve(k, np.zeros((2, 3)), np.array([0, 1, 0]))
    assert np.isnan(solution.evidence)
    assert solution.convergence.status == NOT_POSITIVE_DEFINITE
    outcome = run(QEP(), np.full((1, 3, 3), np.nan), np.zeros((2, 3)), np.array([0, 1, 0]), np.zeros(6))
    assert outcome.status == NOT_FINITE


@pytest.mark.parametrize(("option", "value"), [("order", 0), ("rule", "simpson"), ("tolerance", 0)])
def test_options_are_checked(option, value):
    with pytest.raises(ValueError, match=option):
        QEP(**{option: value})
