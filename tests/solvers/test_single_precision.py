"""Sweeps with matrices in single precision: accuracy, conditions, and the last sweep in double precision."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.approximations import NestedEP, nested_ep
from pymc_gpep.approximations.nested_ep import InnerSitePosterior, SinglePrecision
from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.kernels.status import CONVERGED
from pymc_gpep.solvers.problem import Problem
from tests.reference.data import random_problem

EPS = np.finfo(np.float32).eps


def given(n, per_class=False, variance=2.0):
    found = random_problem(1, n, 3, variance=variance, per_class=per_class, with_mean=True)
    return Problem(DensePrior(found.K.reshape(-1, n, n), found.m), found.m, found.y)


@pytest.mark.parametrize("per_class", [False, True])
@pytest.mark.parametrize("small", [1.0, 1e-30, 0.0])
def test_posterior_in_single_precision_equals_double_precision_up_to_rounding(per_class, small):
    problem = given(60, per_class)
    rng = np.random.default_rng(2)
    sites = np.array([rng.uniform(0.1, 0.9, (60, 2)), rng.standard_normal((60, 2))])
    sites[:, rng.uniform(size=(60, 2)) < 0.5] *= np.array([small, np.sqrt(small)])[:, None]
    exact, rounded = InnerSitePosterior(problem), InnerSitePosterior(problem).in_single_precision
    values = [posterior.take(sites) for posterior in (exact, rounded)]
    error = EPS * np.trace(problem.k, axis1=1, axis2=2).max()
    algebra = rounded.algebra
    assert algebra.inverses.dtype == algebra.p.dtype == algebra.work.dtype == np.float32
    assert values[0][0]
    assert values[1][0]
    assert_allclose(values[1][1], values[0][1], rtol=error)
    sd = np.sqrt(np.diagonal(exact.cov, axis1=1, axis2=2))
    assert np.abs((rounded.mean - exact.mean) / sd.T).max() < error
    assert np.abs((rounded.cov - exact.cov) / sd[:, :, None] / sd[:, None]).max() < error


def solved(monkeypatch, problem, smallest, **options):
    """The result, and the precision of each sweep."""
    seen = []

    class Noted(InnerSitePosterior):
        def take(self, sites):
            seen.append(self.algebra.p.dtype)
            return super().take(sites)

    monkeypatch.setattr(nested_ep, "_FEW", smallest)
    monkeypatch.setattr(nested_ep, "InnerSitePosterior", Noted)
    k, mean, labels = problem.k, problem.mean, problem.labels
    c, n = mean.shape
    return NestedEP(**options).run(k, mean, labels, np.zeros(2 * n * (c - 1)), gradient=True), seen


@pytest.mark.parametrize("tolerance", [1e-8, 1e-3, 0.5])
def test_final_sites_are_float64(monkeypatch, tolerance):
    problem = given(60)
    mixed, seen = solved(monkeypatch, problem, 1, tolerance=tolerance)
    alone, only = solved(monkeypatch, problem, 1000, tolerance=tolerance)
    assert mixed.status == alone.status == CONVERGED
    assert np.float32 in seen
    assert seen[-1] == np.float64
    assert np.float32 not in only
    assert_allclose(mixed.evidence, alone.evidence, atol=20 * tolerance**2 + 1e-12)
    if tolerance == 1e-8:
        assert_allclose(mixed.start, alone.start, atol=1e-6)
        assert_allclose(mixed.gradient, alone.gradient, atol=1e-7)


def test_sites_below_the_rounding_of_single_precision_are_detected(monkeypatch):
    """The rounding of single precision exceeds the sites here.

    The default of the limit `_USELESS` forbids single precision. Then the test removes the limit.
    """
    problem = given(40, variance=1e6)
    alone, only = solved(monkeypatch, problem, 1, tolerance=1e-6)
    assert np.float32 not in only
    monkeypatch.setattr(nested_ep, "_USELESS", np.inf)
    forced, seen = solved(monkeypatch, problem, 1, tolerance=1e-6)
    assert np.float32 in seen
    assert forced.status == alone.status == CONVERGED
    assert_allclose(forced.evidence, alone.evidence, atol=1e-6)


@pytest.mark.parametrize(
    ("residuals", "usable"),
    [
        ([1.0, 2.0, 0.3], True),
        ([1.0, 1e-6], False),
        ([1.0, np.inf], False),
        ([1.0, np.nan], False),
        ([1.0, 1.1, 1.2], True),
        ([1.0, 1.1, 1.2, 1.3], False),
    ],
)
def test_single_precision_ends_if_residuals_are_small_or_do_not_decrease(residuals, usable):
    single = SinglePrecision(given(200), True, 1e-6)
    assert single.usable
    for residual in residuals:
        single.note(-1.0, residual)
    assert single.usable == usable


def test_first_sweep_from_a_given_start_has_double_precision():
    single = SinglePrecision(given(200), False, 1e-6)
    assert not single.usable
    single.note(-1.0, 0.5)
    assert single.usable


def test_solve_from_its_own_solution_takes_at_most_two_iterations(monkeypatch):
    problem = given(60)
    monkeypatch.setattr(nested_ep, "_FEW", 1)
    solution = NestedEP().solve(problem.k, problem.mean, problem.labels)
    again = NestedEP().solve(problem.k, problem.mean, problem.labels, solution.start)
    assert again.convergence.iterations <= 2


def test_failed_sweep_ends_single_precision():
    single = SinglePrecision(given(200), True, 1e-6)
    single.note(np.nan, 0.5)
    assert not single.usable
