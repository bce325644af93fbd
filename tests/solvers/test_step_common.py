"""The common shift of functions in several groups, against dense sums over sites."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.solvers.common_shift import OwnFeatures
from pymc_gpep.solvers.step_algebra import Group, StepFeatures, StepPosterior
from pymc_gpep.solvers.step_arrays import StepArrays

C, M, B = 3, 5, 40
RNG = np.random.default_rng(1)
GROUPS = [Group([0, 2], 0, 0), Group([1], 1, 0)]
STARTS = 0, 2, 3
"""Index of the first of the two features of each function that are test functions."""


def problem():
    """Features of groups and of functions, test functions, site precisions, h, g, and sums over test functions."""
    w = RNG.normal(size=(2, B, M))
    features = [StepFeatures(own, np.ones(B), None, group) for own, group in zip(w, GROUPS, strict=True)]
    each = w[[0, 1, 0]]
    tests = np.concatenate([each[k, :, start : start + 2] for k, start in enumerate(STARTS)], axis=1)
    t, h, g = RNG.exponential(size=(B, C)), RNG.normal(size=(C, M)), RNG.normal(size=6)
    cross = np.einsum("br,bk,kbi->kri", tests, t, each)
    return features, each, tests, t, h, g, cross, (tests * t.sum(axis=1)[:, None]).T @ tests


@pytest.mark.parametrize("share", [np.ones(C), np.array([0.9, 0.8, 0.95])], ids=["all", "parts"])
@pytest.mark.parametrize("single", [False, True])
def test_common_shift_satisfies_its_equation(share, single):
    _, each, _, t, h, g, cross, precision = problem()
    s = np.einsum("bk,kbi,kbj->kij", t, each, each)
    q = StepPosterior(StepArrays(single), s, h, share, roots=True)
    moved = OwnFeatures(StepArrays(), g, cross, precision).shift(q)
    covariance = np.linalg.inv(np.eye(M) + share[:, None, None] * s)
    assert_allclose(q.mean, np.einsum("kij,kj->ki", covariance, share[:, None] * q.location), rtol=1e-8, atol=1e-8)
    assert_allclose(np.einsum("kri,ki->r", cross, q.mean), moved, rtol=1e-5, atol=1e-5)
    weights = np.linalg.solve(precision, moved - g)
    assert np.abs(weights).max() > 0.01
    assert_allclose(weights @ cross, q.location - h, rtol=1e-6, atol=1e-8)


def test_zero_sites_have_no_common_shift():
    _, _, _, _, h, g, cross, precision = problem()
    q = StepPosterior(StepArrays(), np.zeros((C, M, M)), h, np.ones(C), roots=True)
    moved = OwnFeatures(StepArrays(), 0.0 * g, 0.0 * cross, 0.0 * precision).shift(q)
    assert not moved.any()
    assert_allclose(q.location, h)


def test_common_shift_is_averaged_over_batches():
    features, each, tests, t, _, g, cross, precision = problem()
    cross, precision = RNG.normal(size=cross.shape), precision.copy()
    before, shifted, mean = (cross.copy(), precision.copy()), RNG.normal(size=6), RNG.normal(size=(B, C))
    common = OwnFeatures(StepArrays(), g, cross, precision)
    g, cross, precision = common.averaged(shifted, features, t, mean, 0.3)
    assert_allclose(g, 0.7 * shifted + 0.3 * tests.T @ (t * mean).sum(axis=1))
    assert_allclose(cross, 0.7 * before[0] + 0.3 * np.einsum("br,bk,kbi->kri", tests, t, each))
    assert_allclose(precision, 0.7 * before[1] + 0.3 * (tests * t.sum(axis=1)[:, None]).T @ tests)
