"""Variational bound with inducing inputs: dense methods, exact evidences, other optimisers, and differences."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import minimize

from pymc_gpep.approximations import KL, SparseVI, VariationalBayes
from pymc_gpep.approximations.sparse_ep import InducedArrays, Number
from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.likelihoods.bernoulli import LogitLikelihood, ProbitLikelihood
from pymc_gpep.likelihoods.label_noise import NoisyMultinomialProbitLikelihood, RobustMaxLikelihood
from pymc_gpep.likelihoods.local_computations import PointAverage
from pymc_gpep.likelihoods.multinomial_probit import MultinomialProbitLikelihood
from pymc_gpep.likelihoods.softmax import SoftmaxLikelihood
from tests.approximations.sparse import random_sparse, solved
from tests.reference.data import random_problem

EXACT = {"tolerance": 1e-10, "jitter": 1e-14, "max_iterations": 3000}
LIKELIHOODS = (
    MultinomialProbitLikelihood(),
    NoisyMultinomialProbitLikelihood(),
    RobustMaxLikelihood(),
    ProbitLikelihood(),
    LogitLikelihood(),
)
every = pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=lambda each: each.name)
several = pytest.mark.parametrize("likelihood", LIKELIHOODS[:3], ids=lambda each: each.name)


def bound_to(likelihood, n, epsilon=0.05):
    return likelihood.given(np.full((1, n), epsilon))


def problem_for(likelihood, seed, n, m, **options):
    c = 3 if likelihood.function_axis else 1
    return random_sparse(seed, n, c, m, classes=max(c, 2), **options)


def exact(problem, likelihood):
    """The solution, and the derivatives with respect to all moments."""
    own = bound_to(likelihood, len(problem.y))
    solution, slope, bars = solved(SparseVI(**EXACT), problem.prior, problem.y, own)
    assert solution.number is Number.BOUND
    return solution, (slope, *bars[:3])


@pytest.mark.parametrize(
    ("likelihood", "dense", "c"),
    [(ProbitLikelihood(), KL, 1), (LogitLikelihood(), KL, 1), (MultinomialProbitLikelihood(), VariationalBayes, 3)],
    ids=lambda each: getattr(each, "name", None),
)
def test_sparse_vi_with_all_points_as_inducing_inputs_equals_dense_vi(likelihood, dense, c):
    problem = random_problem(4, 20, c)
    y = problem.y % max(c, 2)
    k, mean = DensePrior.checked(problem.K, problem.m).k, problem.m
    prior = InducedArrays(k, k, k.diagonal(axis1=1, axis2=2), mean)
    solution = SparseVI(**EXACT).solve(prior, y, likelihood=likelihood)
    expected = dense(tolerance=1e-10).solve(k, mean, y, likelihood=likelihood)
    assert_allclose(solution.evidence, expected.evidence, rtol=1e-8)
    assert_allclose(solution.posterior.predict(prior.block(slice(None)))[0], expected.mean, atol=1e-5)


@every
def test_bound_is_below_the_evidence(likelihood):
    """The exact evidence of the model with all latent values is an average over draws from the prior."""
    problem = problem_for(likelihood, 3, 5, 3)
    likelihood = bound_to(likelihood, 5)
    draws, rng = 20_000, np.random.default_rng(1)
    k = problem.k(problem.x, problem.x, 0) + 0.1 * np.eye(5)
    f = problem.mean + rng.normal(size=(draws, len(problem.mean), 5)) @ np.linalg.cholesky(k).T
    density = np.exp(likelihood.log_density(f, problem.y))
    evidence, error = density.mean(), density.std() / np.sqrt(draws)
    found = SparseVI().solve(problem.prior, problem.y, likelihood=likelihood)
    assert found.evidence < np.log(evidence + 4 * error)
    assert found.evidence > np.log(evidence) - 25.0  # loose: three inducing inputs for five points with noise


@every
def test_additional_inducing_input_does_not_lower_the_bound(likelihood):
    problem = problem_for(likelihood, 4, 25, 6)
    bounds = [
        SparseVI(**EXACT)
        .solve(problem._replace(z=problem.z[:, :m]).prior, problem.y, likelihood=bound_to(likelihood, 25))
        .evidence
        for m in (1, 2, 4, 6)
    ]
    assert (np.diff(bounds) > -1e-8).all()
    assert bounds[-1] > bounds[0] + 0.01


@every
@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
def test_derivatives_match_differences_of_the_bound(likelihood, own):
    if own and not likelihood.function_axis:
        return
    problem = problem_for(likelihood, 5, 15, 4, own=own)
    _, slopes = exact(problem, likelihood)
    step = 1e-5
    for name, place in (("z", (0, 1, 0)), ("log_scales", (0, 0)), ("log_scales", (0, 1)), ("mean", (0, 3))):
        ends = []
        for sign in (1, -1):
            moved = getattr(problem, name).copy()
            moved[place] += sign * step
            there = problem._replace(**{name: moved})
            ends.append((exact(there, likelihood)[0].evidence, there.moments))
        (up, moments_up), (down, moments_down) = ends
        expected = sum(
            float((slope * (a - b)).sum()) for slope, a, b in zip(slopes, moments_up, moments_down, strict=True)
        )
        assert_allclose(up - down, expected, rtol=1e-5, atol=2e-9)


@several
def test_another_optimiser_finds_no_better_gaussian(likelihood):
    """L-BFGS over means and Cholesky factors of covariances, with plain gradients."""
    c, m, n = 3, 3, 15
    problem = problem_for(likelihood, 6, n, m)
    likelihood = bound_to(likelihood, n)
    solution = SparseVI(**EXACT).solve(problem.prior, problem.y, likelihood=likelihood)
    inducing, cross, variance, prior_mean = problem.moments
    w = np.linalg.solve(np.linalg.cholesky(inducing[0]), cross[0])
    rest = variance[0] - (w**2).sum(axis=0)
    lower = np.tril_indices(m)

    def loss(x):
        mean, factors = x[: c * m].reshape(c, m), np.zeros((c, m, m))
        for k in range(c):
            factors[k][lower] = x[c * m :].reshape(c, -1)[k]
        cov = factors @ factors.swapaxes(1, 2)
        moments = prior_mean + mean @ w, rest + np.einsum("in,kij,jn->kn", w, cov, w)
        value, of_mean, of_variance = np.empty(n), np.empty((n, c)), np.empty((n, c))
        given = (np.ascontiguousarray(each.T) for each in moments)
        likelihood.computation(PointAverage).terms(
            *given, problem.y, likelihood.parameters, value, of_mean, of_variance
        )
        diagonal = factors[:, np.arange(m), np.arange(m)]
        divergence = 0.5 * ((factors**2).sum() + (mean**2).sum() - c * m) - np.log(np.abs(diagonal)).sum()
        slope = 2.0 * np.einsum("in,nk,jn->kij", w, of_variance, w) @ factors - factors
        slope[:, np.arange(m), np.arange(m)] += 1.0 / diagonal
        of_factors = np.array([each[lower] for each in slope])
        return divergence - value.sum(), -np.concatenate([(of_mean.T @ w.T - mean).ravel(), of_factors.ravel()])

    start = np.concatenate([np.zeros(c * m), np.tile(np.eye(m)[lower], c)])
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 5000, "ftol": 1e-14, "gtol": 1e-8})
    assert_allclose(solution.evidence, -found.fun, atol=1e-3)
    assert solution.evidence > -found.fun - 1e-6


@several
def test_averages_of_log_probabilities_match_draws_and_their_derivatives_match_differences(likelihood):
    rng = np.random.default_rng(7)
    n, c = 4, 3
    y, mean, variance = np.array([0, 2, 1, 1]), rng.normal(size=(n, c)), rng.uniform(0.2, 2.0, (n, c))
    likelihood = bound_to(likelihood, n)

    def terms(of_mean=0.0, of_variance=0.0):
        found = np.empty(n), np.empty((n, c)), np.empty((n, c))
        kernel = likelihood.computation(PointAverage).terms
        kernel(mean + of_mean, variance + of_variance, y, likelihood.parameters, *found)
        return found

    value, of_mean, of_variance = terms()
    for k in range(c):
        h = 1e-5 * (np.arange(c) == k)
        assert_allclose((terms(h)[0] - terms(-h)[0]) / 2e-5, of_mean[:, k], rtol=1e-6, atol=1e-9)
        assert_allclose((terms(0.0, h)[0] - terms(0.0, -h)[0]) / 2e-5, of_variance[:, k], rtol=1e-6, atol=1e-9)
    f = mean.T + np.sqrt(variance.T) * rng.normal(size=(20_000, c, n))
    for i in range(n):
        logs = likelihood.at([i]).log_density(f[..., [i]], y[[i]])
        error = 4 * logs.std() / np.sqrt(len(logs))
        assert value[i] < logs.mean() + error
        if likelihood.name == "robust_max":
            assert_allclose(value[i], logs.mean(), atol=error)


def test_likelihoods_without_a_bound_raise_value_error():
    problem = random_sparse(8, 6, 3, 2)
    with pytest.raises(ValueError, match=r"robust_max likelihood needs label noise, but epsilon is 0: .*epsilon=1e-3"):
        SparseVI().solve(problem.prior, problem.y, likelihood=bound_to(RobustMaxLikelihood(), 6, 0.0))
    with pytest.raises(ValueError, match="A softmax likelihood has no such average"):
        SparseVI().solve(problem.prior, problem.y, likelihood=SoftmaxLikelihood())


@several
@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
def test_sparse_vi_converges_for_large_latent_functions(likelihood, own):
    problem = random_sparse(7, 200, 3, 10, own=own)
    problem = problem._replace(y=np.where(problem.x[:, 0] > 0, 0, np.where(problem.x[:, 1] > 0, 1, 2)))
    large = problem._replace(log_scales=problem.log_scales * [0.0, 1.0] + [np.log(1e2), 0.0])
    solution = SparseVI().solve(large.prior, large.y, likelihood=bound_to(likelihood, 200))
    assert solution.convergence.converged


@pytest.mark.variation(but=["multinomial_probit"])
@several
def test_single_steps_raise_the_bound_to_its_maximum(likelihood):
    problem = problem_for(likelihood, 8, 30, 5)
    given = bound_to(likelihood, 30)
    step = SparseVI(**EXACT).one_sweep()
    start, bounds = None, []
    for _ in range(120):
        solution = step.solve(problem.prior, problem.y, start, likelihood=given)
        start = solution.start
        bounds.append(solution.evidence)
        assert solution.convergence.iterations == 1
    assert (np.diff(bounds) >= 0.0).all()
    assert_allclose(bounds[-1], SparseVI(**EXACT).solve(problem.prior, problem.y, likelihood=given).evidence, rtol=1e-7)


def problem_of_planes(seed, n, c, m):
    """Each class is where one of c linear functions is the largest."""
    problem = random_sparse(seed, n, c, m)
    slopes = np.random.default_rng(seed).normal(size=(problem.x.shape[1], c))
    return problem._replace(y=(problem.x @ slopes).argmax(axis=1))


@pytest.mark.variation
def test_solves_with_label_noise_start_from_ep():
    """The start from EP finds a higher maximum in the first problem, and saves steps in the second problem."""
    likelihood, gains, steps = RobustMaxLikelihood(), [], []
    for problem, epsilon in ((random_sparse(3, 60, 3, 10), 0.05), (problem_of_planes(1, 100, 8, 10), 1e-3)):
        given = bound_to(likelihood, len(problem.y), epsilon)
        nothing = np.zeros(2 * len(problem.y) * problem.prior.n_functions)
        cold, from_prior = (SparseVI().solve(problem.prior, problem.y, at, likelihood=given) for at in (None, nothing))
        gains.append(cold.evidence - from_prior.evidence)
        steps.append(cold.convergence.iterations / from_prior.convergence.iterations)
    assert gains[0] > 0.5
    assert_allclose(gains[1], 0.0, atol=1e-3)
    assert steps[1] < 0.6
