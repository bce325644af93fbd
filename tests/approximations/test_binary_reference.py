"""Approximations of one latent function, against dense versions written from the formulas of the paper."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.approximations.binary import KINDS, METHODS, BinaryProblem, random_binary
from tests.reference.binary_ep import binary_ep
from tests.reference.binary_fv import binary_fv
from tests.reference.binary_gaussian import jensen_bound
from tests.reference.binary_kl import binary_kl
from tests.reference.binary_laplace import binary_laplace
from tests.reference.binary_links import LINKS
from tests.reference.binary_lr import binary_lr
from tests.reference.binary_tap import binary_naive_tap, binary_tap, tap_residual
from tests.reference.binary_vb import binary_vb
from tests.reference.stored import stored

DENSE = {
    "laplace": binary_laplace,
    "ep": binary_tap,
    "kl": binary_kl,
    "vb": binary_vb,
    "fv": binary_fv,
    "tap_naive": binary_naive_tap,
}
ERROR = {"kl": 1e-5, "vb": 1e-4}
"""Tolerance of moments where the reference is a general optimiser. The tolerance of the maximum is its square."""


def solve(method, problem, kind, **options):
    solution = METHODS[method](**options).solve(*problem, likelihood=kind.likelihood)
    assert solution.convergence.converged, str(solution.convergence)
    return solution


def of_points(n, variance):
    return random_binary(5, n, variance=variance, jitter=0.05)


@stored
def dense_numbers(method, likelihood, n, variance):
    """Evidence and Jensen's bound, each n times, then mean, variances, weights α and site precisions, (6, n).

    FV has neither site precisions nor the Gaussian of the bound: these rows are zero.
    """
    given, link = of_points(n, variance).reference, LINKS[likelihood]
    dense = DENSE[method](*given, link)
    bound, w = (0.0, 0.0) if method == "fv" else (jensen_bound(*given, dense.alpha, dense.w, link), dense.w)
    numbers = dense.evidence, bound, dense.mean, dense.covariance.diagonal(), dense.alpha, w
    return np.stack([np.broadcast_to(each, n) for each in numbers])


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("method", DENSE)
@pytest.mark.parametrize(("n", "variance"), [(1, 3.0), (4, 10.0)])
def test_solution_equals_the_dense_reference(kind, method, n, variance):
    problem = of_points(n, variance)
    (evidence, *_), (bound, *_), mean, variances, alpha, w = dense_numbers(method, str(kind), n, variance)
    solution = solve(method, problem, kind, tolerance=1e-10)
    error = ERROR.get(method, 1e-8)
    if method != "tap_naive":  # naive TAP has no evidence for several points
        assert solution.evidence == pytest.approx(evidence, abs=max(1e-9, error**2))
    assert_allclose(solution.mean[0], mean, atol=error * np.sqrt(variance))
    assert_allclose(solution.cov[:, 0, 0], variances, atol=error * variance)
    assert_allclose(solution.posterior.weights[0], alpha, atol=error)
    if method != "fv":
        assert_allclose(solution.posterior.precision[0], w, atol=error)
        assert solution.lower_bound == pytest.approx(bound, abs=max(1e-8, 10 * error))


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("noise", [0.5, 1.3])
def test_label_regression_equals_the_dense_reference(kind, noise):
    problem = random_binary(2, 6, variance=4.0)
    dense = binary_lr(*problem.reference, kind.link, noise)
    solution = solve("lr", problem, kind, least=noise, most=noise)
    assert solution.evidence == pytest.approx(dense.evidence, abs=1e-9)
    assert_allclose(solution.mean[0], dense.mean, atol=1e-10)
    assert_allclose(solution.cov[:, 0, 0], dense.covariance.diagonal(), atol=1e-10)


def test_ep_equals_the_textbook_algorithm():
    problem = random_binary(1, 15, variance=8.0)
    dense = binary_ep(*problem.reference)
    solution = solve("ep", problem, KINDS[0], tolerance=1e-10)
    assert solution.evidence == pytest.approx(dense.evidence, abs=1e-9)
    assert_allclose(solution.mean[0], dense.mean, atol=1e-8)
    assert_allclose(solution.cov[:, 0, 0], dense.covariance.diagonal(), atol=1e-8)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_tap_equations_hold_at_the_fixed_point_of_ep(kind):
    problem = random_binary(3, 5, variance=6.0, jitter=0.05)
    solution = solve("ep", problem, kind, tolerance=1e-11)
    b, w = solution.posterior.weights[0], solution.posterior.precision[0]
    assert tap_residual(*problem.reference, b, w, kind.link) < 1e-8
    assert tap_residual(*problem.reference, b, 1.01 * w, kind.link) > 1e-4


def test_naive_tap_equals_ep_for_a_diagonal_covariance():
    """For diagonal K, naive TAP has the cavities of EP."""
    k = np.diag([0.5, 3.0, 40.0])
    problem = BinaryProblem(k, np.array([[0.2, -1.0, 3.0]]), np.array([0, 1, 0]))
    for kind in KINDS:
        ep, naive = (solve(method, problem, kind, tolerance=1e-11) for method in ("ep", "tap_naive"))
        assert naive.evidence == pytest.approx(ep.evidence, abs=1e-10)
        assert_allclose(naive.posterior.precision, ep.posterior.precision, atol=1e-9)
