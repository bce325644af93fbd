"""Linear response of the means of binary classifiers, by `response` and by differences of solves."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.likelihoods.local_computations import AverageLogDensity
from pymc_gpep.log_posteriors.latent_functions import leave_one_out_moments
from tests.approximations.binary import KINDS, METHODS, random_binary

ERROR = {"ep": 0.2, "kl": 0.2, "vb": 0.1, "lr": 0.2}
"""Relative errors allowed at a prior variance of 20. Precisions of KL and the noise of label regression change most."""


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("variance", [1.0, 20.0])
def test_linear_response_of_means_matches_differences(method, kind, variance):
    """The response of a mode is exact. For other means, the response ignores changes of the site precisions."""
    problem = random_binary(4, 10, variance=variance, jitter=0.05)
    solver = METHODS[method](tolerance=1e-10)
    solution = solver.solve(*problem, likelihood=kind.likelihood)
    i, step = 4, 1e-4
    shift = step * problem.k[i]
    up, down = (
        solver.solve(problem.k, problem.mean + sign * shift, problem.y, likelihood=kind.likelihood).mean[0]
        for sign in (1, -1)
    )
    moved = (up - down) / (2 * step)
    k = solution.posterior.prior.k
    response = solver.response(solution).joint_covariance(k, k)[0, :, 0, i]
    exact = method in ("laplace", "tap_naive", "fv") or (method == "vb" and kind.link.name == "probit")
    assert np.linalg.norm(response - moved) < (1e-6 if exact else ERROR[method]) * np.linalg.norm(moved)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_response_of_kl_with_varying_variances_equals_shift_of_means(kind):
    """With the squared covariances as responses of the variances, the formula gives the shift of the means exactly."""
    problem = random_binary(4, 10, variance=20.0, jitter=0.05)
    solver = METHODS["kl"](tolerance=1e-10)
    solution = solver.solve(*problem, likelihood=kind.likelihood)
    mean, variance, step = solution.mean[0].copy(), solution.cov[:, 0, 0].copy(), 1e-4

    def slopes(factor):
        g = np.empty((3, 10))
        solution.likelihood.computation(AverageLogDensity).terms(
            mean, factor * variance, problem.y, np.empty((0, 10)), g
        )
        return g[1:]

    across, along = (slopes(1.0 + step) - slopes(1.0 - step)) / (2.0 * step * variance)
    precision = np.linalg.inv(problem.k) + np.diag(solution.posterior.precision[0])
    square = 2.0 * np.linalg.inv(precision) ** 2
    follow = np.linalg.solve(np.eye(10) - square * along, square * across)
    expected = np.linalg.solve(precision - across[:, None] * follow, np.eye(10))
    up, down = (
        solver.solve(problem.k, problem.mean + sign * step * problem.k[4], problem.y, likelihood=kind.likelihood)
        for sign in (1, -1)
    )
    assert_allclose((up.mean[0] - down.mean[0]) / (2.0 * step), expected[4], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_cavities_from_the_response_of_kl_are_nearer_to_refits_than_cavities_from_the_covariance_of_kl(kind):
    n = 15
    problem = random_binary(5, n, variance=200.0, jitter=0.05)
    solver = METHODS["kl"]()
    solution = solver.solve(*problem, likelihood=kind.likelihood)
    refitted = np.empty(n)
    for i in range(n):
        others = np.delete(np.arange(n), i)
        again = solver.solve(
            problem.k[np.ix_(others, others)], problem.mean[:, others], problem.y[others], likelihood=kind.likelihood
        )
        refitted[i] = problem.mean[0, i] + problem.k[i, others] @ again.posterior.weights[0]
    own, _ = solution.posterior.cavities(solution.mean, solution.cov)
    found, _ = leave_one_out_moments(solver, solution)
    errors = [np.sqrt(np.mean((mean[:, 0] - refitted) ** 2)) for mean in (found, own)]
    assert errors[0] < 0.9 * errors[1]
