"""The bound over all rows: value, derivatives, and inequality."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.gaussians.posterior import posterior_of
from pymc_gpep.rivals.ivm import row_sample, sites_of
from pymc_gpep.rivals.selection.greedy import Candidates
from pymc_gpep.rivals.selection.row_site_rules import ActiveBound
from pymc_gpep.solvers.inducing import Block
from tests.reference import active_rows
from tests.reference.data import random_problem
from tests.reference.exact import orthant_evidence
from tests.rivals.selection.cases import CASES, Case

ROWS = np.array([3, 1, 4, 5])


def moments(case, problem, sites, weight=1.0):
    """The bound, and its derivatives with respect to the prior covariance and mean of all rows."""
    k = problem.K if problem.K.ndim == 3 else problem.K[None]
    bound = ActiveBound(posterior_of(case.prior(problem, ROWS), sites))
    every = np.arange(problem.m.shape[1])
    bars = bound.add(Block(k[:, ROWS], k[:, every, every], problem.m), problem.y, case.likelihood, weight)
    own = bound.slopes()
    of_k, of_mean = np.zeros_like(k), bars.mean.copy()
    of_k[:, ROWS] += bars.cross
    of_k[:, every, every] += bars.variance
    of_k[:, ROWS[:, None], ROWS] += own.covariance
    of_mean[:, ROWS] += own.mean
    return bound.value, of_k, of_mean


def filtered(case, problem):
    grown = Candidates(case.rows(problem), problem.y, case.likelihood, case.rule, len(ROWS), ROWS)
    found = grown.include_first(len(ROWS)).selection
    return found, sites_of(case.rule, found.precision, found.location)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_bound_equals_dense_algebra(case):
    problem = case.problem(10)
    selection, sites = filtered(case, problem)
    value, _, _ = moments(case, problem, sites)
    exact = active_rows.bound(
        case.likelihood.name, problem.K, problem.m, problem.y, ROWS, case.blocks(selection.precision),
        selection.location.T,
    )  # fmt: skip
    assert_allclose(value, exact, atol=2e-4)  # error of the quadrature rule


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("per_class", [False, True])
def test_derivatives_match_differences(case, per_class):
    problem = case.problem(10, per_class=per_class)
    _, sites = filtered(case, problem)
    _, of_k, of_mean = moments(case, problem, sites, 1.7)
    rng = np.random.default_rng(0)
    dk, dm = rng.normal(size=problem.K.shape), rng.normal(size=problem.m.shape)
    dk = dk + dk.swapaxes(-1, -2)
    step = 1e-5
    high, low = (
        moments(case, problem._replace(K=problem.K + at * dk, m=problem.m + at * dm), sites, 1.7)[0]
        for at in (step, -step)
    )
    assert_allclose((high - low) / (2 * step), (of_k * dk).sum() + (of_mean * dm).sum(), rtol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_bound_is_below_the_evidence_for_any_sites(seed):
    case = Case(CASES[0].likelihood, CASES[0].rule)
    problem = random_problem(seed, 6, 3, variance=4.0)
    rng = np.random.default_rng(seed)
    location = rng.normal(size=(3, len(ROWS)))
    sites = sites_of(case.rule, rng.uniform(0.05, 1.0, location.shape), location - location.mean(axis=0))
    value, _, _ = moments(case, problem, sites)
    assert value < orthant_evidence(problem.K, problem.y, problem.m, maxpts=50_000)


def test_stratified_sample_has_classes_in_proportion():
    y = np.repeat([0, 1, 2], [600, 300, 100])
    active = np.arange(0, 1000, 100)
    sample = row_sample(y, active, 110, 0)
    assert len(sample.others) == 100
    assert_allclose(sample.weight, 9.9)
    assert not set(sample.others) & set(active)
    assert_allclose(np.bincount(y[sample.others]), [60, 30, 10], atol=1)
    whole = row_sample(y, active, 1000, 0)
    assert whole.weight == 1.0
    assert len(whole.others) == 990
