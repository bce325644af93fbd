"""Variational Bayes against a dense implementation and sampling, and properties of its lower bound."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.approximations import NestedEP, VariationalBayes
from pymc_gpep.approximations import variational_bayes as solver
from pymc_gpep.kernels.status import CONVERGED, NOT_FINITE, NOT_POSITIVE_DEFINITE, OUT_OF_ITERATIONS
from tests.reference.data import iris, random_problem, squared_exponential, wine
from tests.reference.exact import importance_evidence, quadrature_posterior
from tests.reference.variational_bayes import bound, mean_utilities, sampled_bound, variational_bayes

TIGHT = VariationalBayes(tolerance=1e-11)


def standardised(data, log_variance, log_lengthscale):
    X, y = data()
    k = squared_exponential(X, variance=np.exp(log_variance), lengthscale=np.exp(log_lengthscale))
    return k, np.zeros((y.max() + 1, y.size)), y


def run(k, mean, y, gradient=True, approximation=TIGHT):
    """Run the solver from a cold start."""
    sites = np.zeros(approximation.start_size(*mean.shape))
    return approximation.run(k.reshape(-1, y.size, y.size), mean, y, sites, gradient)


@pytest.mark.parametrize(
    ("n", "c", "variance", "per_class"), [(12, 3, 1.0, False), (9, 5, 30.0, True), (10, 2, 100.0, False)]
)
def test_variational_bayes_equals_dense_reference(n, c, variance, per_class):
    problem = random_problem(7, n, c, variance=variance, per_class=per_class, with_mean=True)
    dense = variational_bayes(problem.K, problem.y, problem.m)
    solution = TIGHT.solve(problem.K, problem.m, problem.y)
    assert solution.convergence.converged
    scale = np.sqrt(variance)
    assert_allclose(solution.evidence, dense.bound, rtol=1e-9)
    assert_allclose(solution.mean, dense.mean, atol=1e-9 * scale)
    blocks = np.zeros((n, c, c))
    blocks[:, range(c), range(c)] = dense.covariance.diagonal(axis1=1, axis2=2).T
    assert_allclose(solution.cov, blocks, atol=1e-10)
    posterior = solution.posterior
    joint = posterior.joint_covariance(posterior.prior.k, posterior.prior.k)
    assert_allclose(joint[range(c), :, range(c)], dense.covariance, atol=1e-9)
    outcome = run(problem.K, problem.m, problem.y)
    assert outcome.status == CONVERGED
    assert outcome.evidence == solution.evidence
    assert_allclose(outcome.weights, dense.utilities - dense.mean, atol=1e-9)
    assert (outcome.gradient_mean == outcome.weights).all()
    assert (outcome.precision == 1.0).all()


@pytest.mark.parametrize("c", [2, 3, 6])
def test_reference_utilities_have_the_means_of_truncated_gaussian_draws(c):
    rng = np.random.default_rng(c)
    f = rng.normal(size=(c, 4))
    y = rng.integers(c, size=4)
    means = mean_utilities(f, y)
    for i in range(4):
        v = f[:, i] + rng.standard_normal((200_000, c))
        v = v[v.argmax(1) == y[i]]
        assert (np.abs(v.mean(0) - means[:, i]) < 4.0 * v.std(0) / np.sqrt(len(v))).all()


@pytest.mark.parametrize("seed", range(3))
def test_bound_matches_the_sampled_expectation(seed):
    problem = random_problem(seed, 4, 3, variance=3.0, with_mean=True)
    solution = TIGHT.solve(problem.K, problem.m, problem.y)
    posterior = solution.posterior
    covariance = posterior.joint_covariance(posterior.prior.k, posterior.prior.k)[range(3), :, range(3)]
    value, error = sampled_bound(problem.K, problem.y, problem.m, solution.mean, covariance, draws=100_000, seed=seed)
    assert error < 0.02
    assert solution.evidence == pytest.approx(value, abs=4.0 * error)


@pytest.mark.parametrize("seed", range(3))
def test_no_other_gaussian_has_a_higher_bound(seed):
    rng = np.random.default_rng(seed)
    problem = random_problem(seed, 6, 3, variance=5.0, per_class=True, with_mean=True)
    dense = variational_bayes(problem.K, problem.y, problem.m)
    solution = TIGHT.solve(problem.K, problem.m, problem.y)
    for size in (1e-3, 0.1):
        mean = dense.mean + size * rng.normal(size=dense.mean.shape)
        root = np.eye(6) + size * rng.normal(size=(3, 6, 6))
        covariance = root @ dense.covariance @ root.transpose(0, 2, 1)
        for other in ((mean, dense.covariance), (dense.mean, covariance)):
            assert bound(problem.K, problem.y, problem.m, *other) < solution.evidence


@pytest.mark.parametrize(("n", "c"), [(4, 2), (2, 3)])
@pytest.mark.parametrize("variance", [0.5, 3.0])
def test_bound_is_below_the_evidence(n, c, variance):
    problem = random_problem(5, n, c, variance=variance, with_mean=True)
    exact = quadrature_posterior(problem.K, problem.y, problem.m, tolerance=1e-3).evidence
    assert TIGHT.solve(problem.K, problem.m, problem.y).evidence < exact - 0.1


def test_bound_is_below_the_evidence_by_importance_sampling():
    problem = random_problem(3, 12, 3, variance=4.0, with_mean=True)
    proposal = NestedEP().solve(problem.K, problem.m, problem.y)
    posterior = proposal.posterior
    cov = posterior.joint_covariance(posterior.prior.k, posterior.prior.k).reshape(36, 36) + 1e-7 * np.eye(36)
    estimate = importance_evidence(problem.K, problem.y, proposal.mean, 1.1 * cov, problem.m, draws=5_000, seed=1)
    assert estimate.error < 0.1
    assert TIGHT.solve(problem.K, problem.m, problem.y).evidence < estimate.evidence - 4.0 * estimate.error


@pytest.mark.parametrize(("seed", "c", "per_class"), [(0, 2, True), (1, 3, False), (2, 5, True)])
def test_gradients_match_differences_of_the_bound(seed, c, per_class):
    problem = random_problem(seed, 7, c, variance=8.0, per_class=per_class, with_mean=True)
    rng = np.random.default_rng(seed)
    outcome = run(problem.K, problem.m, problem.y)
    k = problem.K.reshape(outcome.gradient.shape)
    direction = rng.normal(size=k.shape)
    direction += direction.transpose(0, 2, 1)
    shift = rng.normal(size=problem.m.shape)
    step = 1e-5

    def evidence(t, s):
        return run(k + t * direction, problem.m + s * shift, problem.y, gradient=False).evidence

    slope_k = (evidence(step, 0.0) - evidence(-step, 0.0)) / (2.0 * step)
    slope_m = (evidence(0.0, step) - evidence(0.0, -step)) / (2.0 * step)
    assert (outcome.gradient * direction).sum() == pytest.approx(slope_k, rel=1e-6, abs=1e-7)
    assert (outcome.gradient_mean * shift).sum() == pytest.approx(slope_m, rel=1e-6, abs=1e-7)
    assert (outcome.gradient == outcome.gradient.transpose(0, 2, 1)).all()


@pytest.mark.parametrize(
    ("data", "log_variance", "log_lengthscale"), [(iris, -2, 1), (wine, 6, -2), (iris, 12, 5), (wine, 12, 1)]
)
def test_bound_rises_and_converges_at_all_scales(data, log_variance, log_lengthscale):
    k, mean, y = standardised(data, log_variance, log_lengthscale)
    solution = VariationalBayes(tolerance=1e-9).solve(k, mean, y)
    record = solution.convergence
    assert record.converged
    assert record.iterations <= 30
    assert np.diff(record.evidence).min() > -1e-13 * (1.0 + np.abs(record.evidence).max())
    weights = solution.posterior.weights
    assert_allclose(solution.mean, weights @ k, atol=1e-7)
    assert_allclose(weights, mean_utilities(solution.mean, y) - solution.mean, atol=1e-8)


@pytest.mark.parametrize(
    "options",
    [{"max_products": 0, "tolerance": 1e-7, "max_iterations": 2000}, {"max_products": 1}, {"max_products": 5}],
)
def test_limit_on_products_with_the_covariance_does_not_change_the_optimum(options):
    prior = standardised(iris, 1, 1)
    expected = TIGHT.solve(*prior)
    solution = VariationalBayes(**options).solve(*prior)
    assert solution.convergence.converged
    assert np.diff(solution.convergence.evidence).min() > -1e-11
    assert solution.evidence == pytest.approx(expected.evidence, abs=1e-10)
    assert_allclose(solution.mean, expected.mean, atol=1e-5)


@pytest.mark.parametrize("variance", [0.0, 1e-30, 1e-8])
def test_bound_without_prior_variance_is_the_likelihood_at_the_mean(variance):
    problem = random_problem(2, 6, 3, with_mean=True)
    solution = TIGHT.solve(variance * problem.K, problem.m, problem.y)
    assert solution.convergence.converged
    exact = variational_bayes(1e-30 * np.eye(6), problem.y, problem.m)
    assert solution.evidence == pytest.approx(exact.bound, abs=20 * variance + 1e-12)
    assert_allclose(solution.cov[:, 0, 0], 2.0 * variance, rtol=1e-6)


def test_repeated_points_with_singular_covariance_are_solved():
    """Components of the weights in the null space of K follow from the utilities."""
    problem = random_problem(4, 8, 3, variance=50.0)
    twice = np.concatenate([np.arange(8)] * 2)
    k, y, mean = problem.K[np.ix_(twice, twice)], problem.y[twice], problem.m[:, twice]
    solution = TIGHT.solve(k, mean, y)
    assert solution.convergence.converged
    assert_allclose(solution.posterior.weights, mean_utilities(solution.mean, y) - solution.mean, atol=1e-10)


def test_warm_start_reaches_the_same_solution_sooner():
    near = VariationalBayes().solve(*standardised(wine, 3.9, 2.0))
    cold = VariationalBayes().solve(*standardised(wine, 4.0, 2.0))
    warm = VariationalBayes().solve(*standardised(wine, 4.0, 2.0), start=near.start)
    assert warm.convergence.iterations < cold.convergence.iterations
    assert warm.evidence == pytest.approx(cold.evidence, abs=1e-9)


def test_iterations_do_not_factorise_matrices():
    """The ascent uses the prior covariance and inverses that were computed before the ascent."""
    for step in (solver._ascend, solver.newton_direction.py_func):
        names = step.__code__.co_names
        assert "multiply_functions" in names
        assert not [name for name in names if "factorise" in name or "cholesky" in name or "solve" in name]


def test_history_ends_with_the_solution():
    solution = VariationalBayes().solve(*standardised(iris, 1, 1))
    record = solution.convergence
    assert record.evidence.shape == record.residual.shape == (record.iterations,)
    assert record.evidence[-1] == solution.evidence
    assert record.residual[-1] < record.tolerance < record.residual[-2]


def test_running_out_of_iterations_is_reported():
    solution = VariationalBayes(max_iterations=2).solve(*standardised(iris, 1, 1))
    assert solution.convergence.status == OUT_OF_ITERATIONS
    assert "ran out of iterations after 2 iterations of Newton's method" in str(solution.convergence)


def test_covariance_that_is_not_positive_definite_is_reported():
    k = np.array([[1.0, 5.0, 0.0], [5.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    solution = VariationalBayes().solve(k, np.zeros((2, 3)), np.array([0, 1, 0]))
    assert np.isnan(solution.evidence)
    assert solution.convergence.status == NOT_POSITIVE_DEFINITE


@pytest.mark.parametrize("what", ["k", "mean", "sites"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_reported(what, value):
    problem = random_problem(0, 5, 3, with_mean=True)
    arrays = {"k": problem.K[None].copy(), "mean": problem.m.copy(), "sites": np.zeros(15)}
    arrays[what].flat[3] = value
    outcome = TIGHT.run(arrays["k"], arrays["mean"], problem.y, arrays["sites"])
    assert outcome.status == NOT_FINITE
    assert outcome.iterations == 0
    assert np.isnan(outcome.evidence)


@pytest.mark.parametrize(("option", "value"), [("tolerance", 0), ("max_iterations", 0), ("max_products", -1)])
def test_invalid_options_raise_value_error(option, value):
    with pytest.raises(ValueError, match=option):
        VariationalBayes(**{option: value})
