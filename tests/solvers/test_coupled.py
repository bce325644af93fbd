"""The coupled posterior against dense algebra with 60 digits.

Rounding of K and π may change results by a few times κ times the rounding unit. Here κ = 1 + trace K is an upper bound
of the largest eigenvalue of A.
"""

from itertools import cycle

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from pymc_gpep.gaussians.dense_algebra import evidence_gradient, factorise, marginal_moments
from pymc_gpep.kernels.gaussians.coupled import latent_weights
from tests.reference.dense_posterior import dense_posterior

EPS = np.finfo(float).eps


def inputs(seed, n):
    return np.random.default_rng(seed).standard_normal((n, 2))


def squared_exponential(X, variance, lengthscale, jitter):
    squared = ((X[:, None] - X) ** 2).sum(-1)
    return (variance * np.exp(-0.5 * squared / lengthscale**2) + jitter * np.eye(len(X)))[None]


def sites(seed, c, n, small=None):
    """Sites like nested EP's, with π = 1 for the observed class.

    About half of the other precisions have size `small`.
    """
    rng = np.random.default_rng(seed)
    y = rng.integers(0, c, n)
    pi = rng.uniform(0.1, 0.9, (c, n))
    if small is not None:
        pi = np.where(rng.uniform(size=(c, n)) < 0.5, small * rng.uniform(0.5, 1.0, (c, n)), pi)
    beta = rng.standard_normal((c, n)) * np.sqrt(pi)
    pi[y, range(n)] = 1.0
    beta[y, range(n)] = 0.0
    return pi, beta.sum(0) / pi.sum(0) * pi - beta


def solve(k, pi, nu):
    """Results of all kernels: b, mean, marginal covariances, log|I + KΠ|, gradient."""
    c, n = pi.shape
    inverses, work = np.full((2, c, n, n), np.nan)
    p, one = np.full((2, n, n), np.nan)
    b, mean = np.full((2, c, n), np.nan)
    cov, gradient = np.full((n, c, c), np.nan), np.full_like(k, np.nan)
    ok, log_det = factorise(k, pi, inverses, p)
    assert ok
    latent_weights(inverses, p, pi, nu, b)
    marginal_moments(k, inverses, p, pi, b, work, mean, cov)
    evidence_gradient(inverses, p, pi, b, one, gradient)
    return b, mean, cov, log_det - np.log(pi.sum(0)).sum(), gradient


def errors(k, pi, nu):
    """Largest errors of the results of `solve`.

    Errors of marginal covariances are in units of standard deviations. The error of the log determinant is relative to
    1 + its absolute value. Other errors are relative to the largest entry (at least 1e-300, so that zeros must be
    exact).
    """
    exact = dense_posterior(k, pi, nu)
    c, n = pi.shape
    points = np.arange(n)
    with mpmath.workdps(60):
        cov = exact.covariance[:, points, :, points]
        gradient = np.array(
            [np.outer(exact.weights[a], exact.weights[a]) - exact.m_matrix[a, :, a] for a in range(c)]
        ) / mpmath.mpf(2)
        if k.shape[0] == 1:
            gradient = gradient.sum(0, keepdims=True)
        b, mean, found_cov, log_det, found_gradient = solve(k, pi, nu)
        sd = np.sqrt(np.diagonal(cov.astype(float), axis1=1, axis2=2))
        error = {
            name: float(np.abs(found - value).max() / max(np.abs(value).max(), mpmath.mpf("1e-300")))
            for name, found, value in (
                ("b", b, exact.weights),
                ("mean", mean, exact.mean),
                ("gradient", found_gradient, gradient),
            )
        }
        error["log det"] = float(abs(log_det - exact.log_determinant) / (1 + abs(exact.log_determinant)))
        scaled = np.abs(found_cov - cov).astype(float) / np.maximum(sd[:, :, None] * sd[:, None, :], 1e-300)
        error["cov"] = float(scaled.max())
    return error


X = inputs(0, 7)
SAME = X[[0, 0, 2, 3, 3, 3, 6]]
PRIORS = {
    f"variance {variance:.0e}, length scale {lengthscale:.0f}, jitter {jitter:.0e}": squared_exponential(
        X, variance, lengthscale, jitter
    )
    for variance in (1e-8, 1.0, 1.6e5, 1e8)
    for lengthscale, jitter in ((1.0, 1e-6), (np.exp(2.5), 1e-8), (np.exp(5.0), 1e-6), (np.exp(5.0), 1e-8))
} | {
    "same points": squared_exponential(SAME, 1.0, 1.0, 0.0),
    "same points, large": squared_exponential(SAME, 1.6e5, 1.0, 0.0),
    "constant function": np.full((1, 7, 7), 1e5),
    "zero": np.zeros((1, 7, 7)),
    "per class": np.concatenate(
        [squared_exponential(X, *of_class) for of_class in ((1e-8, 1.0, 1e-10), (1.0, 2.0, 1e-6), (1e6, 5.0, 1e-6))]
    ),
    "one class without prior variance": np.concatenate([np.zeros((2, 7, 7)), squared_exponential(X, 3.0, 1.0, 0.0)]),
    "one point": np.array([[[4.0]]]),
    "one point, per class": np.array([[[1e-8]], [[1.0]], [[1e8]]]),
}


# Each prior has one size of π. Sizes cycle with period five through the four length scales and jitters, so that all
# pairs occur.
SIZES = cycle((None, 1e-12, None, 1e-100, 0.0))
CASES = {f"{name}, π {small}": (k, small) for (name, k), small in zip(PRIORS.items(), SIZES, strict=False)}


@pytest.mark.parametrize(("k", "small"), CASES.values(), ids=CASES.keys())
def test_coupled_posterior_equals_dense_algebra(k, small):
    pi, nu = sites(1, 3, k.shape[-1], small)
    kappa = 1.0 + k.trace(axis1=1, axis2=2).max()
    for name, error in errors(k, pi, nu).items():
        assert error < 30 * EPS + 2 * kappa * EPS, name


@pytest.mark.parametrize("c", [2, 3, 6])
@pytest.mark.parametrize("per_class", [False, True])
def test_coupled_posterior_of_any_number_of_classes_equals_dense_algebra(c, per_class):
    n = 6
    k = np.concatenate([squared_exponential(inputs(a, n), 2.0 + a, 1.0, 1e-8) for a in range(c if per_class else 1)])
    assert max(errors(k, *sites(c, c, n, 1e-3)).values()) < 100 * EPS


def test_coupled_posterior_of_softmax_sites_equals_dense_algebra():
    """π sums to one over the classes, as in the Laplace approximation of a softmax."""
    rng = np.random.default_rng(3)
    pi = rng.dirichlet(np.full(4, 0.2), size=7).T
    nu = rng.standard_normal((4, 7))
    assert max(errors(squared_exponential(X, 5.0, 1.0, 1e-8), pi, nu - nu.mean(0)).values()) < 300 * EPS


@pytest.mark.parametrize("n", [1, 63, 64, 65, 130])
@pytest.mark.parametrize("per_class", [False, True])
def test_tiles_of_large_matrices_are_mirrored(n, per_class):
    """Sizes are near the tile size at which triangles are mirrored. The reference has double precision."""
    c = 3
    k = np.concatenate([squared_exponential(inputs(a, n), 1.0 + a, 1.0, 1e-2) for a in range(c if per_class else 1)])
    pi, nu = sites(n, c, n)
    b, mean, cov, log_det, gradient = solve(k, pi, nu)
    prior, precision = np.zeros((2, c, n, c, n))
    for a in range(c):
        prior[a, :, a] = k[a % len(k)]
        precision[a, range(n), a, range(n)] = pi[a]
        for e in range(c):
            precision[a, range(n), e, range(n)] -= pi[a] * pi[e] / pi.sum(0)
    prior, precision = prior.reshape(c * n, c * n), precision.reshape(c * n, c * n)
    stretched = np.eye(c * n) + precision @ prior
    m_matrix = np.linalg.solve(stretched, precision)
    dense = (prior - prior @ m_matrix @ prior).reshape(c, n, c, n)
    weights = np.linalg.solve(stretched, nu.ravel()).reshape(c, n)
    slopes = 0.5 * np.array(
        [np.outer(weights[a], weights[a]) - m_matrix.reshape(c, n, c, n)[a, :, a] for a in range(c)]
    )
    assert_allclose(b, weights, atol=1e-11)
    assert_allclose(mean, (prior @ weights.ravel()).reshape(c, n), atol=1e-10)
    assert_allclose(cov, dense[:, range(n), :, range(n)], atol=1e-11)
    assert log_det == pytest.approx(np.linalg.slogdet(stretched)[1], rel=1e-11)
    assert_allclose(gradient, slopes if per_class else slopes.sum(0, keepdims=True), atol=1e-11)
    assert (gradient == gradient.transpose(0, 2, 1)).all()


@pytest.mark.parametrize("eigenvalue", [-2.0, np.nan])
def test_indefinite_covariance_returns_failure(eigenvalue):
    k = np.diag([1.0, 2.0, eigenvalue])[None]
    pi, _ = sites(0, 3, 3)
    pi[:] = 1.0
    ok, log_det = factorise(k, pi, np.empty((3, 3, 3)), np.empty((3, 3)))
    assert not (ok and np.isfinite(log_det))


@settings(deadline=None, derandomize=True, max_examples=40)
@given(st.integers(0, 10_000), st.integers(1, 12), st.integers(2, 6), st.sampled_from([1e-6, 1.0, 1e4]))
def test_posterior_variance_is_below_the_prior_and_weights_sum_to_zero(seed, n, c, variance):
    """Weights sum to zero over classes. Permuted classes give permuted results."""
    k = squared_exponential(inputs(seed, n), variance, 1.0, 0.0)
    pi, nu = sites(seed, c, n, 1e-9)
    b, mean, cov, log_det, gradient = solve(k, pi, nu)
    slack = 1e-12 * (1.0 + variance)
    assert_allclose(b.sum(0), 0.0, atol=slack)
    assert (np.linalg.eigvalsh(cov) > -slack * variance).all()
    assert (np.linalg.eigvalsh(variance * np.eye(c) - cov) > -slack * variance).all()
    assert log_det > -slack
    order = np.random.default_rng(seed).permutation(c)
    other_b, other_mean, other_cov, other_log_det, other_gradient = solve(k, pi[order], nu[order])
    assert_allclose(other_b, b[order], atol=slack)
    assert_allclose(other_mean, mean[order], atol=slack * max(variance, 1.0))
    assert_allclose(other_cov, cov[:, order][:, :, order], atol=slack * variance)
    assert other_log_det == pytest.approx(log_det, abs=slack)
    assert_allclose(other_gradient, gradient, atol=slack)


@pytest.mark.parametrize("n", [199, 200])
@pytest.mark.parametrize("variance", [5.0, 1e8])
def test_covariance_of_class_differences_keeps_its_digits_for_equal_covariances(n, variance):
    """Under a shared covariance, moments of the last class are computed from the other classes."""
    pi, nu = sites(7, 4, n)
    shared = squared_exponential(inputs(7, n), variance, 1.0, 1e-4)
    (_, _, cov, _, _), (_, _, expected, _, _) = solve(shared, pi, nu), solve(np.repeat(shared, 4, axis=0), pi, nu)
    differences = np.eye(4)[1:] - np.eye(4)[0]
    found, exact = (differences @ each @ differences.T for each in (cov, expected))
    assert_allclose(found, exact, rtol=0, atol=1e-9 * abs(exact).max())
