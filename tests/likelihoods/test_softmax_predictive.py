"""Averages of a softmax, against product quadrature and Monte Carlo averages."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.special import ndtr, ndtri, softmax
from scipy.stats import qmc

from pymc_gpep.likelihoods.factor_averages import CHEAP, DEAR, over_factors
from pymc_gpep.likelihoods.softmax import gumbel_noise, softmax_probabilities
from pymc_gpep.solvers import team
from tests.reference.softmax_average import softmax_average as dense_average


def posterior(m, c, scale, seed=0):
    rng = np.random.default_rng([seed, c])
    a = scale * rng.standard_normal((m, c, c)) / np.sqrt(c)
    return scale * rng.standard_normal((m, c)), a @ a.transpose(0, 2, 1)


def by_products(mean, cov, points=401):
    """Trapezoid rule in each of c whitened variables. It is exact to rounding for moderate variances."""
    c = len(mean)
    z = np.linspace(-9, 9, points)
    weight = np.exp(-0.5 * z**2) * (z[1] - z[0]) / np.sqrt(2 * np.pi)
    grid = np.stack(np.meshgrid(*[z] * c, indexing="ij"), -1).reshape(-1, c)
    weights = np.stack(np.meshgrid(*[weight] * c, indexing="ij"), -1).reshape(-1, c).prod(1)
    return weights @ softmax(mean + grid @ np.linalg.cholesky(cov).T, axis=1)


def by_averaging(mean, cov, shifts=8, log2_points=13):
    """Averages over scrambled Sobol sequences with their standard errors."""
    values, vectors = np.linalg.eigh(cov)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    averages = []
    for seed in range(shifts):
        z = ndtri(qmc.Sobol(len(mean), rng=seed).random_base2(log2_points))
        averages.append(softmax(mean + z @ root.T, axis=1).mean(0))
    return np.mean(averages, 0), np.std(averages, 0) / np.sqrt(shifts - 1)


@pytest.mark.parametrize(("c", "points"), [(2, 301), (3, 81)])
@pytest.mark.parametrize("scale", [0.3, 1.0, 2.0])
def test_probabilities_match_product_quadrature(c, points, scale):
    mean, cov = posterior(3, c, scale)
    p, error = softmax_probabilities(mean, cov)
    expected = [by_products(*point, points) for point in zip(mean, cov, strict=True)]
    assert_allclose(p, expected, atol=1e-10)
    assert error.max() < 1e-8


@pytest.mark.parametrize("c", [2, 3, 4, 5, 10])
@pytest.mark.parametrize("scale", [0.5, 5.0, 100.0])
def test_probabilities_match_averages_over_draws(c, scale):
    mean, cov = posterior(3, c, scale, seed=1)
    p, error = softmax_probabilities(mean, cov)
    for i in range(2):
        expected, standard_error = by_averaging(mean[i], cov[i])
        assert np.all(np.abs(p[i] - expected) < error[i] + 6 * standard_error + 1e-12)
    assert error.max() < 3e-3


@pytest.mark.parametrize("c", [4, 7])
def test_errors_are_within_tolerance_and_below_their_estimates(c):
    mean, cov = posterior(20, c, 0.7, seed=2)
    rough, rough_error = softmax_probabilities(mean, cov, tolerance=1e-3)
    fine, fine_error = softmax_probabilities(mean, cov, tolerance=3e-5)
    assert rough_error.max() < 1e-3
    assert fine_error.max() < 3e-5
    assert np.all(np.abs(rough - fine).max(1) < 2 * (rough_error + fine_error))


@pytest.mark.parametrize("c", [5, 9])
def test_error_estimates_cover_errors_under_strong_correlation(c):
    """Of sixty intervals at 99 % at most two may miss. Estimates that are too small would miss more often."""
    mean, cov = posterior(60, c, 3.0, seed=11)
    p, error = softmax_probabilities(mean, cov, tolerance=3e-3)
    rng = np.random.default_rng(c)
    normals = ndtri(np.concatenate([qmc.Sobol(c, rng=rng).random_base2(14) for _ in range(3)]))
    truth = np.array([
        softmax(m + normals @ np.linalg.cholesky(v + 1e-10 * np.eye(c)).T, axis=1).mean(0)
        for m, v in zip(mean, cov, strict=True)
    ])  # fmt: skip
    ratio = np.abs(p - truth).max(1) / error
    assert error.max() < 3e-3
    assert np.count_nonzero(ratio > 1.0) <= 2
    assert np.median(ratio) > 0.2  # the estimate is not much larger than the error


def test_probabilities_of_two_classes_are_exact_at_any_scale():
    """The probability is ½ by symmetry, and a step function of the mean under a huge variance."""
    mean = np.array([[0.0, 0.0], [1.0, -1.0], [3e4, 0.0]])
    cov = np.array([1e-12, 1e2, 1e9])[:, None, None] * np.eye(2)
    p, error = softmax_probabilities(mean, cov)
    assert p[0, 0] == pytest.approx(0.5, abs=1e-15)
    assert error.max() < 1e-14
    expected, standard_error = by_averaging(mean[1], cov[1])
    assert abs(p[1, 0] - expected[0]) < 6 * standard_error[0]
    assert p[2, 0] == pytest.approx(ndtr(3e4 / np.sqrt(2e9)), abs=1e-8)


@pytest.mark.parametrize("c", [2, 3, 6])
def test_zero_variance_returns_the_softmax(c):
    mean, _ = posterior(5, c, 3.0)
    p, error = softmax_probabilities(mean, np.zeros((5, c, c)))
    assert_allclose(p, softmax(mean, axis=1), atol=1e-15)
    assert error.max() < 1e-14


@pytest.mark.parametrize(("c", "variance", "share"), [(10, 1.0, 0.0), (10, 40.0, 0.01), (10, 4.0, 0.1), (6, 4.0, 0.5)])
def test_probabilities_match_dense_grids_over_two_factors(c, variance, share):
    """Classes have no correlation, a low or a high correlation. No class has a negligible probability."""
    rng = np.random.default_rng([c, int(variance)])
    mean, variances = rng.standard_normal(c), variance * np.exp(0.3 * rng.standard_normal(c))
    root = np.sqrt(share * variance) * rng.standard_normal((c, 2))
    expected = dense_average(mean, variances, root, nodes=15 if share else 1)
    assert_allclose(expected.sum(), 1.0, atol=1e-7)
    p, error = softmax_probabilities(mean[None], (np.diag(variances) + root @ root.T)[None])
    assert np.all(np.abs(p[0] - expected) < error[0])
    assert error[0] < 1e-4


def test_many_points_reach_the_tolerance():
    """Ten classes with low correlations, none of negligible probability, have errors within the tolerance."""
    rng = np.random.default_rng(5)
    a = rng.standard_normal((40, 10, 2)) * 0.3
    p, error = softmax_probabilities(rng.standard_normal((40, 10)), 4.0 * np.eye(10) + a @ a.transpose(0, 2, 1))
    assert error.max() <= 5e-5
    assert p.min() > 1e-3


def test_tolerance_below_the_accuracy_of_tables_is_reached_without_tables():
    mean, cov = posterior(2, 5, 0.3)
    p, error = softmax_probabilities(mean, cov, tolerance=2e-6)
    coarse, its_error = softmax_probabilities(mean, cov)
    assert error.max() < 5e-6
    assert np.all(np.abs(p - coarse).max(1) < error + its_error)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(0, 10_000), st.integers(2, 6), st.sampled_from([0.3, 3.0, 100.0]), st.booleans())
def test_shifts_and_permutations_do_not_change_probabilities(seed, c, scale, singular):
    """A common shift of the mean, a common variance, and permutations. Probabilities sum to one."""
    mean, cov = posterior(2, c, scale, seed)
    if singular:
        cov = cov[:, :1, :1] + np.zeros((2, c, c)) + np.outer(np.eye(c)[0], np.eye(c)[0])
    p, error = softmax_probabilities(mean, cov)
    assert_allclose(p.sum(1), 1.0, atol=1e-14)
    assert (p >= 0).all()
    shifted, shifted_error = softmax_probabilities(mean + 5.0, cov + 10.0 * scale)
    order = np.random.default_rng(seed).permutation(c)
    permuted, permuted_error = softmax_probabilities(mean[:, order], cov[:, order][:, :, order])
    assert np.all(np.abs(shifted - p).max(1) <= error + shifted_error + 1e-9)
    assert np.all(np.abs(permuted - p[:, order]).max(1) <= error + permuted_error + 1e-9)


def test_result_of_a_point_does_not_depend_on_other_points():
    mean, cov = posterior(4, 5, 1.0)
    p, error = softmax_probabilities(mean, cov)
    alone, alone_error = softmax_probabilities(mean[2:3], cov[2:3])
    assert_allclose(alone[0], p[2], atol=0)
    assert alone_error[0] == error[2]


def test_probabilities_do_not_depend_on_the_number_of_threads(monkeypatch):
    """The thirty points are divided into several pieces. The first rules suffice in some pieces, and fail in others."""
    mean, cov = posterior(30, 6, 2.0)
    cov[:15] = 4.0 * np.eye(6) + 0.05 * cov[:15]
    found = []
    for count in (1, 3):
        monkeypatch.setattr(team, "_processors", lambda count=count: count)
        monkeypatch.setattr(team, "_libraries", lambda count=count: [team._Library(lambda: count, lambda count: None)])
        found.append(softmax_probabilities(mean, cov))
    (p, error), (again, its_error) = found
    np.testing.assert_array_equal(p, again)
    np.testing.assert_array_equal(error, its_error)
    assert error[:15].max() <= 5e-5


def test_error_estimates_cover_errors_with_large_factors():
    """Few classes with large variances and large common factors, as after Laplace's method."""
    rng = np.random.default_rng(8)
    mean, variances = rng.standard_normal((6, 5)), 20.0 * np.exp(0.3 * rng.standard_normal((6, 5)))
    root = np.sqrt(5.0) * rng.standard_normal((6, 5, 2))
    cov = np.eye(5) * variances[:, None] + root @ root.transpose(0, 2, 1)
    expected = [dense_average(*point) for point in zip(mean, variances, root, strict=True)]
    for rules, tolerance in product((CHEAP, DEAR), (5e-5, 1e-2)):  # the first rules suffice, or are abandoned
        p, error = over_factors(mean, cov, gumbel_noise(), tolerance, rules)
        assert tolerance < 1e-2 or error.max() < tolerance
        assert np.all(np.abs(p - expected).max(axis=1) < error)


@pytest.mark.parametrize("c", [2, 3, 5])
def test_invalid_moments_return_nan(c):
    mean, cov = posterior(4, c, 1.0)
    mean[0, 0] = np.nan
    cov[1, 0, 1] = np.inf
    cov[2] = -np.eye(c)
    p, error = softmax_probabilities(mean, cov)
    assert np.isnan(p[:3]).all()
    assert np.isnan(error[:3]).all()
    assert np.isfinite(p[3]).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mean": np.zeros(3), "cov": np.zeros((3, 3))}, "shapes"),
        ({"mean": np.zeros((2, 3)), "cov": np.zeros((2, 3, 2))}, "shapes"),
        ({"mean": np.zeros((2, 1)), "cov": np.zeros((2, 1, 1))}, "at least 2 classes"),
        ({"mean": np.zeros((2, 3)), "cov": np.zeros((2, 3, 3)), "tolerance": 0.0}, "tolerance"),
    ],
)
def test_invalid_arguments_raise_value_error(arguments, message):
    with pytest.raises(ValueError, match=message):
        softmax_probabilities(**arguments)
