"""Separate active rows for each function, against brute force and dense algebra."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from pymc_gpep.gaussians.posterior import posterior_of
from pymc_gpep.rivals.ivm import IVM, sites_of
from pymc_gpep.rivals.selection.greedy import Candidates
from tests.reference.active_rows import MATCHES, bound, separate
from tests.rivals.selection.cases import SEPARATE
from tests.rivals.selection.test_bound import moments

EVERY = pytest.mark.parametrize("case", SEPARATE, ids=str)
FIRST, ACTIVE = [3, 1], 4


def grow(case, problem, score="information", n=12):
    grown = Candidates(case.rows(problem), problem.y, case.likelihood, case.rule, ACTIVE, np.arange(n))
    for place in FIRST:
        grown.include(place)
    while not grown.full:
        places, scores = grown.scores(score)
        best = scores.argmax()
        grown.include(int(places[best]), float(scores[best]))
    return grown


@pytest.mark.variation(but=["softmax-separate-information-True-12"])
@pytest.mark.parametrize(
    ("case", "score", "per_class", "n"),
    [(SEPARATE[0], "expected", False, 6), (SEPARATE[1], "information", True, 12)],
    ids=str,
)
def test_rows_and_sites_match_brute_force(case, score, per_class, n):
    problem = case.problem(n, per_class=per_class)
    grown = grow(case, problem, score, n)
    exact = separate(case.likelihood.name, problem.K, problem.m, problem.y, FIRST, ACTIVE, score)
    found = grown.selection
    assert_array_equal(found.rows, list(dict.fromkeys(row for _, row in exact.pairs)))
    assert_array_equal((found.precision > 0.0).sum(axis=1), ACTIVE)
    assert len(found.rows) > ACTIVE  # functions select different rows
    assert_allclose(found.precision, exact.sites[0][:, found.rows], atol=1e-6)
    assert_allclose(found.location, exact.sites[1][:, found.rows], atol=1e-6)
    mean, cov = grown.moments(np.arange(n))
    assert_allclose(mean, exact.mean, atol=1e-6)
    assert_allclose(cov.diagonal(axis1=1, axis2=2).T, exact.covariance.diagonal().reshape(3, n), atol=1e-6)


@EVERY
def test_new_candidates_have_the_moments_of_earlier_candidates(case):
    problem = case.problem()
    grown = grow(case, problem)
    before = grown.moments(np.arange(12))
    waiting = grown.waiting.copy()
    grown.replace(np.arange(12), np.arange(12))
    for found, own in zip(grown.moments(np.arange(12)), before, strict=True):
        assert_allclose(found, own, atol=1e-10)
    assert_array_equal(grown.waiting, waiting)
    selection = grown.selection
    dense = posterior_of(
        case.prior(problem, selection.rows), sites_of(case.rule, selection.precision, selection.location)
    )
    mean, cov = dense.predict(problem.K[:, :, selection.rows], problem.K.diagonal(axis1=1, axis2=2), problem.m)
    assert_allclose(before[0], mean, atol=1e-9)
    assert_allclose(before[1].diagonal(axis1=1, axis2=2), cov.diagonal(axis1=1, axis2=2), atol=1e-9)


@EVERY
def test_iterated_sites_match_tilted_moments_of_the_functions_of_their_rows(case):
    problem = case.problem()
    ivm = IVM(active=ACTIVE, sites="separate", criterion="information")
    found = ivm.solve(case.rows(problem), problem.y, likelihood=case.likelihood)
    assert found.converged
    assert np.isnan(found.active_evidence)
    posterior, rows = found.posterior, found.selection.rows
    there = posterior.sites.precision > 0.0
    assert_array_equal(there.sum(axis=1), ACTIVE)
    assert not there.all()
    assert_allclose(posterior.sites.location[~there], 0.0, atol=1e-190)
    mean, cov = posterior.marginals()
    match = MATCHES[case.likelihood.name, "independent"]
    for i, row in enumerate(rows):
        pi, nu = posterior.sites.precision[:, i], posterior.sites.location[:, i]
        variance = 1.0 / (1.0 / cov[i].diagonal() - pi)
        cavity = variance * (mean[:, i] / cov[i].diagonal() - nu)
        precision, location = match(cavity, np.diag(variance), int(problem.y[row]))
        assert_allclose(np.where(there[:, i], precision.diagonal(), 0.0), pi, atol=2e-5)
        assert_allclose(np.where(there[:, i], location, 0.0), nu, atol=2e-5)


@EVERY
def test_bound_with_missing_sites_matches_differences(case):
    problem = case.problem(10)
    rng = np.random.default_rng(2)
    precision, location = rng.uniform(0.05, 0.6, (3, 4)), rng.normal(size=(3, 4))
    precision[[0, 1, 2, 2], [1, 0, 2, 3]] = location[[0, 1, 2, 2], [1, 0, 2, 3]] = 0.0
    sites = sites_of(case.rule, precision, location)
    value, of_k, of_mean = moments(case, problem, sites)
    given = case.likelihood.name, problem.K, problem.m, problem.y, [3, 1, 4, 5]
    assert_allclose(value, bound(*given, case.blocks(precision), location.T), atol=5e-4)  # error of the quadrature rule
    dk, dm = rng.normal(size=problem.K.shape), rng.normal(size=problem.m.shape)
    dk = dk + dk.swapaxes(-1, -2)
    high, low = (
        moments(case, problem._replace(K=problem.K + step * dk, m=problem.m + step * dm), sites)[0]
        for step in (1e-5, -1e-5)
    )
    assert_allclose((high - low) / 2e-5, (of_k * dk).sum() + (of_mean * dm).sum(), rtol=1e-6)


@EVERY
def test_small_pool_gives_every_function_equally_many_rows(case):
    problem = case.problem(40)
    ivm = IVM(active=15, sites="separate", pool=8, polish=False)
    chosen, again = (
        ivm.solve(case.rows(problem), problem.y, likelihood=case.likelihood, random_seed=3).selection for _ in range(2)
    )
    assert_array_equal((chosen.precision > 0.0).sum(axis=1), 15)
    assert len(set(chosen.rows)) == len(chosen.rows)
    assert_array_equal(chosen.rows, again.rows)


def test_shared_covariance_selects_the_rows_of_equal_covariances():
    """One covariance for all functions and three equal covariances select the same rows."""
    case = SEPARATE[0]
    problem = case.problem(30, per_class=False)
    ivm = IVM(active=8, sites="separate", polish=False)
    one, three = (
        ivm.solve(case.rows(each), problem.y, likelihood=case.likelihood).selection
        for each in (problem, problem._replace(K=np.stack([problem.K] * 3)))
    )
    assert_array_equal(one.rows, three.rows)
    assert_allclose(one.precision, three.precision, atol=1e-12)
