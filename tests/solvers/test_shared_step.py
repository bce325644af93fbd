"""The algebra of a step on arrays against dense matrices and differences."""

from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.solvers import shared_step
from pymc_gpep.solvers.profiles import PROFILES
from pymc_gpep.solvers.shared_step import SharedPosterior, SharedWhitening, average_sites
from pymc_gpep.solvers.step_blocks import StationaryBlocks

C, M, B, D = 3, 5, 7, 2
RNG = np.random.default_rng(1)


class Scales:
    """Logarithms of the scales and of the variance are the hyperparameters."""

    def __call__(self, theta):
        return np.exp(theta[:D]), float(np.exp(theta[D]))

    def pulled(self, theta, scales, variance):
        return np.concatenate([scales * np.exp(theta[:D]), [variance * np.exp(theta[D])]])


def plain(profile, scales, variance, a, b):
    """A covariance from its formula."""
    squares = ((a[:, None] - b) ** 2 * scales**2).sum(axis=2)
    r = np.sqrt(squares + 1e-12)
    return variance * {
        "squared exponential": np.exp(-0.5 * squares),
        "Matérn 5/2": (1.0 + np.sqrt(5.0) * r + 5.0 / 3.0 * r**2) * np.exp(-np.sqrt(5.0) * r),
        "Matérn 3/2": (1.0 + np.sqrt(3.0) * r) * np.exp(-np.sqrt(3.0) * r),
        "Matérn 1/2": np.exp(-r),
        "exponential": np.exp(-0.5 * r),
    }[profile.name]  # fmt: skip


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_moments_and_derivatives_of_a_covariance(profile, single):
    theta = np.array([0.2, -0.3, 0.5])
    z, x = RNG.normal(size=(M, D)), RNG.normal(size=(B, D))
    blocks = StationaryBlocks(profile, Scales())
    bars = RNG.normal(size=(M, M)), RNG.normal(size=(B, M)), RNG.normal(size=B)
    bars = bars[0] + bars[0].T, *bars[1:]

    def total(at, where):
        scales, variance = Scales()(at)
        k, cross = plain(profile, scales, variance, where, where), plain(profile, scales, variance, x, where)
        return (bars[0] * k).sum() + (bars[1] * cross).sum() + variance * bars[2].sum()

    moments = blocks.at(theta, z, single)
    rows = moments.rows(x)
    scales, variance = Scales()(theta)
    assert_allclose(moments.covariance, plain(profile, scales, variance, z, z), rtol=2e-6)
    assert_allclose(rows.cross, plain(profile, scales, variance, x, z), rtol=2e-6)
    assert_allclose(rows.variance, variance)
    of_theta, of_z = moments.pulled(bars[0], rows._replace(cross=bars[1], variance=bars[2]))
    h = 1e-6
    for found, at, move in ((of_theta, theta, 0), (of_z, z, 1)):
        for place in np.ndindex(at.shape):
            step = np.zeros_like(at)
            step[place] = h
            up, down = ((theta + s * step, z) if move == 0 else (theta, z + s * step) for s in (1.0, -1.0))
            assert_allclose(found[place], (total(*up) - total(*down)) / (2 * h), rtol=2e-5, atol=2e-5)


def test_whitened_features_and_their_derivatives():
    """With the jitter, which goes with the mean of the diagonal."""
    theta, jitter = np.array([0.2, -0.3, 0.5]), 1e-2
    z, x = RNG.normal(size=(M, D)), RNG.normal(size=(B, D))
    blocks = StationaryBlocks(PROFILES[1], Scales())
    of_w, of_rest = RNG.normal(size=(B, M)), RNG.normal(size=B)

    def features(at, where):
        return SharedWhitening(blocks.at(at, where), jitter).features(x)

    found = features(theta, z)
    k = blocks.at(theta, z).covariance
    factor = np.linalg.cholesky(k + jitter * k.trace() / M * np.eye(M))
    assert_allclose(found.w, np.linalg.solve(factor, found.moments.cross.T).T)
    assert_allclose(found.rest, np.exp(theta[D]) - (found.w**2).sum(axis=1))

    def total(at, where):
        made = features(at, where)
        return (made.w * of_w).sum() + (made.rest * of_rest).sum()

    whitening = SharedWhitening(blocks.at(theta, z), jitter)
    made = whitening.features(x)
    slopes = whitening.pulled(made, of_w - 2.0 * made.w * of_rest[:, None], of_rest, np.zeros((B, 1)))
    h = 1e-6
    for slope, at, move in ((slopes[0], theta, 0), (slopes[1], z, 1)):
        for place in np.ndindex(at.shape):
            step = np.zeros_like(at)
            step[place] = h
            up, down = ((theta + s * step, z) if move == 0 else (theta, z + s * step) for s in (1.0, -1.0))
            assert_allclose(slope[place], (total(*up) - total(*down)) / (2 * h), rtol=1e-5, atol=1e-6)


def sites(scale=1.0):
    half = RNG.normal(size=(C, M, M))
    return scale * half @ half.swapaxes(1, 2), RNG.normal(size=(C, M))


def upper_spoilt(precision):
    """Only lower triangles count."""
    return np.tril(precision) + np.triu(np.full_like(precision, np.nan), 1)


@pytest.mark.parametrize("share", [np.ones(C), np.array([0.9, 0.8, 0.95])], ids=["all", "parts"])
@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("undivided", [M, 2])
def test_the_posterior_is_the_dense_one(share, single, undivided, monkeypatch):
    """Whether matrices are factorised whole or by halves."""
    monkeypatch.setattr(shared_step, "_UNDIVIDED", undivided)
    s, h = sites()
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if single else {"rtol": 1e-10, "atol": 1e-10}
    q = SharedPosterior(upper_spoilt(s), h, share, single)
    parts = share[:, None, None] * s
    covariance = np.linalg.inv(np.eye(M) + parts)
    mean = np.einsum("kij,kj->ki", covariance, share[:, None] * h)
    assert_allclose(q.covariance, covariance, **tolerance)
    assert_allclose(q.mean, mean, **tolerance)
    log_dets = np.linalg.slogdet(np.eye(M) + parts)[1]
    assert_allclose(q.log_normalisers, 0.5 * (share[:, None] * h * mean).sum(axis=1) - 0.5 * log_dets, **tolerance)
    moments = RNG.normal(size=(B, M))
    covered = q.covered(shared_step.SharedFeatures(moments, np.ones(B), None))
    assert_allclose(covered.mean, moments @ mean.T, **tolerance)
    assert_allclose(covered.variance, np.einsum("bi,kij,bj->bk", moments, covariance, moments), **tolerance)


def test_the_whole_posterior_is_near_when_little_is_left_out():
    s, h = sites()
    whole = SharedPosterior(s, h, np.ones(C)).log_normalisers
    errors = [
        np.abs(SharedPosterior(s, h, np.full(C, 1.0 - part)).whole_log_normalisers() - whole) for part in (2e-3, 1e-3)
    ]
    assert_allclose(errors[1] / errors[0], 0.25, rtol=0.02)


@pytest.mark.parametrize("share", [np.ones(C), np.array([0.9, 0.8, 0.95])], ids=["all", "parts"])
def test_sites_move_with_the_best_common_function(share):
    """What they imply then is what was remembered of where they were made: nothing is missing any more."""
    s, h = sites()
    common = RNG.normal(size=M)
    q = SharedPosterior(upper_spoilt(s), h, share)
    moved = q.shift(common)
    covariance = np.linalg.inv(np.eye(M) + share[:, None, None] * s)
    mean = np.einsum("kij,kj->ki", covariance, share[:, None] * q.location)
    assert_allclose(q.mean, mean, rtol=1e-8, atol=1e-8)
    assert_allclose(np.einsum("kij,kj->i", s, mean), moved, rtol=1e-6, atol=1e-6)
    weights = np.linalg.solve(s[0], (q.location - h)[0])
    assert_allclose(np.einsum("kij,j->ki", s, weights), q.location - h, rtol=1e-6, atol=1e-6)
    assert_allclose(moved - common, s.sum(axis=0) @ weights, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("effects", [0, 1])
def test_derivatives_in_features(effects):
    """Features of effects leave nothing unsaid."""
    s, h = sites()
    moments = SimpleNamespace(cross=np.empty((B, M - effects)))
    q = SharedPosterior(s, h, np.ones(C))
    w = RNG.normal(size=(B, M))
    of_mean, of_variance, of_rest = RNG.normal(size=(3, B, C))

    def total(at):
        covered = q.covered(shared_step.SharedFeatures(at, np.ones(B), moments))
        rest = -(at[:, : M - effects] ** 2).sum(axis=1)[:, None]
        return (covered.mean * of_mean).sum() + (covered.variance * of_variance).sum() + (rest * of_rest).sum()

    features = shared_step.SharedFeatures(w, np.ones(B), moments)
    found = q.feature_slopes(features, q.covered(features), of_mean, of_variance, of_rest)
    for place in np.ndindex(w.shape):
        step = np.zeros_like(w)
        step[place] = 1e-6
        assert_allclose(found[place], (total(w + step) - total(w - step)) / 2e-6, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("single", [False, True])
def test_averages_of_sites(single):
    s, _ = sites()
    w, weights = RNG.normal(size=(B, M)), RNG.uniform(size=(B, C))
    found = upper_spoilt(s)
    average_sites(found, w, weights, 0.3, single)
    expected = 0.7 * s + 0.3 * np.einsum("bk,bi,bj->kij", weights, w, w)
    assert_allclose(np.tril(found), np.tril(expected), rtol=1e-6, atol=1e-6)


def test_numbers_of_32_bits_are_left_alone_where_they_do_harm(monkeypatch):
    """Precisions of 1e10 in one direction, and of next to nothing in another, where the mean is."""
    basis, _ = np.linalg.qr(RNG.normal(size=(M, M)))
    s = np.stack([(basis * [1e10, 1e4, 1.0, 1e-3, 1e-6]) @ basis.T] * C)
    h = np.tile(basis @ [1e3, 1.0, 1.0, 1.0, 1.0], (C, 1))
    exact = np.linalg.solve(np.eye(M) + s[0], h[0])

    def error():
        try:
            return np.abs(SharedPosterior(s, h, np.ones(C), single=True).mean - exact).max()
        except np.linalg.LinAlgError:
            return np.inf

    assert error() < 1e-5
    monkeypatch.setattr(shared_step, "_LARGEST_TRACE", np.inf)
    assert error() > 0.1
