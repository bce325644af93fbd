"""EP by quadrature against dense implementations, and the accuracy of its rules and sites."""

import itertools
import re
from functools import partial

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose

from pymc_gpep import marginalize
from pymc_gpep.approximations import NestedEP
from pymc_gpep.evidence.evidence import Evidence
from pymc_gpep.kernels.status import CONVERGED, NOT_FINITE, NOT_POSITIVE_DEFINITE, TOO_LARGE
from pymc_gpep.rivals.qep import QEP
from tests import models
from tests.reference.data import half_of_grid, iris, random_problem, squared_exponential, wine
from tests.reference.dense_nested_ep import inner_ep
from tests.reference.quadrature_ep import quadrature_ep
from tests.reference.tilted import cavity_of_g, full_product_rule, of_latents, product_rule, trapezium

sites = pytest.mark.parametrize("full", [False, True], ids=["diagonal", "full"])
DATA = [iris, wine]


def precision_and_location(solution, full):
    """Λ (n, c − 1, c − 1) and ξ (n, c − 1) from the solver's storage."""
    n, c, _ = solution.cov.shape
    first, second = solution.start.reshape(2, n, -1)
    precision = np.zeros((n, c - 1, c - 1))
    precision[:, range(c - 1), range(c - 1)] = first[:, : c - 1]
    if full:
        rows, columns = np.tril_indices(c - 1, -1)
        precision[:, rows, columns] = precision[:, columns, rows] = second[:, c - 1 :]
    return precision, second[:, : c - 1]


def evidence_and_gradients(approximation, k, mean, y):
    outcome = approximation.run(k, mean, y, np.zeros(approximation.start_size(*mean.shape)), gradient=True)
    assert outcome.status == CONVERGED
    return outcome.evidence, outcome.gradient, outcome.gradient_mean


def symmetric(rng, shape):
    a = rng.normal(size=shape)
    return a + a.swapaxes(-1, -2)


@sites
@pytest.mark.parametrize(
    ("n", "c", "variance", "order", "per_class"), [(8, 3, 1.0, 5, True), (6, 4, 4.0, 5, False), (8, 2, 10.0, 10, True)]
)
def test_rule_of_the_paper_equals_dense_reference(n, c, variance, order, per_class, full):
    problem = random_problem(7, n, c, variance=variance, per_class=per_class, with_mean=True)
    dense = quadrature_ep(problem.K, problem.y, problem.m, partial(product_rule, order=order), full=full)
    approximation = QEP(order=order, rule="gauss_hermite", tolerance=1e-11, full=full)
    solution = approximation.solve(problem.K, problem.m, problem.y)
    assert solution.convergence.converged
    assert_allclose(solution.evidence, dense.evidence, rtol=1e-9)
    assert_allclose(solution.mean, dense.mean, atol=1e-8 * np.sqrt(variance))
    assert_allclose(solution.cov, dense.covariance, atol=1e-8 * variance)
    precision, location = precision_and_location(solution, full)
    assert_allclose(precision, dense.precision, atol=1e-8)
    assert_allclose(location, dense.location, atol=1e-8)


@sites
@pytest.mark.parametrize(("seed", "variance"), [(0, 1.0), (1, 10.0)])
def test_moments_of_the_default_rule_are_close_to_exact_moments(seed, variance, full):
    problem = random_problem(seed, 8, 3, variance=variance, with_mean=True)
    dense = quadrature_ep(problem.K, problem.y, problem.m, trapezium, tolerance=1e-10, full=full)
    solution = QEP(full=full).solve(problem.K, problem.m, problem.y)
    scale = np.sqrt(variance)
    assert solution.evidence == pytest.approx(dense.evidence, abs=2e-5)
    assert_allclose(solution.mean, dense.mean, atol=1e-4 * scale)
    assert_allclose(solution.cov, dense.covariance, atol=3e-4 * variance)
    hermite = QEP(rule="gauss_hermite", full=full).solve(problem.K, problem.m, problem.y)
    assert abs(hermite.evidence - dense.evidence) > 20 * abs(solution.evidence - dense.evidence)


@pytest.mark.parametrize(
    ("seed", "c", "variance", "order", "error", "per_class"),
    [
        (0, 3, 0.5, 30, 1e-6, True),
        (1, 3, 30.0, 30, 1e-6, False),
        (2, 4, 3.0, 24, 3e-5, True),
        (4, 5, 3.0, 10, 3e-4, False),
    ],
)
def test_gradients_with_full_sites_match_differences_of_the_evidence(seed, c, variance, order, error, per_class):
    """The tolerance is the error of the quadrature: its moments are not exactly derivatives of its normalisers."""
    problem = random_problem(seed, 6, c, variance=variance, per_class=per_class, with_mean=True)
    k = problem.K.reshape(-1, 6, 6) + 0.01 * variance * np.eye(6)
    approximation = QEP(full=True, tolerance=1e-11, order=order)
    _, gradient, gradient_mean = evidence_and_gradients(approximation, k, problem.m, problem.y)
    rng = np.random.default_rng(seed)
    dk, dm = 0.1 * variance * symmetric(rng, k.shape), rng.normal(size=problem.m.shape)
    step = 1e-4
    for found, direction in ((np.sum(gradient * dk), (dk, 0.0)), (np.sum(gradient_mean * dm), (0.0, dm))):
        plus, minus = (
            evidence_and_gradients(approximation, k + h * direction[0], problem.m + h * direction[1], problem.y)[0]
            for h in (step, -step)
        )
        assert found == pytest.approx((plus - minus) / (2 * step), abs=error)


def test_evidence_of_diagonal_sites_is_close_to_full_sites_but_gradients_differ():
    problem = random_problem(1, 8, 4, variance=3.0, with_mean=True)
    k = problem.K[None] + 0.01 * np.eye(8)
    (evidence, gradient, _), (diagonal_evidence, diagonal_gradient, _) = (
        evidence_and_gradients(QEP(full=full, order=16), k, problem.m, problem.y) for full in (True, False)
    )
    assert diagonal_evidence == pytest.approx(evidence, abs=1e-3)
    assert 1e-3 < np.abs(diagonal_gradient - gradient).max() / np.abs(gradient).max() < 0.1


@sites
def test_two_classes_equal_binary_ep(full):
    """g is a scalar and inner EP exact: QEP equals nested EP, including its gradient."""
    problem = random_problem(0, 12, 2, variance=10.0, per_class=True, with_mean=True)
    arguments = problem.K, problem.m, problem.y, np.zeros(24)
    found, expected = (ep(tolerance=1e-11).run(*arguments, gradient=True) for ep in (partial(QEP, full=full), NestedEP))
    assert found.status == CONVERGED
    assert found.evidence == pytest.approx(expected.evidence, abs=1e-9)
    assert_allclose(found.cov, expected.cov, atol=1e-8)
    assert_allclose(found.gradient, expected.gradient, atol=1e-8)
    assert_allclose(found.gradient_mean, expected.gradient_mean, atol=1e-8)


def test_rules_of_ten_nodes_match_the_full_rule_after_two_sweeps():
    """Rules of ten nodes (Q10, QD10) agree with the full rule, as in figure 1 of the nested EP paper.

    Rules of five nodes have larger errors, and the log normaliser of inner EP is biased.
    """
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


def assert_converges_on_the_grid(X, y, full, points):
    for log_variance, log_lengthscale in points:
        K = squared_exponential(X, variance=np.exp(log_variance), lengthscale=np.exp(log_lengthscale))
        solution = QEP(full=full).solve(K + 1e-8 * np.eye(y.size), np.zeros((3, y.size)), y)
        assert solution.convergence.converged, (log_variance, log_lengthscale, str(solution.convergence))


@sites
@pytest.mark.parametrize("data", DATA)
def test_qep_converges_on_a_hyperparameter_grid_for_a_third_of_the_points(data, full):
    X, y = data()
    assert_converges_on_the_grid(X[::3], y[::3], full, itertools.product(range(-2, 13, 4), range(-2, 6)))


@sites
@pytest.mark.slow
@pytest.mark.parametrize("data", DATA)
def test_qep_converges_on_a_hyperparameter_grid(data, full):
    X, y = data()
    assert_converges_on_the_grid(X[::2], y[::2], full, half_of_grid())


@sites
def test_start_does_not_change_the_fixed_point(full):
    problem = random_problem(3, 9, 4, variance=5.0, with_mean=True)
    approximation = QEP(full=full, order=6, tolerance=1e-10)
    cold = approximation.solve(problem.K, problem.m, problem.y)
    anywhere = np.random.default_rng(0).normal(scale=0.3, size=cold.start.size)
    anywhere[: cold.start.size // 2] = 0.2
    if full:  # for d = 3 and more, the first half of the array is unused
        anywhere.reshape(2, 9, 6)[0, :, 3:] = 0.0
    warm = approximation.solve(problem.K, problem.m, problem.y, start=anywhere)
    assert warm.evidence == pytest.approx(cold.evidence, abs=1e-9)
    assert_allclose(warm.mean, cold.mean, atol=1e-7)
    assert approximation.solve(problem.K, problem.m, problem.y, start=cold.start).convergence.iterations <= 2


@pytest.mark.parametrize("full", [False, True])
def test_too_many_classes_are_refused(full):
    with pytest.raises(ValueError, match=r"9 classes would take 10\^7 .* use nested_ep"):
        QEP(full=full).solve(np.eye(9), np.zeros((9, 9)), np.arange(9))
    few = QEP(full=full, order=3, max_iterations=3)
    assert few.solve(np.eye(9), np.zeros((9, 9)), np.arange(9)).convergence.iterations == 3


def test_too_many_latent_values_are_refused():
    problem = random_problem(0, 6, 3)
    small = QEP(full=True, max_size=17)
    with pytest.raises(ValueError, match=re.escape("18 latent values") + ".*nested_ep.*full=False.*max_size=18"):
        small.solve(problem.K, problem.m, problem.y)
    assert QEP(max_size=17, full=False).solve(problem.K, problem.m, problem.y).convergence.converged
    outcome = small.run(problem.K[None], problem.m, problem.y, np.zeros(36))
    assert outcome.status == TOO_LARGE
    assert np.isnan(outcome.evidence)


@sites
def test_invalid_input_returns_a_status(full):
    k = np.array([[1.0, 9.0, 0.0], [9.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    solution = QEP(full=full).solve(k, np.zeros((2, 3)), np.array([0, 1, 0]))
    assert np.isnan(solution.evidence)
    assert solution.convergence.status == NOT_POSITIVE_DEFINITE
    nothing = np.full((1, 3, 3), np.nan)
    outcome = QEP(full=full).run(nothing, np.zeros((2, 3)), np.array([0, 1, 0]), np.zeros(6))
    assert outcome.status == NOT_FINITE


@pytest.mark.parametrize("method", ["fit", "marginalize"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"full": True, "max_size": 89}, "90 latent values"),
        ({"order": 1001, "rule": "gauss_hermite"}, "quadrature nodes"),
    ],
)
def test_too_large_model_is_refused(method, options, message):
    model, _ = models.probit()
    integrate = {"fit": partial(pm.fit, progressbar=False, model=model), "marginalize": partial(marginalize, model)}
    with pytest.raises(ValueError, match=message):
        integrate[method](method="qep", **options)


def test_too_large_graph_is_refused():
    with pytest.raises(ValueError, match="90 latent values"):
        Evidence(QEP(full=True, max_size=89))(np.eye(30)[None], np.zeros((3, 30)), np.zeros(30, np.int64))


@pytest.mark.parametrize(("option", "value"), [("order", 0), ("rule", "simpson"), ("tolerance", 0), ("max_size", 0)])
def test_invalid_options_raise_value_error(option, value):
    with pytest.raises(ValueError, match=option):
        QEP(**{option: value})
