"""The function common to all latent functions that batches solve for, against dense algebra over all points."""

import numpy as np
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.streaming.features import CommonTerms, common_features, common_terms, gaussian, shifted


def sites(sets, n, size=4, c=3):
    """Features, Σ t and Σ ν of sites, and means that are not those that the sites imply."""
    rng = np.random.default_rng(3)
    w = rng.normal(size=(sets, size, n))
    return w, rng.exponential(size=(c, n)), rng.normal(size=(c, n)), rng.normal(size=(c, n))


def moved(w, t, nu, seen_mean, share=1.0):
    """Posterior means (c, M) of sites that have moved, and their g."""
    c, every = len(t), np.broadcast_to(w, (len(t), *w.shape[1:]))
    precision = np.einsum("kib,kb,kjb->kij", every, t, every)
    location = np.einsum("kib,kb->ki", every, nu)
    shares = pt.constant(np.full(c, share))
    graph = pt.constant(precision), pt.constant(location)
    terms = common_terms(*map(pt.constant, (w, t, seen_mean)))
    new, g = shifted(graph[1], terms, gaussian(share * graph[0], share * graph[1]), shares)
    found = gaussian(share * graph[0], share * new)
    return found.mean.eval(), new.eval(), g.eval(), location


def dense(w, t, nu, seen_mean, share=1.0):
    """The same where the common function is any at all: Σ_k t_k (m_k − seen − h) = 0 at each point."""
    c = len(t)
    every = np.broadcast_to(w, (c, *w.shape[1:]))
    cov = np.array([np.linalg.inv(np.eye(w.shape[1]) + share * (f * s) @ f.T) for f, s in zip(every, t, strict=True)])
    maps = [share * f.T @ k @ (f * s) for f, s, k in zip(every, t, cov, strict=True)]  # from h to the m_k
    means = [share * f.T @ k @ f @ v for f, v, k in zip(every, nu, cov, strict=True)]
    system = np.diag(t.sum(axis=0)) - sum(s[:, None] * each for s, each in zip(t, maps, strict=True))
    h = np.linalg.solve(system, sum(s * (m - old) for s, m, old in zip(t, means, seen_mean, strict=True)))
    return np.array([share * k @ f @ (v + s * h) for k, f, v, s in zip(cov, every, nu, t, strict=True)])


@pytest.mark.parametrize("share", [1.0, 0.7])
def test_with_enough_test_functions_it_is_the_best_function_of_all(share):
    given = sites(3, 5)
    assert len(common_features(pt.constant(given[0])).eval()) == 6  # functions of five points
    assert_allclose(moved(*given, share)[0], dense(*given, share), atol=1e-6)


def test_where_features_are_shared_the_means_cancel():
    """Sites of functions that sum to nothing at each point, ν = t m + ρ with Σ ρ = 0, imply means that do."""
    w, t, rho, seen_mean = sites(1, 9)
    rho -= rho.mean(axis=0)
    mean, new, g, location = moved(w, t, t * seen_mean + rho, seen_mean)
    assert_allclose(mean.sum(axis=0), 0.0, atol=1e-7)
    assert_allclose(g, new.sum(axis=0), rtol=1e-6)
    assert np.abs(new - location).max() > 0.1


def test_sites_that_agree_with_their_means_stay():
    """Whatever the test functions: here four for nine points."""
    w, t, nu, _ = sites(1, 9)
    precision = np.einsum("ib,kb,jb->kij", w[0], t, w[0])
    location = np.einsum("ib,kb->ki", w[0], nu)
    means = np.array([w[0].T @ np.linalg.solve(np.eye(4) + s, h) for s, h in zip(precision, location, strict=True)])
    _, new, _, _ = moved(w, t, nu, means)
    assert_allclose(new, location, atol=1e-8)


def test_nothing_is_moved_where_nothing_is_known():
    nothing = CommonTerms(pt.zeros((4,)), pt.zeros((3, 4, 4)), pt.zeros((4, 4)))
    own = gaussian(pt.zeros((3, 4, 4)), pt.zeros((3, 4)))
    new, g = shifted(pt.zeros((3, 4)), nothing, own, pt.ones((3,)))
    assert not new.eval().any()
    assert not g.eval().any()


def test_inducing_inputs_that_are_the_same_give_different_test_functions():
    w = np.random.default_rng(0).normal(size=(1, 5, 20))
    phi = common_features(pt.constant(np.repeat(w, 3, axis=0))).eval()
    assert phi.shape == (6, 20)
    assert np.linalg.matrix_rank(phi) == 5
