"""The informative vector machine on arrays."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.approximations import approximator
from pymc_gpep.rivals.ivm import IVM, ActivePosterior
from pymc_gpep.rivals.selection.row_site_rules import DenseRows
from pymc_gpep.solvers.inducing import Block
from tests.reference.data import random_problem
from tests.rivals.selection.cases import CASES, SEPARATE


@pytest.mark.parametrize("case", CASES + SEPARATE, ids=str)
def test_ivm_with_all_rows_active_equals_the_dense_method(case):
    problem = case.problem(20)
    found = IVM(active=20, sites=case.rule.name).solve(case.rows(problem), problem.y, likelihood=case.likelihood)
    k = problem.K if problem.K.ndim == 3 else problem.K[None]
    dense = approximator(case.rule.method, case.likelihood, {}).solve(
        k, problem.m, problem.y, likelihood=case.likelihood
    )
    assert found.converged
    assert np.isnan(found.selection.scores).all()  # all rows are active: nothing is scored
    assert_allclose(found.active_evidence, dense.evidence, atol=1e-8)
    moments = Block(k[:, found.selection.rows], k.diagonal(axis1=1, axis2=2), problem.m)
    mean, cov = ActivePosterior(found.posterior).predict(moments)
    assert_allclose(mean, dense.mean, atol=2e-5)
    assert_allclose(cov, dense.cov, atol=2e-5)
    # The evidence of variational Bayes is below the bound of its Gaussian. EP's evidence is close to the exact
    # evidence, which is above the bound.
    assert found.bound > dense.evidence if case.rule.shares else found.bound < dense.evidence


@pytest.mark.parametrize("score", ["information", "probability", "random"])
def test_selected_rows_have_a_higher_bound_than_random_rows(score):
    problem = random_problem(5, 80, 3, variance=9.0)
    found = IVM(active=25, criterion=score).solve(DenseRows(problem.K, problem.m), problem.y, random_seed=1)
    blind = [
        IVM(active=25, criterion="random").solve(DenseRows(problem.K, problem.m), problem.y, random_seed=seed).bound
        for seed in range(4)
    ]
    assert np.isnan(found.selection.scores).sum() == (25 if score == "random" else 3)
    if score != "random":
        assert found.bound > np.mean(blind) + 1.0


def test_bound_over_a_sample_is_close_to_the_bound_over_all_rows():
    problem = random_problem(5, 400, 3)
    rows = DenseRows(problem.K, problem.m)
    whole = IVM(active=20, polish=False).solve(rows, problem.y)
    part = IVM(active=20, polish=False, rows=220).solve(rows, problem.y)
    assert len(part.sample.others) == 200
    assert_allclose(part.bound, whole.bound, rtol=0.05)
    assert part.bound != whole.bound


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"active": 0}, "active must be at least 1"),
        ({"criterion": "entropy"}, "criterion must be one of 'information', 'expected'"),
        ({"sites": "nested"}, "sites must be one of 'coupled', 'independent', 'utility', 'separate'"),
        ({"sites": "separate", "criterion": "random"}, "'separate' needs criterion='expected' or 'information'"),
        ({"sites": "separate", "liquid": 2}, "and liquid=1, but criterion is 'expected' and liquid is 2"),
        ({"retained": 0.0}, "retained must be in"),
    ],
)
def test_invalid_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        IVM(**options)


def test_unsupported_sites_are_refused():
    case = next(case for case in CASES if case.c == 1)
    with pytest.raises(ValueError, match="cannot be chosen by 'utility' sites; use sites='indep"):
        IVM(sites="utility").named(case.likelihood)
