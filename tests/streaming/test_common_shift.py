"""The common shift of all latent functions in a batch fit, against dense algebra over all points."""

from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.solvers.common_shift import OwnFeatures, SameFeatures, common_tests
from pymc_gpep.solvers.step_algebra import Group, StepFeatures, StepPosterior
from pymc_gpep.solvers.step_arrays import StepArrays


def sites(sets, n, size=4, c=3):
    """Features, Σ t and Σ ν of sites, and posterior means that differ from the means of these sites."""
    rng = np.random.default_rng(3)
    w = rng.normal(size=(sets, size, n))
    return w, rng.exponential(size=(c, n)), rng.normal(size=(c, n)), rng.normal(size=(c, n))


def features_of(w, c=3):
    """Features (q, M, B) of one group or of several groups."""
    groups = [Group(list(range(c)), 0, 0)] if len(w) == 1 else [Group([k], k, k) for k in range(c)]
    return [StepFeatures(own.T, np.ones(own.shape[1]), None, each) for own, each in zip(w, groups, strict=True)]


def remembered(w, t, seen_mean):
    """Averages of the common shift from one batch of all points, and the object that stores them."""
    arrays, (sets, size, _), c = StepArrays(), w.shape, len(t)
    if sets == 1:
        nothing, kind = [np.zeros(size)], SameFeatures
    else:
        tests = common_tests(c, size)
        nothing = [np.zeros(tests), np.zeros((c, tests, size)), np.zeros((tests, tests))]
        kind = partial(OwnFeatures, arrays)
    found = kind(*nothing).averaged(nothing[0], features_of(w), t.T, seen_mean.T, 1.0)
    return found, kind(*found)


def moved(w, t, nu, seen_mean, share=1.0):
    """Posterior means (c, M) after the common shift, sites before and after, and g."""
    c, every = len(t), np.broadcast_to(w, (len(t), *w.shape[1:]))
    precision = np.einsum("kib,kb,kjb->kij", every, t, every)
    location = np.einsum("kib,kb->ki", every, nu)
    q = StepPosterior(StepArrays(), precision, location, np.full(c, share), roots=len(w) > 1)
    _, common = remembered(w, t, seen_mean)
    g = common.shift(q)
    return q.mean, q.location, g, location


def dense(w, t, nu, seen_mean, share=1.0):
    """Reference: for any common function h, Σ_k t_k (m_k − seen − h) = 0 at each point."""
    c = len(t)
    every = np.broadcast_to(w, (c, *w.shape[1:]))
    cov = np.array([np.linalg.inv(np.eye(w.shape[1]) + share * (f * s) @ f.T) for f, s in zip(every, t, strict=True)])
    maps = [share * f.T @ k @ (f * s) for f, s, k in zip(every, t, cov, strict=True)]  # map from h to m_k
    means = [share * f.T @ k @ f @ v for f, v, k in zip(every, nu, cov, strict=True)]
    system = np.diag(t.sum(axis=0)) - sum(s[:, None] * each for s, each in zip(t, maps, strict=True))
    h = np.linalg.solve(system, sum(s * (m - old) for s, m, old in zip(t, means, seen_mean, strict=True)))
    return np.array([share * k @ f @ (v + s * h) for k, f, v, s in zip(cov, every, nu, t, strict=True)])


@pytest.mark.parametrize("share", [1.0, 0.7])
def test_common_shift_with_enough_test_functions_solves_the_dense_equation(share):
    given = sites(3, 5)
    assert len(remembered(given[0], given[1], given[3])[0][0]) == 6  # six test functions suffice for five points
    assert_allclose(moved(*given, share)[0], dense(*given, share), atol=1e-6)


def test_common_shift_of_shared_features_makes_means_sum_to_zero():
    """With ν_k = t_k m_k + ρ_k and Σ_k ρ_k = 0, posterior means sum to zero after the shift."""
    w, t, rho, seen_mean = sites(1, 9)
    rho -= rho.mean(axis=0)
    mean, new, g, location = moved(w, t, t * seen_mean + rho, seen_mean)
    assert_allclose(mean.sum(axis=0), 0.0, atol=1e-7)
    assert_allclose(g, new.sum(axis=0), rtol=1e-6)
    assert np.abs(new - location).max() > 0.1


def test_common_shift_does_not_change_sites_that_agree_with_their_means():
    """The result holds for any test functions. The test has four test functions for nine points."""
    w, t, nu, _ = sites(1, 9)
    precision = np.einsum("ib,kb,jb->kij", w[0], t, w[0])
    location = np.einsum("ib,kb->ki", w[0], nu)
    means = np.array([w[0].T @ np.linalg.solve(np.eye(4) + s, h) for s, h in zip(precision, location, strict=True)])
    _, new, _, _ = moved(w, t, nu, means)
    assert_allclose(new, location, atol=1e-8)


@pytest.mark.parametrize("sets", [1, 3])
def test_zero_sites_have_no_common_shift(sets):
    w, nothing = sites(sets, 5)[0], np.zeros((3, 5))
    _, new, g, _ = moved(w, nothing, nothing, nothing)
    assert not new.any()
    assert not g.any()


def test_functions_with_equal_inducing_inputs_have_different_test_functions():
    """Q for equal weights is the Gram matrix of the test functions.

    Its rank is 5: six test functions are combinations of five features.
    """
    w = np.repeat(np.random.default_rng(0).normal(size=(1, 5, 20)), 3, axis=0)
    (_, _, gram), _ = remembered(w, np.ones((3, 20)), np.zeros((3, 20)))
    assert gram.shape == (6, 6)
    assert np.linalg.matrix_rank(gram) == 5
