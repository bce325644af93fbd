"""Moments of candidates as rows become active, against dense algebra."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.gaussians.posterior import posterior_of
from pymc_gpep.rivals.ivm import sites_of
from pymc_gpep.rivals.selection.greedy import Candidates
from tests.reference.active_rows import MATCHES, adf
from tests.rivals.selection.cases import CASES

ORDER = np.array([3, 1, 8, 10, 5, 0])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_sites_and_moments_match_dense_filtering(case):
    problem = case.problem()
    grown = Candidates(case.rows(problem), problem.y, case.likelihood, case.rule, len(ORDER), np.arange(12))
    for row in ORDER:
        grown.include(int(row))
    match = MATCHES[case.likelihood.name, case.rule.name]
    exact = adf(problem.K, problem.m, problem.y, ORDER, match)
    selection, growth = grown.selection, grown.growths[0]
    assert_allclose(case.blocks(selection.precision), exact.precision, atol=2e-7)
    assert_allclose(selection.location.T, exact.location, atol=2e-7)
    assert_allclose(growth.mean, exact.mean, atol=2e-7)
    cov = exact.covariance.reshape(case.c, 12, case.c, 12)
    assert_allclose(growth.covariance(), np.einsum("aiei->iae", cov), atol=2e-7)


@pytest.mark.parametrize("case", [case for case in CASES if case.c == 3], ids=str)
@pytest.mark.parametrize("per_class", [False, True])
def test_moments_of_rows_included_one_by_one_equal_moments_of_rows_included_at_once(case, per_class):
    problem = case.problem(60, per_class=per_class)
    k, m = problem.K.copy(), problem.m.copy()
    k[..., 1, :], m[:, 1] = k[..., 0, :], m[:, 0]  # two equal rows
    k[..., :, 1] = k[..., :, 0]
    problem = problem._replace(K=k, m=m)
    grown = Candidates(case.rows(problem), problem.y, case.likelihood, case.rule, 40, np.arange(60))
    for row in range(40):
        grown.include(row)
    mean, cov = grown.growths[0].mean.copy(), grown.growths[0].covariance().copy()
    grown.replace(np.arange(60), np.arange(60))
    assert_allclose(grown.growths[0].mean, mean, atol=1e-10)
    assert_allclose(grown.growths[0].covariance(), cov, atol=1e-10)
    selection = grown.selection
    dense = posterior_of(
        case.prior(problem, selection.rows), sites_of(case.rule, selection.precision, selection.location)
    )
    k = problem.K if per_class else problem.K[None]
    exact = dense.predict(k[:, :, selection.rows], k.diagonal(axis1=1, axis2=2), problem.m)
    assert_allclose(mean, exact[0], atol=1e-9)
    assert_allclose(cov, exact[1], atol=1e-9)


def test_common_shift_of_means_changes_no_result():
    case = CASES[0]
    problem = case.problem()
    one, other = (
        Candidates(case.rows(each), each.y, case.likelihood, case.rule, 6, ORDER).include_first(6).selection
        for each in (problem, problem._replace(m=problem.m + 7.0))
    )
    assert_allclose(one.precision, other.precision, rtol=1e-10)
    assert_allclose(one.location.sum(axis=0), 0.0, atol=1e-12)
