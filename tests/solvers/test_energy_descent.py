"""The last step of the fallback sequence: it has the fixed points of EP, and its energy decreases."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.approximations import NestedEP
from pymc_gpep.approximations.nested_ep import InnerSitePosterior, energy_descent
from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.kernels.methods.energy_descent import matching_cavity, site_energies
from pymc_gpep.kernels.status import CONVERGED, OUT_OF_ITERATIONS
from pymc_gpep.solvers.problem import History, Problem
from tests.reference import flat_energy
from tests.reference.data import iris, random_problem, squared_exponential


def descend(problem, sites, limit=500):
    """Run energy descent. Return evidence, status, posteriors, sites and posterior mean."""
    n = problem.y.size
    history = History(limit)
    of = Problem(DensePrior(problem.K.reshape(-1, n, n), problem.m), problem.m, problem.y)
    posterior = InnerSitePosterior(of)
    evidence, status = energy_descent(posterior, sites, history, energies=site_energies, tolerance=1e-9, damping=0.7)
    return evidence, status, len(history), posterior.mean, history.array


def test_tilted_moments_of_the_matching_cavity_equal_the_given_moments():
    rng = np.random.default_rng(0)
    mean, variance = 5 * rng.normal(size=200), np.exp(3 * rng.normal(size=200))
    a, b = flat_energy.matching_cavity(mean, variance)
    found = np.array([matching_cavity(m, v) for m, v in zip(mean, variance, strict=True)])
    assert (a == 0).any()
    assert (a > 0).any()
    assert_allclose(found[:, 0], a, rtol=1e-8)
    assert_allclose(found[:, 1], b, rtol=1e-8)
    again = flat_energy.tilted(a[a > 0], b[a > 0])
    assert_allclose(again[0], mean[a > 0], rtol=1e-6)
    assert_allclose(again[1], variance[a > 0], rtol=1e-6)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("c", "variance", "per_class"), [(2, 1.0, False), (3, 100.0, False), (4, 10.0, True)])
def test_descent_reaches_the_fixed_point_of_ep(seed, c, variance, per_class):
    problem = random_problem(seed, 12, c, variance=variance, per_class=per_class, with_mean=True)
    expected = NestedEP(tolerance=1e-11).solve(problem.K, problem.m, problem.y)
    sites = np.zeros((2, 12, c - 1))
    evidence, status, _, mean, _ = descend(problem, sites)
    assert status == CONVERGED
    assert evidence == pytest.approx(expected.evidence, abs=1e-9)
    assert_allclose(mean, expected.mean, atol=1e-6 * np.sqrt(variance))
    assert_allclose(sites.ravel(), expected.start, atol=1e-7)


def test_descent_converges_from_any_start():
    problem = random_problem(3, 12, 3, variance=50.0)
    expected = NestedEP(tolerance=1e-11).solve(problem.K, problem.m, problem.y)
    rng = np.random.default_rng(0)
    for _ in range(5):
        sites = np.stack([rng.uniform(0, 1, (12, 2)), 3 * rng.normal(size=(12, 2))])
        evidence, status, *_ = descend(problem, sites)
        assert status == CONVERGED
        assert evidence == pytest.approx(expected.evidence, abs=1e-8)


def test_limit_on_iterations_is_kept():
    problem = random_problem(3, 12, 3, variance=50.0)
    _, status, posteriors, _, history = descend(problem, np.zeros((2, 12, 2)), limit=5)
    assert status == OUT_OF_ITERATIONS
    assert posteriors == 5
    assert np.isfinite(history).all()


def test_small_steps_converge_where_ep_cycles():
    X, y = iris()
    k = squared_exponential(X, variance=np.exp(8), lengthscale=np.exp(2.5)) + 1e-8 * np.eye(150)
    undamped = {"depth": 0, "damping": 1.0}
    stuck = NestedEP(**undamped, max_iterations=200, ladder=False).solve(k, np.zeros((3, 150)), y)
    solution = NestedEP(**undamped).solve(k, np.zeros((3, 150)), y)
    assert stuck.convergence.status == OUT_OF_ITERATIONS
    assert solution.convergence.converged
    assert solution.convergence.scheme == NestedEP.schemes[1]
    assert solution.evidence == pytest.approx(-27.22167737, abs=1e-7)


def test_fallback_sequence_reaches_its_last_step():
    """No iteration reaches a tolerance below rounding, so that every step is tried. The last result is still right."""
    problem = random_problem(1, 10, 3, variance=10.0)
    expected = NestedEP(tolerance=1e-9).solve(problem.K, problem.m, problem.y)
    solution = NestedEP(tolerance=1e-18).solve(problem.K, problem.m, problem.y)
    assert solution.convergence.scheme == NestedEP.schemes[2]
    assert solution.convergence.status == OUT_OF_ITERATIONS
    assert solution.evidence == pytest.approx(expected.evidence, abs=1e-9)
    assert_allclose(solution.mean, expected.mean, atol=1e-6)


def test_message_names_all_fallback_steps():
    assert len(NestedEP.schemes) == 3
