"""How means of binary classifiers follow a small force, by differences of solves and as `response` has it."""

import numpy as np
import pytest

from tests.approximations.binary import KINDS, METHODS, random_binary

ERROR = {"ep": 0.2, "kl": 0.4, "vb": 0.1, "lr": 0.2}
"""Relative, at a prior variance of 20; KL's precisions change the most, and label regression's noise does."""


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("variance", [1.0, 20.0])
def test_response_says_how_means_move(method, kind, variance):
    """Of modes to the last digits; of others right but for how precisions change, which is of a higher order."""
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
