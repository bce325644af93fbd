"""Tilted moments by quadrature in kernels, against grids."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from pymc_gpep.kernels.methods.factors import quadrature_tilted
from pymc_gpep.rivals.kernels.class_independent import class_sites
from pymc_gpep.rivals.kernels.quadrature_ep import product_moments, truncated_moments
from pymc_gpep.rivals.qep import quadrature_rule
from tests.reference.dense_nested_ep import site
from tests.reference.exact import log_likelihood
from tests.reference.tilted import cavity_of_g, independent_tilted, product_rule, trapezium


def cavity(seed, c, variance):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(c, c))
    covariance = variance * (root @ root.T / c + 0.2 * np.eye(c))
    return np.sqrt(variance) * rng.normal(size=c), covariance


def of_g(kernel, mu, C, *arguments):
    """Results of a kernel as moments of g."""
    d = mu.size
    factor, mean, cov = np.linalg.cholesky(C), np.empty(d), np.empty((d, d))
    log_z = kernel(mu, *arguments, mean, cov)
    return log_z, mu + factor @ mean, factor @ cov @ factor.T


@pytest.mark.parametrize(("d", "order"), [(1, 3), (2, 7), (4, 5)])
def test_product_rule_matches_the_rule_of_the_paper(d, order):
    mu, C = cavity_of_g(*cavity(d, d + 1, 2.0), 0)
    expected = product_rule(mu, C, order)
    factor = np.linalg.cholesky(C)
    log_z, mean, cov = of_g(product_moments, mu, C, factor, quadrature_rule("gauss_hermite", order))
    assert log_z == pytest.approx(expected.log_normaliser, abs=1e-12)
    assert_allclose(mean, expected.mean, atol=1e-11)
    assert_allclose(cov, expected.covariance, atol=1e-11)


@pytest.mark.parametrize("variance", [0.1, 3.0, 30.0])
@pytest.mark.parametrize(("c", "order", "error"), [(2, 1, 1e-10), (3, 10, 2e-4), (3, 30, 1e-6)])
def test_truncated_rule_matches_the_product_rule(c, order, error, variance):
    for seed in range(3):
        mu, C = cavity_of_g(*cavity(seed, c, variance), seed % c)
        expected = trapezium(mu, C)
        factor = np.linalg.cholesky(C)
        log_z, mean, cov = of_g(
            truncated_moments, mu, C, C, factor, quadrature_rule("truncated", order), np.full(c - 1, -1)
        )
        deviation = np.sqrt(np.diag(expected.covariance))
        assert log_z == pytest.approx(expected.log_normaliser, abs=error)
        assert_allclose(mean / deviation, expected.mean / deviation, atol=error)
        assert_allclose((cov - expected.covariance) / np.outer(deviation, deviation), 0.0, atol=error)


@pytest.mark.parametrize("variance", [1.0, 1e3, 1e6])
def test_truncated_rule_is_as_accurate_for_large_variances(variance):
    mu, C = cavity_of_g(*cavity(5, 5, variance), 2)
    factor = np.linalg.cholesky(C)
    coarse, fine = (
        of_g(truncated_moments, mu, C, C, factor, quadrature_rule("truncated", order), np.full(4, -1))
        for order in (10, 24)
    )
    deviation = np.sqrt(np.diag(fine[2]))
    assert coarse[0] == pytest.approx(fine[0], abs=1e-5)
    assert_allclose(coarse[1] / deviation, fine[1] / deviation, atol=1e-4)
    assert_allclose((coarse[2] - fine[2]) / np.outer(deviation, deviation), 0.0, atol=3e-4)


def by_kernel(mean, variance, y):
    c = mean.size
    space = [np.full(shape, np.nan) for shape in (c, c, c, (4, c))]  # initial contents of outputs must not matter
    new = np.full((2, c), np.nan)
    log_z, _ = quadrature_tilted(tuple(space), mean, variance, y, new, new, np.empty(c))
    precision = new[0] + 1.0 / variance
    return log_z, (new[1] + mean / variance) / precision, 1.0 / precision, new[0]


@pytest.mark.variation
@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 10_000), st.integers(2, 7), st.floats(-3, 8), st.floats(-3, 8))
def test_tilted_moments_under_independent_cavities_match_reference(seed, c, low, high):
    rng = np.random.default_rng(seed)
    variance = np.exp(rng.uniform(min(low, high), max(low, high), size=c))
    mean = np.sqrt(variance.max()) * rng.normal(size=c)
    y = int(rng.integers(c))
    expected = independent_tilted(mean, variance, y)
    log_z, found_mean, found_variance, precision = by_kernel(mean, variance, y)
    assert log_z == pytest.approx(expected.log_normaliser, rel=1e-12, abs=1e-12)
    assert_allclose((found_mean - expected.mean) / np.sqrt(variance), 0.0, atol=1e-10)
    assert_allclose((found_variance - np.diag(expected.covariance)) / variance, 0.0, atol=1e-10)
    assert np.all((precision >= 0.0) & (precision < 1.0))


def test_tilted_moments_under_independent_cavities_match_sums_over_a_grid():
    mean, variance, y = np.array([0.5, -1.0, 1.5]), np.array([2.0, 0.5, 4.0]), 1
    axis = np.linspace(-8.0, 8.0, 49)
    x = np.stack(np.meshgrid(axis, axis, axis, indexing="ij"), axis=-1).reshape(-1, 3)
    f = mean + np.sqrt(variance) * x
    parts = [log_likelihood(part, y) for part in np.array_split(f, 20)]  # smaller arrays need less memory
    weight = np.exp(np.concatenate(parts) - 0.5 * (x**2).sum(1))
    total = weight.sum()
    log_z, found_mean, found_variance, _ = by_kernel(mean, variance, y)
    expected = weight @ f / total
    assert log_z == pytest.approx(np.log(total * ((axis[1] - axis[0]) / np.sqrt(2 * np.pi)) ** 3), abs=1e-9)
    assert_allclose(found_mean, expected, atol=1e-9)
    assert_allclose(found_variance, weight @ (f - expected) ** 2 / total, atol=1e-9)


@pytest.mark.parametrize("c", [2, 3, 6])
def test_site_of_each_class_matches_the_marginal_tilted_moments(c):
    rng = np.random.default_rng(c)
    y = c // 2
    alpha, beta = rng.uniform(size=c - 1), rng.normal(size=c - 1)
    mean, variance = rng.normal(size=c), rng.uniform(0.1, 30.0, size=c)
    precision, location = site(alpha, beta, y)
    covariance = np.linalg.inv(np.diag(1 / variance) + precision)
    tilted_mean = covariance @ (mean / variance + location)
    pi, nu = np.empty(c), np.empty(c)
    class_sites(mean, variance, y, alpha, beta, pi, nu)
    assert_allclose(pi, 1 / np.diag(covariance) - 1 / variance, atol=1e-12)
    assert_allclose(nu, tilted_mean / np.diag(covariance) - mean / variance, atol=1e-11)
