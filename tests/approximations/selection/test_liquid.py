"""Sites that move until their rows are frozen, against EP of all rows and against sites that never move."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.approximations import IVM, approximator
from pymc_gpep.approximations.ivm import sites_of
from pymc_gpep.approximations.selection.greedy import Candidates
from pymc_gpep.approximations.selection.selection import DenseRows
from pymc_gpep.gaussians.posteriors import posterior_of
from tests.approximations.selection.cases import CASES
from tests.reference.data import random_problem


@pytest.mark.variation(
    but=["complementary_log_log-independent", "multinomial_probit-coupled", "multinomial_probit-utility"]
)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_with_all_rows_moving_they_come_to_the_fixed_point_of_all_rows(case):
    problem = case.problem()
    grown = Candidates(case.rows(problem), problem.y, case.likelihood, case.rule, 12, np.arange(12), 12, 2)
    grown.include_first(12)
    assert grown.growths[0].settle(200) < 1e-8
    k = problem.K if problem.K.ndim == 3 else problem.K[None]
    method = approximator(case.rule.method, case.likelihood, {"tolerance": 1e-9})
    dense = method.solve(k, problem.m, problem.y, likelihood=case.likelihood)
    assert dense.convergence.converged
    assert_allclose(grown.growths[0].mean, dense.mean, atol=1e-6)
    assert_allclose(grown.growths[0].covariance(), dense.cov, atol=1e-6)


@pytest.mark.parametrize("case", [case for case in CASES if case.c == 3], ids=str)
@pytest.mark.parametrize("per_class", [False, True])
def test_moments_are_those_of_the_sites_while_rows_freeze_and_candidates_change(case, per_class):
    problem = case.problem(40, per_class=per_class)
    grown = Candidates(case.rows(problem), problem.y, case.likelihood, case.rule, 15, np.arange(30), 4, 2)
    for row in range(15):
        grown.include(row)
        if row == 9:
            grown.replace(np.arange(20, 30), np.arange(30, 40))
    selection = grown.selection
    dense = posterior_of(
        case.prior(problem, selection.rows), sites_of(case.rule, selection.precision, selection.location)
    )
    k = problem.K if per_class else problem.K[None]
    at = grown.rows
    exact = dense.predict(k[:, at[:, None], selection.rows], k.diagonal(axis1=1, axis2=2)[:, at], problem.m[:, at])
    assert_allclose(grown.growths[0].mean, exact[0], atol=1e-9)
    assert_allclose(grown.growths[0].covariance(), exact[1], atol=1e-9)


def test_a_choice_keeps_rows_that_still_move_among_candidates():
    problem = random_problem(5, 80, 3, variance=9.0)
    rows = DenseRows(problem.K, problem.m)
    found = IVM(active=20, pool=15, liquid=10).solve(rows, problem.y, random_seed=1)
    order = found.selection.rows
    assert len(np.unique(order)) == 20

    def away_from_fixed_point(liquid: int) -> float:
        rule = IVM().rule(found.likelihood)
        grown = Candidates(rows, problem.y, found.likelihood, rule, 20, order, liquid, 2).include_first(20)
        return float(np.abs(grown.growths[0].mean[:, :20] - found.posterior.mean).max())

    assert away_from_fixed_point(20) < 0.1 * away_from_fixed_point(1)


def test_rows_that_move_take_no_place_of_those_that_are_scored(monkeypatch):
    case = CASES[0]
    problem = case.problem(40)
    counts = []
    scores = Candidates.scores

    def counted(self, name):
        places, found = scores(self, name)
        counts.append(len(places))
        return places, found

    monkeypatch.setattr(Candidates, "scores", counted)
    IVM(active=12, pool=8, liquid=5, polish=False, criterion="information").solve(case.rows(problem), problem.y)
    assert min(counts) >= 8
