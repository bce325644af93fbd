"""Scores of rows, and selection by scores."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from pymc_gpep.rivals.ivm import IVM
from pymc_gpep.rivals.selection.greedy import Candidates
from pymc_gpep.rivals.selection.row_site_rules import SCORES, DenseRows
from tests.reference.active_rows import MATCHES, adf, divergence, label_probability
from tests.reference.data import random_problem
from tests.rivals.selection.cases import CASES

ORDER = [3, 1, 6]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("score", SCORES)
def test_scores_match_brute_force(case, score):
    n = 8
    problem = case.problem(n)
    grown = Candidates(case.rows(problem), problem.y, case.likelihood, case.rule, 4, np.arange(n))
    for row in ORDER:
        grown.include(row)
    places, scores = grown.scores(score)
    assert_array_equal(places, [i for i in range(n) if i not in ORDER])
    match = MATCHES[case.likelihood.name, case.rule.name]
    exact = adf(problem.K, problem.m, problem.y, ORDER, match)
    expected = []
    for i in places:
        where = np.arange(case.c) * n + i
        given = exact.mean[:, i], exact.covariance[np.ix_(where, where)]
        own = int(problem.y[i])
        every = range(max(case.c, 2)) if score == "expected" else [own]
        p = np.array([label_probability(case.likelihood.name, *given, y) for y in every])
        told = np.array([divergence(*given, *match(*given, y)) for y in every])
        expected.append(-np.log(p[0]) if score == "probability" else p @ told / p.sum())
    # Coupled sites are less accurate, and a softmax has few nodes or uses its tail formula.
    rough = case.rule.form == "coupled" or case.likelihood.name == "softmax"
    assert_allclose(scores, expected, rtol=1e-2 if rough else 1e-6)
    assert np.argmax(scores) == np.argmax(expected)


@pytest.mark.parametrize("score", ["information", "probability"])
def test_row_with_a_wrong_label_is_selected_early(score):
    x = np.linspace(-3.0, 3.0, 61)[:, None]
    k = 9.0 * np.exp(-0.5 * (x - x.T) ** 2) + 1e-8 * np.eye(61)
    y = (x[:, 0] > 0).astype(np.int64)
    y[5] = 1
    ivm = IVM(active=12, criterion=score, sites="coupled")
    chosen = ivm.solve(DenseRows(k, np.zeros((2, 61))), y).selection.rows
    assert 5 in chosen


def test_scores_without_labels_do_not_change_with_labels():
    problem = random_problem(3, 30, 3)
    case = CASES[0]
    grown = Candidates(case.rows(problem), problem.y, case.likelihood, case.rule, 3, np.arange(30))
    grown.include(4)
    before = grown.scores("expected")[1]
    grown.labels = (problem.y + 1) % 3
    assert_array_equal(grown.scores("expected")[1], before)
    assert (grown.scores("information")[1] != before).any()


def test_seed_determines_the_selected_rows():
    problem = random_problem(3, 40, 3)
    rows = DenseRows(problem.K, problem.m)
    one, two, other = (
        IVM(active=10, pool=12, polish=False).solve(rows, problem.y, random_seed=seed).selection.rows
        for seed in (1, 1, 2)
    )
    assert_array_equal(one, two)
    assert (one != other).any()
    assert len(set(one)) == 10


def test_permuted_rows_lead_to_the_same_selection():
    problem = random_problem(3, 30, 3)
    order = np.random.default_rng(0).permutation(30)
    moved = DenseRows(problem.K[np.ix_(order, order)], problem.m[:, order])
    case = CASES[0]
    found = []
    for prior, labels, first in (
        (DenseRows(problem.K, problem.m), problem.y, order[0]),
        (moved, problem.y[order], 0),
    ):
        grown = Candidates(prior, labels, case.likelihood, case.rule, 8, np.arange(30))
        grown.include(int(first))
        for _ in range(7):
            places, scores = grown.scores("information")
            grown.include(int(places[scores.argmax()]))
        found.append(grown.selection.rows)
    assert_array_equal(found[0], order[found[1]])


def test_all_rows_can_be_active_with_a_small_pool():
    problem = random_problem(3, 20, 3)
    chosen = IVM(active=50, pool=6).solve(DenseRows(problem.K, problem.m), problem.y).selection.rows
    assert sorted(chosen) == list(range(20))
