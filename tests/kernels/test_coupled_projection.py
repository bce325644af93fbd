"""Constrained projection onto coupled sites, against SciPy's minimiser and the conditions of stationarity."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.kernels.moments.coupled_projection import difference_precision, project_site
from tests.kernels.test_softmax_quadrature import moments
from tests.reference.softmax_ep import cavity, coupled_precision, divergence, nearest_site

LABEL = 1


def project(factor, loss, start=None):
    c = len(loss)
    log_pi = np.full(c, -np.log(c)) if start is None else start.copy()
    left = project_site(factor, loss, LABEL, log_pi)
    return np.exp(log_pi), left


def problem(seed, c, variance):
    """F, Ω, and the covariances of the cavity and of the tilted distribution."""
    mean, covariance = cavity(seed, c, variance)
    _, factor, _, loss = moments(mean, covariance, 500)
    return factor, loss, covariance, factor @ (np.eye(c) - loss) @ factor.T


@pytest.mark.parametrize("c", [2, 3, 5])
def test_site_precision_equals_the_precision_of_differences(c):
    pi, precision = np.random.default_rng(c).gamma(1.0, size=c), np.empty((c - 1, c - 1))
    difference_precision(pi, LABEL, precision)
    assert_allclose(precision, coupled_precision(pi, LABEL), rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("variance", [0.01, 1.0, 30.0])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("c", [3, 4])
def test_no_random_start_finds_a_better_site(c, seed, variance):
    factor, loss, covariance, tilted = problem(seed, c, variance)
    pi, left = project(factor, loss)
    assert left < 1e-9
    _, smallest = nearest_site(LABEL, covariance, tilted, starts=3)
    assert divergence(pi, LABEL, covariance, tilted) <= smallest + 1e-6 * max(smallest, 1e-3)


@pytest.mark.parametrize("variance", [1e-8, 0.01, 1.0, 30.0])
@pytest.mark.parametrize("c", [2, 3, 4, 5, 6])
@pytest.mark.parametrize("seed", range(5))
def test_contrasts_have_their_tilted_variances(c, variance, seed):
    factor, loss, covariance, tilted = problem(seed, c, variance)
    pi, left = project(factor, loss)
    assert left < 1e-9
    gaussian = np.linalg.inv(np.linalg.inv(covariance) + coupled_precision(pi, LABEL))
    # coefficients of f_a − πᵀf / Σπ in the differences from f_y, without the difference of f_y itself
    z = np.delete(np.eye(c) - pi / pi.sum(), LABEL, axis=1)
    own = [np.einsum("aj,jk,ak->a", z, matrix, z) for matrix in (gaussian, tilted, covariance)]
    assert_allclose(own[0] / own[2], own[1] / own[2], atol=1e-9)
    if c <= 3:
        assert_allclose(gaussian / variance, tilted / variance, atol=1e-9)


@pytest.mark.parametrize("c", [4, 6])
def test_site_of_coupled_form_is_recovered(c):
    rng = np.random.default_rng(c)
    mean, covariance = cavity(2, c, 3.0)
    _, factor, _, _ = moments(mean, covariance, 300)
    pi = rng.gamma(2.0, size=c)
    m = factor.T @ coupled_precision(pi, LABEL) @ factor
    found, _ = project(factor, m @ np.linalg.inv(np.eye(c) + m))
    assert_allclose(found, pi, rtol=1e-7)


def test_two_classes_share_their_precision():
    factor, loss, covariance, tilted = problem(0, 2, 5.0)
    pi, _ = project(factor, loss)
    assert pi[0] == pi[1]
    assert 1 / covariance[0, 0] + pi[0] / 2 == pytest.approx(1 / tilted[0, 0], rel=1e-12)


@pytest.mark.parametrize("c", [3, 4])
def test_coupling_of_the_wrong_sign_ends_at_the_boundary(c):
    """No site of the coupled form matches the moments. The result approaches the best limit, without NaN."""
    mean, covariance = cavity(4, c, 1.0)
    _, factor, _, _ = moments(mean, covariance, 300)
    wrong = np.eye(c - 1) + 0.4
    m = factor.T @ wrong @ factor
    loss = m @ np.linalg.inv(np.eye(c) + m)
    pi, left = project(factor, loss)
    assert np.isfinite(pi).all()
    assert left < 1e-9
    assert pi[LABEL] > 1e6 * np.delete(pi, LABEL).max()
    tilted = np.linalg.inv(np.linalg.inv(covariance) + wrong)
    _, smallest = nearest_site(LABEL, covariance, tilted, starts=2)
    assert divergence(pi, LABEL, covariance, tilted) <= smallest + 1e-7


def test_site_without_information_is_zero():
    pi, left = project(np.zeros((2, 3)), np.zeros((3, 3)), np.log([0.2, 0.5, 0.3]))
    assert_allclose(pi, [0.2, 0.5, 0.3])
    assert left == 0.0
