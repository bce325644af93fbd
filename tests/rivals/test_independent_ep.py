"""Class-independent EP, by inner EP and by quadrature, against dense implementations, and its known properties."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.approximations import NestedEP
from pymc_gpep.kernels.status import CONVERGED, NOT_FINITE, NOT_POSITIVE_DEFINITE, OUT_OF_ITERATIONS
from pymc_gpep.rivals.class_independent_ep import IEP, QIEP
from tests.reference.data import half_of_grid, iris, random_problem, squared_exponential, wine
from tests.reference.independent_ep import independent_ep
from tests.reference.stored import stored

KINDS = pytest.mark.parametrize(("kind", "moments"), [(IEP, "inner_ep"), (QIEP, "quadrature")])
BOTH = pytest.mark.parametrize("kind", [IEP, QIEP])


def standardised(data, log_variance, log_lengthscale):
    X, y = data()
    k = squared_exponential(X, variance=np.exp(log_variance), lengthscale=np.exp(log_lengthscale))
    return k + 1e-8 * np.eye(y.size), np.zeros((y.max() + 1, y.size)), y


def evidence_and_slopes(approximation, k, mean, y):
    k = np.ascontiguousarray(k.reshape(-1, y.size, y.size))
    outcome = approximation.run(k, mean, y, np.zeros(approximation.start_size(*mean.shape)), gradient=True)
    assert outcome.status == CONVERGED
    return outcome.evidence, outcome.gradient, outcome.gradient_mean


def of_classes(n, c, variance, per_class):
    return random_problem(7, n, c, variance=variance, per_class=per_class, with_mean=True)


@stored
def dense_numbers(moments, n, c, variance, per_class):
    """Evidence, mean, variances, weights and slopes in the covariances, flattened and concatenated."""
    problem = of_classes(n, c, variance, per_class)
    dense = independent_ep(problem.K, problem.y, problem.m, moments=moments)
    variances = np.einsum("cii->ci", dense.covariance)
    numbers = dense.evidence, dense.mean, variances, dense.weights, dense.gradient_covariance
    return np.concatenate([np.ravel(each) for each in numbers])


@KINDS
@pytest.mark.parametrize(
    ("n", "c", "variance", "per_class"), [(6, 3, 1.0, True), (5, 4, 10.0, False), (7, 2, 30.0, True)]
)
def test_class_independent_ep_equals_dense_reference(kind, moments, n, c, variance, per_class):
    problem = of_classes(n, c, variance, per_class)
    evidence, *others = dense_numbers(moments, n, c, variance, per_class)
    mean, variances, weights = np.reshape(others[: 3 * c * n], (3, c, n))
    slopes = np.reshape(others[3 * c * n :], (c, n, n))
    solution = kind(tolerance=1e-11).solve(problem.K, problem.m, problem.y)
    assert solution.convergence.converged
    assert_allclose(solution.evidence, evidence, rtol=1e-9)
    assert_allclose(solution.mean, mean, atol=1e-8 * np.sqrt(variance))
    assert_allclose(np.einsum("iaa->ai", solution.cov), variances, atol=1e-8 * variance)
    assert not np.any(solution.cov[:, ~np.eye(c, dtype=bool)])
    _, slope, slope_mean = evidence_and_slopes(kind(tolerance=1e-11), problem.K, problem.m, problem.y)
    assert_allclose(slope, slopes if per_class else slopes.sum(0, keepdims=True), atol=1e-8)
    assert_allclose(slope_mean, weights, atol=1e-8)


@BOTH
@pytest.mark.parametrize("per_class", [False, True])
@pytest.mark.parametrize(("seed", "c"), [(0, 2), (1, 3), (2, 5)])
def test_gradients_match_differences_of_the_evidence(kind, seed, c, per_class):
    problem = random_problem(seed, 10, c, variance=20.0, per_class=per_class, with_mean=True)
    approximation = kind(tolerance=1e-11)
    rng = np.random.default_rng(seed)
    k = problem.K.reshape(-1, 10, 10)
    direction = rng.normal(size=k.shape)
    direction = direction @ direction.transpose(0, 2, 1) / 10
    drift = rng.normal(size=problem.m.shape)
    _, slope, slope_mean = evidence_and_slopes(approximation, k, problem.m, problem.y)
    step = 1e-5

    def evidence(dk, dm):
        return evidence_and_slopes(approximation, k + dk * direction, problem.m + dm * drift, problem.y)[0]

    assert np.sum(slope * direction) == pytest.approx((evidence(step, 0) - evidence(-step, 0)) / (2 * step), abs=1e-7)
    assert np.sum(slope_mean * drift) == pytest.approx((evidence(0, step) - evidence(0, -step)) / (2 * step), abs=1e-7)


@pytest.mark.parametrize("seed", range(3))
def test_inner_ep_is_exact_for_two_classes(seed):
    problem = random_problem(seed, 12, 2, variance=10.0, per_class=True, with_mean=True)
    inner = IEP(tolerance=1e-11).solve(problem.K, problem.m, problem.y)
    quadrature = QIEP(tolerance=1e-11).solve(problem.K, problem.m, problem.y)
    assert inner.evidence == pytest.approx(quadrature.evidence, abs=1e-9)
    assert_allclose(inner.mean, quadrature.mean, atol=1e-8)
    assert_allclose(inner.cov, quadrature.cov, atol=1e-8)


@BOTH
def test_variances_of_class_independent_ep_are_below_the_variances_of_nested_ep(kind):
    """Section 3.1 of the nested EP paper: class-independent EP underestimates the uncertainty."""
    prior = standardised(wine, 4, 2)
    full = NestedEP().solve(*prior)
    independent = kind().solve(*prior)
    ratio = np.einsum("iaa->ai", independent.cov) / np.einsum("iaa->ai", full.cov)
    assert ratio.max() < 0.8
    assert np.median(ratio) < 0.4
    # Uncertainty about the common level, which labels do not determine, is lost. Uncertainty of differences is not.
    contrast = np.array([1.0, -1.0, 0.0])
    of_contrast = (contrast @ independent.cov @ contrast) / (contrast @ full.cov @ contrast)
    assert np.median(of_contrast) > 2 * np.median(ratio)


@BOTH
@pytest.mark.parametrize(("data", "log_variance", "log_lengthscale"), [(iris, 8, 2), (iris, 12, 1), (wine, 12, 5)])
def test_class_independent_ep_converges_if_the_common_level_drifts(kind, data, log_variance, log_lengthscale):
    solution = kind().solve(*standardised(data, log_variance, log_lengthscale))
    assert solution.convergence.converged
    # derivative with respect to a prior mean that all classes share
    assert np.abs(solution.posterior.weights.sum(0)).max() < 1e-6


@BOTH
@pytest.mark.slow
@pytest.mark.parametrize("data", [iris, wine])
def test_class_independent_ep_converges_on_a_hyperparameter_grid(kind, data):
    for log_variance, log_lengthscale in half_of_grid():
        solution = kind().solve(*standardised(data, log_variance, log_lengthscale))
        assert solution.convergence.converged, (log_variance, log_lengthscale, str(solution.convergence))


@pytest.mark.parametrize(
    "approximation",
    [
        IEP(1e-8, max_inner=30),
        IEP(1e-8, depth=0),
        IEP(1e-8, depth=8, mixing=0.5),
        QIEP(1e-8, depth=0, damping=0.5),
    ],
    ids=str,
)
def test_every_schedule_has_the_same_fixed_point(approximation):
    prior = standardised(iris, 3, 1)
    expected = type(approximation)(tolerance=1e-8).solve(*prior)
    solution = approximation.solve(*prior)
    assert solution.convergence.converged
    assert solution.evidence == pytest.approx(expected.evidence, abs=1e-8)
    assert_allclose(solution.mean, expected.mean, atol=1e-5)


@BOTH
def test_warm_start_reaches_the_same_solution_sooner(kind):
    near = kind().solve(*standardised(wine, 3.8, 2.0))
    cold = kind().solve(*standardised(wine, 4.0, 2.0))
    warm = kind().solve(*standardised(wine, 4.0, 2.0), start=near.start)
    assert warm.convergence.iterations < cold.convergence.iterations
    assert warm.evidence == pytest.approx(cold.evidence, abs=1e-9)


@BOTH
def test_stopped_iteration_is_reported(kind):
    solution = kind(max_iterations=5).solve(*standardised(wine, 4.0, 2.0))
    assert solution.convergence.status == OUT_OF_ITERATIONS
    assert "ran out of iterations after 5 iterations of accelerated EP" in str(solution.convergence)


@BOTH
def test_invalid_input_returns_a_status(kind):
    k = np.array([[1.0, 5.0, 0.0], [5.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    solution = kind().solve(k, np.zeros((2, 3)), np.array([0, 1, 0]))
    assert np.isnan(solution.evidence)
    assert solution.convergence.status == NOT_POSITIVE_DEFINITE
    outcome = kind().run(np.full((1, 3, 3), np.nan), np.zeros((2, 3)), np.array([0, 1, 0]), np.zeros(100))
    assert outcome.status == NOT_FINITE
    assert np.isnan(outcome.evidence)


@pytest.mark.parametrize(
    ("option", "value"),
    [("tolerance", 0), ("max_iterations", 0), ("max_inner", 0), ("depth", -1), ("mixing", 0), ("damping", 1.5)],
)
def test_invalid_options_raise_value_error(option, value):
    with pytest.raises(ValueError, match=option):
        IEP(**{option: value})
