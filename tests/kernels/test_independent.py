"""Posterior of one class, against dense elimination with 60 digits."""

import mpmath
import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.kernels.gaussians.independent import add_function_gradient, factorise_function, function_variance
from tests.reference.data import squared_exponential

N = 6


def dense(prior, pi):
    """Cov f = K − K B K and B (n, n) with B = (I + DK)⁻¹ D, and log|I + DK|, as floats."""
    with mpmath.workdps(60):
        k, d = mpmath.matrix(prior.tolist()), mpmath.diag([mpmath.mpf(p) for p in pi])
        stretched = mpmath.eye(len(pi)) + d * k
        b = mpmath.inverse(stretched) * d
        cov = k - k * b * k
        log_det = mpmath.log(mpmath.det(stretched))
        return np.array(cov.tolist(), float), np.array(b.tolist(), float), float(log_det)


def solve(prior, pi):
    inverse, variance, gradient = np.empty((N, N)), np.empty(N), np.zeros((N, N))
    b = np.random.default_rng(1).normal(size=N)
    ok, log_det = factorise_function(prior, pi, inverse)
    assert ok
    function_variance(prior, pi, inverse, variance)
    add_function_gradient(pi, inverse, b, gradient)
    return log_det, variance, np.outer(b, b) - 2.0 * gradient, gradient


def precisions(lowest):
    return np.random.default_rng(0).permutation(np.geomspace(lowest, 1.0, N)) if lowest else np.eye(N)[2]


@pytest.mark.parametrize("variance", [1e-8, 1e-3, 1.0, 1e3, 1e6])
@pytest.mark.parametrize("lowest", [0.0, 1e-100, 1e-30, 1e-12, 1e-3, 1.0])
def test_posterior_of_one_class_equals_dense_algebra(variance, lowest):
    X = np.random.default_rng(3).normal(size=(N, 2))
    prior = squared_exponential(X, variance=variance, lengthscale=1.0)
    pi = precisions(lowest)
    log_det, marginal, b, gradient = solve(prior, pi)
    expected_cov, expected_b, expected_log_det = dense(prior, pi)
    # With precise sites and a wide prior, the rounding errors of the prior variance remain.
    assert_allclose(marginal, expected_cov.diagonal(), rtol=1e-10, atol=1e-14 * variance)
    assert_allclose(b, expected_b, rtol=1e-8, atol=1e-13)
    assert log_det == pytest.approx(expected_log_det, rel=1e-11, abs=1e-14)
    assert (gradient == gradient.T).all()


def test_gradient_of_the_evidence_is_added_to_the_given_array():
    prior, pi = np.eye(N), np.ones(N)
    inverse, gradient = np.empty((N, N)), np.full((N, N), 3.0)
    factorise_function(prior, pi, inverse)
    add_function_gradient(pi, inverse, np.ones(N), gradient)
    assert_allclose(gradient, 3.5 - 0.25 * np.eye(N))


@pytest.mark.parametrize("eigenvalue", [-2.0, np.nan])
def test_indefinite_covariance_returns_failure(eigenvalue):
    ok, log_det = factorise_function(np.diag([1.0, 2.0, eigenvalue]), np.ones(3), np.empty((3, 3)))
    assert not (ok and np.isfinite(log_det))
