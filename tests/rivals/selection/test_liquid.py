"""Moving window of active rows: sites move until their rows are frozen.

References are EP of all rows and fixed sites.
"""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.approximations import approximator
from pymc_gpep.gaussians.posterior import posterior_of
from pymc_gpep.rivals.ivm import IVM, sites_of
from pymc_gpep.rivals.selection.greedy import Candidates, Reweighting
from pymc_gpep.rivals.selection.row_site_rules import DenseRows
from tests.reference.data import random_problem
from tests.rivals.selection.cases import CASES


@pytest.mark.variation(
    but=["complementary_log_log-independent", "multinomial_probit-coupled", "multinomial_probit-utility"]
)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_sites_of_all_moving_rows_reach_the_fixed_point(case):
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


def test_weight_of_the_latest_row_is_the_lowest_and_grows_with_the_number_of_active_rows():
    weights = Reweighting(0.4, 0.1, 4)
    assert_allclose(weights(1, 1), [0.4])
    latest = 1.0 - 0.6 * np.exp(-0.1 * 11)
    between = [latest + k * (1.0 - latest) / 4 for k in (3, 2, 1, 0)]
    assert_allclose(weights(6, 12), [1.0, 1.0, *between])


@pytest.mark.variation(
    but=["complementary_log_log-independent", "multinomial_probit-coupled", "multinomial_probit-utility"]
)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_weight_multiplies_the_latent_values_of_a_row(case):
    problem = case.problem()
    weights = Reweighting(0.3, 0.02, 7)
    grown = Candidates(case.rows(problem), problem.y, case.likelihood, case.rule, 12, np.arange(12), 12, 2, weights)
    grown.include_first(12)
    assert grown.growths[0].settle(300) < 1e-8
    each = weights(12, 12)
    assert each[0] == 1.0
    assert each[-1] < 0.5
    k = problem.K if problem.K.ndim == 3 else problem.K[None]
    method = approximator(case.rule.method, case.likelihood, {"tolerance": 1e-9})
    dense = method.solve(k * np.outer(each, each), each * problem.m, problem.y, likelihood=case.likelihood)
    assert dense.convergence.converged
    assert_allclose(grown.growths[0].mean, dense.mean / each, atol=1e-6)
    assert_allclose(grown.growths[0].covariance(), dense.cov / each[:, None, None] ** 2, atol=1e-6)


@pytest.mark.parametrize("sites", ["coupled", "utility"])
def test_weights_of_rows_are_1_at_the_end_of_a_solve(sites):
    problem = random_problem(5, 30, 3, variance=9.0)
    rows = DenseRows(problem.K, problem.m)
    options = {"active": 20, "liquid": 20, "sites": sites, "polish": False, "criterion": "information"}
    found = IVM(weights=(0.2, 0.01, 15), **options).solve(rows, problem.y, random_seed=1)
    polished = IVM(weights=(0.2, 0.01, 15), **options | {"polish": True}).solve(rows, problem.y, random_seed=1)
    assert_allclose(found.selection.rows, polished.selection.rows)
    assert_allclose(found.posterior.mean, polished.posterior.mean, atol=5e-3)
    plain = IVM(**options).solve(rows, problem.y, random_seed=1)
    assert list(plain.selection.rows) != list(found.selection.rows)


@pytest.mark.parametrize("weights", [(0.0, 0.1, 2), (0.5, 1.0, 2), (0.5, 0.1, 5), (0.5, 0.1), (0.5, 0.1, 0.5)])
def test_weights_that_do_not_increase_to_1_are_refused(weights):
    with pytest.raises(ValueError, match=r"weights must be .*, with liquid=5"):
        IVM(liquid=5, weights=weights)


@pytest.mark.parametrize("case", [case for case in CASES if case.c == 3], ids=str)
@pytest.mark.parametrize("per_class", [False, True])
def test_moments_match_the_sites_while_rows_freeze_and_candidates_change(case, per_class):
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


def test_choice_keeps_moving_rows_among_candidates():
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


def test_number_of_scored_candidates_does_not_depend_on_moving_rows(monkeypatch):
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
