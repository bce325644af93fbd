"""EP of a softmax against a dense fixed point and exact evidences, and the accuracy of its gradients."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.approximations import Laplace, QEPSoftmax
from pymc_gpep.kernels.status import CONVERGED
from pymc_gpep.rivals.class_independent_ep import QIEPSoftmax
from tests.reference.data import iris, random_problem, squared_exponential
from tests.reference.softmax_ep import coupled_precision, nearest_site, softmax_tilted
from tests.reference.tilted import directions


def sites(solution):
    """Site precisions and locations, (c, n) each."""
    c, n = solution.mean.shape
    pi, nu = solution.start.reshape(2, n, c)
    return pi.T, nu.T


@pytest.mark.parametrize("per_class", [False, True])
@pytest.mark.parametrize(("c", "variance", "points", "error"), [(2, 10.0, 2001, 1e-7), (3, 3.0, 301, 1e-6)])
def test_qep_of_a_softmax_reaches_the_fixed_point_of_dense_ep(c, variance, points, error, per_class):
    """The reference combines dense algebra with brute-force tilted moments. Moments and evidence agree."""
    n = 5
    problem = random_problem(2, n, c, variance=variance, per_class=per_class, with_mean=True)
    solution = QEPSoftmax(tolerance=1e-10).solve(problem.K, problem.m, problem.y)
    assert solution.convergence.converged
    pi, nu = sites(solution)
    prior, precision = np.zeros((2, c, n, c, n))
    prior[range(c), :, range(c), :] = problem.K
    for i in range(n):
        precision[:, i, :, i] = np.diag(pi[:, i]) - np.outer(pi[:, i], pi[:, i]) / pi[:, i].sum()
    size = c * n
    prior, precision = prior.reshape(size, size), precision.reshape(size, size)
    inner = np.eye(size) + prior @ precision
    cov = np.linalg.solve(inner, prior)
    mean = problem.m.ravel() + cov @ (nu.ravel() - precision @ problem.m.ravel())
    assert_allclose(solution.mean, mean.reshape(c, n), atol=1e-8)
    shift = nu.ravel() - precision @ problem.m.ravel()
    evidence = 0.5 * shift @ cov @ shift - 0.5 * np.linalg.slogdet(inner)[1]
    evidence += problem.m.ravel() @ (nu.ravel() - 0.5 * precision @ problem.m.ravel())
    for i, y in enumerate(problem.y):
        away = directions(int(y), c).T
        own = away @ cov.reshape(c, n, c, n)[:, i, :, i] @ away.T
        centre = away @ mean.reshape(c, n)[:, i]
        site, location = coupled_precision(pi[:, i], int(y)), -np.delete(nu[:, i], y)
        cavity = np.linalg.inv(np.linalg.inv(own) - site)
        cavity_mean = cavity @ (np.linalg.solve(own, centre) - location)
        tilted = softmax_tilted(cavity_mean, cavity, points=points)
        assert_allclose(tilted.mean, centre, atol=error)
        assert_allclose(tilted.covariance, own, atol=error)
        evidence += tilted.log_normaliser
        evidence -= 0.5 * (np.linalg.slogdet(own)[1] - np.linalg.slogdet(cavity)[1])
        evidence -= 0.5 * (centre @ np.linalg.solve(own, centre) - cavity_mean @ np.linalg.solve(cavity, cavity_mean))
    assert solution.evidence == pytest.approx(evidence, abs=10 * error)


def test_sites_of_four_classes_match_moments_best():
    problem = random_problem(4, 4, 4, variance=3.0, with_mean=True)
    solution = QEPSoftmax(tolerance=1e-10).solve(problem.K, problem.m, problem.y)
    pi, nu = sites(solution)
    y, i = int(problem.y[0]), 0
    away = directions(y, 4).T
    own, centre = away @ solution.cov[i] @ away.T, away @ solution.mean[:, i]
    cavity = np.linalg.inv(np.linalg.inv(own) - coupled_precision(pi[:, i], y))
    mean = cavity @ (np.linalg.solve(own, centre) + np.delete(nu[:, i], y))
    tilted = softmax_tilted(mean, cavity, points=81)
    assert_allclose(tilted.mean, centre, atol=1e-6)
    nearest, _ = nearest_site(y, cavity, tilted.covariance, starts=3)
    assert_allclose(coupled_precision(pi[:, i], y), coupled_precision(nearest, y), atol=1e-4)


@pytest.mark.parametrize(
    ("approximation", "c", "variance", "error", "per_class"),
    [
        (QEPSoftmax(tolerance=1e-11, nodes=1), 2, 10.0, 1e-6, True),
        (QEPSoftmax(tolerance=1e-11, nodes=2000), 3, 1.0, 1e-6, False),
        (QEPSoftmax(tolerance=1e-11, nodes=500), 4, 10.0, 0.01, True),
        (QIEPSoftmax(tolerance=1e-11), 2, 10.0, 1e-5, False),
        (QIEPSoftmax(tolerance=1e-11), 3, 100.0, 1e-5, True),
        (QIEPSoftmax(tolerance=1e-11), 7, 1.0, 0.005, False),
    ],
)
def test_gradients_match_differences_of_the_evidence(approximation, c, variance, error, per_class):
    """Gradients are exact if sites can match all moments. With four classes the projection leaves 1 % at most.

    Class-independent sites match the means and variances of all classes. For seven classes the quadrature has few nodes
    per dimension.
    """
    problem = random_problem(3, 6, c, variance=variance, per_class=per_class, with_mean=True)
    k = problem.K.reshape(-1, 6, 6) + 0.01 * variance * np.eye(6)

    def run(k, mean):
        outcome = approximation.run(k, mean, problem.y, np.zeros(12 * c), gradient=True)
        assert outcome.status == CONVERGED
        return outcome

    found, step = run(k, problem.m), 1e-4
    direction = np.random.default_rng(1).normal(size=problem.m.shape)
    for own, dk, dm in (
        (np.sum(found.gradient * k), k, 0.0),
        (np.sum(found.gradient_mean * direction), 0.0, direction),
    ):
        up, down = (run(k + h * dk, problem.m + h * dm).evidence for h in (step, -step))
        assert own == pytest.approx((up - down) / (2 * step), rel=error, abs=1e-6)


def test_evidence_is_closer_to_exact_than_laplace():
    """Three points of three classes. The exact evidence is an average over draws from the prior."""
    problem = random_problem(6, 3, 3, variance=4.0, with_mean=True)
    rng = np.random.default_rng(0)
    root = np.linalg.cholesky(problem.K)
    f = problem.m + np.einsum("ij,skj->ski", root, rng.normal(size=(800_000, 3, 3)))
    log_p = f[:, problem.y, range(3)].sum(axis=1) - np.logaddexp.reduce(f, axis=1).sum(axis=1)
    exact, error = np.log(np.exp(log_p).mean()), np.exp(log_p).std() / np.exp(log_p).mean() / np.sqrt(len(f))
    assert error < 0.003
    found, laplace = (kind.solve(problem.K, problem.m, problem.y).evidence for kind in (QEPSoftmax(), Laplace()))
    assert abs(found - exact) < 0.01
    assert abs(laplace - exact) > 3 * abs(found - exact)


def test_warm_start_reaches_the_same_solution_sooner():
    X, y = (x[::5] for x in iris())
    k = squared_exponential(X, variance=9.0, lengthscale=1.5) + 1e-6 * np.eye(y.size)
    cold = QEPSoftmax().solve(k, np.zeros((3, y.size)), y)
    near = QEPSoftmax().solve(1.05 * k, np.zeros((3, y.size)), y, cold.start)
    again = QEPSoftmax().solve(1.05 * k, np.zeros((3, y.size)), y)
    assert near.convergence.iterations < again.convergence.iterations
    assert near.evidence == pytest.approx(again.evidence, abs=1e-6)


def test_evidence_correction_for_scalar_factors_is_refused():
    problem = random_problem(0, 4, 3)
    approximation = QEPSoftmax()
    with pytest.raises(TypeError, match="evidence of qep for a softmax has no correction"):
        approximation.tilted_factors(approximation.solve(problem.K, problem.m, problem.y))


@pytest.mark.parametrize(("option", "value"), [("nodes", 0), ("tolerance", -1.0), ("damping", 1.5)])
def test_invalid_options_raise_errors(option, value):
    with pytest.raises(ValueError, match=option):
        QEPSoftmax(**{option: value})
