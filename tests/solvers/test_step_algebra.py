"""Linear algebra of a batch step on arrays, against dense matrices and differences."""

from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.solvers import step_algebra, step_arrays
from pymc_gpep.solvers.step_algebra import PROFILES, Group, StationaryBlocks, StepPosterior, StepWhitening, grouped
from pymc_gpep.solvers.step_arrays import StepArrays

C, M, B, D = 3, 5, 7, 2
RNG = np.random.default_rng(1)


ALL = [Group([0, 1, 2], 0, 0)]
TWO = [Group([0, 2], 0, 0), Group([1], 1, 0)]


class Scales:
    """Hyperparameters of covariances, in order: logarithms of scales, variances and noises."""

    def __call__(self, theta):
        each = np.exp(theta.reshape(-1, D + 2))
        return each[:, :D], each[:, D], each[:, D + 1]

    def pulled(self, theta, scales, variances, noises):
        return np.concatenate([scales, variances[:, None], noises[:, None]], axis=1).ravel() * np.exp(theta)


def plain(profile, scales, variance, a, b):
    """Covariance from its formula."""
    squares = ((a[:, None] - b) ** 2 * scales**2).sum(axis=2)
    r = np.sqrt(squares + 1e-12)
    return variance * {
        "squared exponential": np.exp(-0.5 * squares),
        "Matérn 5/2": (1.0 + np.sqrt(5.0) * r + 5.0 / 3.0 * r**2) * np.exp(-np.sqrt(5.0) * r),
        "Matérn 3/2": (1.0 + np.sqrt(3.0) * r) * np.exp(-np.sqrt(3.0) * r),
        "Matérn 1/2": np.exp(-r),
        "exponential": np.exp(-0.5 * r),
    }[profile.name]  # fmt: skip


@pytest.mark.parametrize("place", [0.0, 1e4], ids=["near 0", "far from 0"])
@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_moments_and_derivatives_match_the_covariance(profile, single, place):
    theta = np.array([0.2, -0.3, 0.5, -1.0])
    z, x = place + RNG.normal(size=(M, D)), place + RNG.normal(size=(B, D))
    blocks = StationaryBlocks([profile], Scales(), [0] * C)
    bars = RNG.normal(size=(M, M)), RNG.normal(size=(B, M)), RNG.normal(size=B)
    bars = bars[0] + bars[0].T, *bars[1:]

    def total(at, where):
        (scales,), (variance,), (noise,) = Scales()(at)
        k, cross = plain(profile, scales, variance, where, where), plain(profile, scales, variance, x, where)
        return (bars[0] * k).sum() + (bars[1] * cross).sum() + (variance + noise) * bars[2].sum()

    moments = blocks.at(theta, z[None], single)
    (rows,) = moments.rows(x)
    (scales,), (variance,), (noise,) = Scales()(theta)
    assert_allclose(moments.covariances[0], plain(profile, scales, variance, z, z), rtol=2e-6)
    assert_allclose(rows.cross, plain(profile, scales, variance, x, z), rtol=2e-6)
    assert_allclose(rows.variance, variance + noise)
    of_theta, (of_z,) = moments.pulled([bars[0]], [rows._replace(cross=bars[1], variance=bars[2])])
    h = 1e-6
    for found, at, move in ((of_theta, theta, 0), (of_z, z, 1)):
        for index in np.ndindex(at.shape):
            step = np.zeros_like(at)
            step[index] = h
            up, down = ((theta + s * step, z) if move == 0 else (theta, z + s * step) for s in (1.0, -1.0))
            assert_allclose(found[index], (total(*up) - total(*down)) / (2 * h), rtol=2e-5, atol=2e-5)


def test_derivatives_at_distant_inputs_have_double_precision():
    theta = np.array([0.2, -0.3, 0.5, -1.0])
    z = RNG.normal(size=(M, D)) * [[1e4, 1.0]]
    x = z.repeat(2, axis=0) + RNG.normal(size=(2 * M, D))
    found = []
    for single in (False, True):
        moments = StationaryBlocks([PROFILES[0]], Scales(), [0] * C).at(theta, z[None], single)
        (rows,) = moments.rows(x)
        found.append(moments.pulled([np.eye(M)], [rows]))
    for exact, other in zip(*found, strict=True):
        assert_allclose(other, exact, rtol=1e-10)


@pytest.mark.parametrize(
    ("sets", "second"),
    [(1, [-0.1, 0.4]), (1, [0.6, 0.1]), (C, [-0.1, 0.4])],
    ids=["the same inducing inputs", "scales in proportion", "own inducing inputs"],
)
def test_groups_of_functions_match_separate_functions(sets, second):
    """Two functions share a covariance, and the third has its own. Inducing inputs are shared or not."""
    theta, jitter, of_function = np.array([0.2, -0.3, 0.5, -1.0, *second, 0.1, -0.5]), 1e-2, [1, 0, 1]
    z, x = RNG.normal(size=(sets, M, D)), RNG.normal(size=(B, D))
    profiles = [PROFILES[1], PROFILES[0]]
    blocks = StationaryBlocks(profiles, Scales(), of_function)
    groups = grouped(of_function, sets)
    assert [each.functions for each in groups] == ([[0, 2], [1]] if sets == 1 else [[0], [1], [2]])
    of_w, of_rest = RNG.normal(size=(len(groups), B, M)), RNG.normal(size=(len(groups), B))

    def features(at, where):
        return StepWhitening(StepArrays(), blocks.at(at, where), groups, jitter).features(x)

    scales, variances, noises = Scales()(theta)
    for group, made in zip(groups, features(theta, z), strict=True):
        p, own = of_function[group.functions[0]], z[group.functions[0] if sets > 1 else 0]
        k, cross = (plain(profiles[p], scales[p], variances[p], a, own) for a in (own, x))
        factor = np.linalg.cholesky(k + jitter * k.trace() / M * np.eye(M))
        assert_allclose(made.w, np.linalg.solve(factor, cross.T).T, rtol=1e-5)
        assert_allclose(made.rest, variances[p] + noises[p] - (made.w**2).sum(axis=1), rtol=1e-5)

    def total(at, where):
        return sum(
            (made.w * w_bar).sum() + (made.rest * rest_bar).sum()
            for made, w_bar, rest_bar in zip(features(at, where), of_w, of_rest, strict=True)
        )

    whitening = StepWhitening(StepArrays(), blocks.at(theta, z), groups, jitter)
    made = whitening.features(x)
    slopes = whitening.pulled(
        made,
        [
            step_algebra.StepSlopes(w_bar - 2.0 * each.w * rest_bar[:, None], rest_bar, np.zeros((B, 1)))
            for each, w_bar, rest_bar in zip(made, of_w, of_rest, strict=True)
        ],
    )
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


def features_of(groups, effects=0):
    """Features of groups. The last features may belong to effects."""
    moments = SimpleNamespace(cross=np.empty((B, M - effects)))
    return [step_algebra.StepFeatures(RNG.normal(size=(B, M)), np.ones(B), moments, each) for each in groups]


def by_function(features):
    """Features of each function, (c, B, M)."""
    found = {k: each.w for each in features for k in each.group.functions}
    return np.stack([found[k] for k in range(C)])


def upper_spoilt(precision):
    """Set upper triangles to NaN: only lower triangles may be read."""
    return np.tril(precision) + np.triu(np.full_like(precision, np.nan), 1)


@pytest.mark.parametrize("share", [np.ones(C), np.array([0.9, 0.8, 0.95])], ids=["all", "parts"])
@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("undivided", [M, 2])
def test_posterior_of_a_step_equals_the_dense_posterior(share, single, undivided, monkeypatch):
    """Matrices are factorised whole or by halves."""
    monkeypatch.setattr(step_arrays, "_UNDIVIDED", undivided)
    s, h = sites()
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if single else {"rtol": 1e-10, "atol": 1e-10}
    q = StepPosterior(StepArrays(single), upper_spoilt(s), h, share)
    parts = share[:, None, None] * s
    covariance = np.linalg.inv(np.eye(M) + parts)
    mean = np.einsum("kij,kj->ki", covariance, share[:, None] * h)
    assert_allclose(q.covariance, covariance, **tolerance)
    assert_allclose(q.mean, mean, **tolerance)
    log_dets = np.linalg.slogdet(np.eye(M) + parts)[1]
    assert_allclose(q.log_normalisers, 0.5 * (share[:, None] * h * mean).sum(axis=1) - 0.5 * log_dets, **tolerance)
    for groups in ALL, TWO:
        made = features_of(groups)
        each = by_function(made)
        covered = q.covered(made)
        assert_allclose(covered.mean, np.einsum("kbi,ki->bk", each, mean), **tolerance)
        assert_allclose(covered.variance, np.einsum("kbi,kij,kbj->bk", each, covariance, each), **tolerance)


def test_float32_log_normalisers_extrapolated_to_the_whole_posterior_have_quadratic_error():
    s, h = sites()
    whole = StepPosterior(StepArrays(), s, h, np.ones(C)).log_normalisers
    errors = [
        np.abs(StepPosterior(StepArrays(single=True), s, h, np.full(C, 1.0 - part)).whole_log_normalisers - whole)
        for part in (2e-2, 1e-2)
    ]
    assert_allclose(errors[1] / errors[0], 0.25, rtol=0.02)


@pytest.mark.parametrize("share", [np.ones(C), np.array([0.9, 0.8, 0.95])], ids=["all", "parts"])
def test_common_shift_of_sites_has_the_given_sum(share):
    """After the shift, Σ_k S_k μ_k of the posterior means μ_k equals the stored sum of the sites."""
    s, h = sites()
    common = RNG.normal(size=M)
    q = StepPosterior(StepArrays(), upper_spoilt(s), h, share)
    moved = q.shift(common)
    covariance = np.linalg.inv(np.eye(M) + share[:, None, None] * s)
    mean = np.einsum("kij,kj->ki", covariance, share[:, None] * q.location)
    assert_allclose(q.mean, mean, rtol=1e-8, atol=1e-8)
    assert_allclose(np.einsum("kij,kj->i", s, mean), moved, rtol=1e-6, atol=1e-6)
    weights = np.linalg.solve(s[0], (q.location - h)[0])
    assert_allclose(np.einsum("kij,j->ki", s, weights), q.location - h, rtol=1e-6, atol=1e-6)
    assert_allclose(moved - common, s.sum(axis=0) @ weights, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("groups", "effects"), [(ALL, 0), (ALL, 1), (TWO, 0)], ids=["all", "effects", "two groups"])
def test_derivatives_in_features_match_differences(groups, effects):
    """Features of effects do not change the residual variance."""
    s, h = sites()
    q = StepPosterior(StepArrays(), s, h, np.ones(C))
    features = features_of(groups, effects)
    of_mean, of_variance, of_rest = RNG.normal(size=(3, B, C))

    def total(g, at):
        made = [each._replace(w=at) if i == g else each for i, each in enumerate(features)]
        covered = q.covered(made)
        rest = -(by_function(made)[:, :, : M - effects] ** 2).sum(axis=2).T
        return (covered.mean * of_mean).sum() + (covered.variance * of_variance).sum() + (rest * of_rest).sum()

    found = q.slopes(features, q.covered(features), of_mean, of_variance, of_rest)
    for g, (each, own) in enumerate(zip(features, found, strict=True)):
        assert_allclose(own.mean, of_mean[:, each.group.functions])
        assert_allclose(own.rest, of_rest[:, each.group.functions].sum(axis=1))
        for place in np.ndindex(each.w.shape):
            step = np.zeros_like(each.w)
            step[place] = 1e-6
            difference = (total(g, each.w + step) - total(g, each.w - step)) / 2e-6
            assert_allclose(own.w[place], difference, rtol=1e-5, atol=1e-6)


def test_slope_in_a_residual_variance_of_zero_is_zero():
    s, h = sites()
    q, (features,) = StepPosterior(StepArrays(), s, h, np.ones(C)), features_of(ALL)
    all_said = [features._replace(rest=np.zeros(B))]
    of_mean, of_variance, of_rest = RNG.normal(size=(3, B, C))
    (found,) = q.slopes(all_said, q.covered(all_said), of_mean, of_variance, of_rest)
    (expected,) = q.slopes(all_said, q.covered(all_said), of_mean, of_variance, np.zeros((B, C)))
    assert not found.rest.any()
    assert_allclose(found.w, expected.w)


@pytest.mark.parametrize("groups", [ALL, TWO], ids=["all", "two groups"])
@pytest.mark.parametrize("single", [False, True])
def test_averages_of_sites_match_direct_sums(single, groups):
    s, _ = sites()
    features, weights = features_of(groups), RNG.uniform(size=(B, C))
    found = upper_spoilt(s)
    of_functions = [(each.w, each.group.functions) for each in features]
    StepArrays(single).with_sites(found, of_functions, weights, 0.3)
    w = by_function(features)
    expected = 0.7 * s + 0.3 * np.einsum("bk,kbi,kbj->kij", weights, w, w)
    assert_allclose(np.tril(found), np.tril(expected), rtol=1e-6, atol=1e-6)


def test_single_precision_is_avoided_if_inaccurate(monkeypatch):
    """Precisions of 1e10 in one direction, and negligible precisions in the direction of the mean."""
    basis, _ = np.linalg.qr(RNG.normal(size=(M, M)))
    s = np.stack([(basis * [1e10, 1e4, 1.0, 1e-3, 1e-6]) @ basis.T] * C)
    h = np.tile(basis @ [1e3, 1.0, 1.0, 1.0, 1.0], (C, 1))
    exact = np.linalg.solve(np.eye(M) + s[0], h[0])

    def error():
        try:
            return np.abs(StepPosterior(StepArrays(single=True), s, h, np.ones(C)).mean - exact).max()
        except np.linalg.LinAlgError:
            return np.inf

    assert error() < 1e-5
    monkeypatch.setattr(step_arrays, "_LARGEST_TRACE", np.inf)
    assert error() > 0.1
