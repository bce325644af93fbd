"""Inner EP against the same algorithm in the c + 1 dimensions of (f, u), and against exact results."""

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from pymc_gpep.kernels.moments.inner_ep import inner_ep_update, tilted_log_normaliser
from tests.reference.dense_nested_ep import inner_ep, site

classes = pytest.mark.parametrize("c", [2, 3, 5, 10])
scales = pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])


def cavity(c, scale, seed=0):
    rng = np.random.default_rng([c, seed])
    root = rng.standard_normal((c, c))
    return scale * rng.standard_normal(c), scale**2 * (root @ root.T / c + 0.1 * np.eye(c))


def directions(c, y):
    """Matrix (c + 1, c − 1) that maps (f, u) to g."""
    return np.vstack([np.eye(c)[:, [y]] - np.delete(np.eye(c), y, 1), np.ones((1, c - 1))])


def update(mean, cov, y, alpha, beta, max_sweeps=500, tolerance=1e-14):
    """Run `inner_ep_update` for one point. Return new sites, scale, evidence terms and residual."""
    new_alpha, new_beta, scale = np.full((3, 1, alpha.size), np.nan)
    terms, residual = inner_ep_update(
        mean[:, None], cov[None], np.array([y]), alpha[None], beta[None], max_sweeps, tolerance,
        new_alpha, new_beta, scale,
    )  # fmt: skip
    return new_alpha[0], new_beta[0], scale[0], terms, residual


def log_partition(mean, cov):
    return 0.5 * mean @ np.linalg.solve(cov, mean) + 0.5 * np.linalg.slogdet(cov)[1]


@classes
@scales
def test_tilted_log_normaliser_matches_reference(c, scale):
    means, covs = zip(*[cavity(c, scale, seed) for seed in range(3)], strict=True)
    result = tilted_log_normaliser(np.array(means), np.array(covs), 500, 1e-14)
    expected = [
        [inner_ep(mean, cov, y).log_normaliser for y in range(c)] for mean, cov in zip(means, covs, strict=True)
    ]
    assert_allclose(result, expected, rtol=1e-11, atol=1e-11)


@classes
@scales
def test_sites_updated_from_a_cavity_match_reference(c, scale):
    """With vacuous sites the posterior equals the cavity."""
    mean, cov = cavity(c, scale)
    for y in range(c):
        expected = inner_ep(mean, cov, y)
        alpha, beta, variance, terms, residual = update(mean, cov, y, np.zeros(c - 1), np.zeros(c - 1))
        assert_allclose(alpha, expected.alpha, rtol=1e-10, atol=1e-12)
        assert_allclose(beta, expected.beta, rtol=1e-10, atol=1e-11)
        b = directions(c, y)
        assert_allclose(variance, ((b[:c].T @ cov) * b[:c].T).sum(1) + 1.0, rtol=1e-12)
        once = update(mean, cov, y, np.zeros(c - 1), np.zeros(c - 1), max_sweeps=1)
        assert_allclose(once[0], inner_ep(mean, cov, y, max_sweeps=1).alpha, rtol=1e-10)
        assert residual > 1e-3
        z = (mean[y] - np.delete(mean, y)) / np.sqrt(1.0 + variance)
        assert terms == pytest.approx(sum(float(mpmath.log(mpmath.ncdf(x))) for x in z), rel=1e-12)


@classes
@scales
@pytest.mark.parametrize("converged", [True, False])
def test_sites_updated_from_a_marginal_equal_sites_updated_from_its_cavity(c, scale, converged):
    mean, cov = cavity(c, scale)
    precision = np.linalg.inv(cov)
    for y in range(c):
        expected = inner_ep(mean, cov, y)
        alpha, beta = expected.alpha, expected.beta
        if not converged:
            rng = np.random.default_rng(y)
            alpha, beta = alpha * rng.uniform(0.3, 1.0, c - 1), beta + rng.normal(scale=0.3, size=c - 1) * alpha
        pi, nu = site(alpha, beta, y)
        marginal = np.linalg.inv(precision + pi)
        marginal_mean = marginal @ (precision @ mean + nu)
        new_alpha, new_beta, variance, terms, residual = update(marginal_mean, marginal, y, alpha, beta)
        assert_allclose(new_alpha, expected.alpha, rtol=1e-9, atol=1e-11)
        assert_allclose(new_beta, expected.beta, rtol=1e-9, atol=1e-10)
        if not converged:
            assert residual > 1e-3
            continue
        assert residual < 1e-10
        b = directions(c, y)
        assert_allclose(variance, np.einsum("ij,ik,kj->j", b, expected.covariance, b), rtol=1e-10)
        # The tilted normaliser is the normaliser of cavity and site plus the terms.
        total = 1.0 + alpha.sum()
        with_site = log_partition(marginal_mean, marginal) - log_partition(mean, cov)
        with_site += 0.5 * beta.sum() ** 2 / total - 0.5 * np.log(total)
        assert with_site + terms == pytest.approx(expected.log_normaliser, rel=1e-10, abs=1e-10)


def test_results_of_a_point_do_not_depend_on_other_points():
    points = [(*cavity(4, 2.0, seed), seed % 4) for seed in range(5)]
    apart = [update(mean, cov, y, np.zeros(3), np.zeros(3)) for mean, cov, y in points]
    new_alpha, new_beta, scale = np.empty((3, 5, 3))
    terms, residual = inner_ep_update(
        np.array([mean for mean, _, _ in points]).T.copy(), np.array([cov for _, cov, _ in points]),
        np.array([y for _, _, y in points]), np.zeros((5, 3)), np.zeros((5, 3)), 500, 1e-14,
        new_alpha, new_beta, scale,
    )  # fmt: skip
    for together, part in ((new_alpha, 0), (new_beta, 1), (scale, 2)):
        assert_allclose(together, [a[part] for a in apart], rtol=1e-13)
    assert terms == pytest.approx(sum(a[3] for a in apart), rel=1e-13)
    assert residual == max(a[4] for a in apart)


@pytest.mark.parametrize("variance", [0.0, 1e-8, 1.0, 1.6e5, 1e8])
@pytest.mark.parametrize("difference", [-1e3, -20.0, -1.0, 0.0, 0.3, 5.0])
def test_log_normaliser_of_two_classes_is_exact(variance, difference):
    mean, cov = np.array([[0.0, difference]]), np.zeros((1, 2, 2))
    cov[0, 1, 1] = variance
    with mpmath.workdps(40):
        scale = mpmath.sqrt(2 + mpmath.mpf(variance))
        expected = [float(mpmath.log(mpmath.ncdf(sign * mpmath.mpf(difference) / scale))) for sign in (-1, 1)]
    # rounding errors are relative to summands, which have the size of the exponent of the cavity
    assert_allclose(tilted_log_normaliser(mean, cov, 50, 1e-12)[0], expected, rtol=1e-12, atol=1e-14)


@classes
def test_normaliser_for_zero_variance_is_the_likelihood(c):
    """Inner EP approximates the likelihood closely. In a symmetric case the probability is 1 / c."""
    equal = tilted_log_normaliser(np.zeros((1, c)), np.zeros((1, c, c)), 500, 1e-12)[0]
    assert np.ptp(equal) < 1e-12
    assert np.exp(equal[0]) == pytest.approx(1 / c, rel=0.05)


problems = st.tuples(st.integers(0, 10_000), st.integers(2, 8), st.sampled_from([0.1, 1.0, 10.0, 300.0]))
examples = settings(deadline=None, derandomize=True, max_examples=50)


@pytest.mark.variation
@examples
@given(problems, st.floats(-1e3, 1e3), st.floats(0.0, 1e3))
def test_common_shift_of_all_classes_does_not_change_results(problem, shift, variance):
    seed, c, scale = problem
    mean, cov = cavity(c, scale, seed)
    first = tilted_log_normaliser(mean[None], cov[None], 500, 1e-13)
    second = tilted_log_normaliser(mean[None] + shift, cov[None] + variance, 500, 1e-13)
    assert_allclose(second, first, rtol=1e-8, atol=1e-8)


@examples
@given(problems)
def test_classes_can_be_permuted_and_sites_stay_proper(problem):
    seed, c, scale = problem
    mean, cov = cavity(c, scale, seed)
    order = np.random.default_rng(seed).permutation(c)
    first = tilted_log_normaliser(mean[None], cov[None], 500, 1e-13)[0]
    second = tilted_log_normaliser(mean[None, order], cov[None, order][:, :, order], 500, 1e-13)[0]
    assert_allclose(second, first[order], rtol=1e-9, atol=1e-9)
    alpha, beta, _, _, _ = update(mean, cov, 0, np.zeros(c - 1), np.zeros(c - 1))
    assert ((alpha >= 0) & (alpha < 1)).all()
    assert np.isfinite(beta).all()
