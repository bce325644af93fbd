"""Class probabilities of a multinomial probit under normal latent values, against other methods."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import ndtr
from scipy.stats import norm

from pymc_gpep.likelihoods.multinomial_probit import _orthants, class_probabilities
from tests.reference.orthant import class_probabilities as by_averaging
from tests.reference.orthant import orthant_probabilities


def posterior(m, c, scale, seed=0):
    rng = np.random.default_rng([seed, c])
    a = scale * rng.standard_normal((m, c, c)) / np.sqrt(c)
    return scale * rng.standard_normal((m, c)), a @ a.transpose(0, 2, 1)


@pytest.mark.parametrize("scale", [0.3, 3.0, 30.0])
@pytest.mark.parametrize(
    ("c", "accuracy", "genz"), [(2, 1e-14, 1e-14), (3, 1e-13, 1e-13), (4, 1e-6, 1e-7), (6, 1e-4, 1e-5)]
)
def test_probabilities_match_genz_algorithm(c, accuracy, genz, scale):
    mean, cov = posterior(4 if c < 6 else 2, c, scale)
    p, error = class_probabilities(mean, cov)
    expected = [orthant_probabilities(*point, genz) for point in zip(mean, cov + np.eye(c), strict=True)]
    np.testing.assert_allclose(p, expected, rtol=0, atol=accuracy)
    assert np.all(error < max(accuracy, 1e-10))


@pytest.mark.parametrize(("c", "scale"), [(3, 5.0), (4, 0.5), (5, 5.0), (10, 0.5)])
def test_probabilities_match_averages_over_draws(c, scale):
    mean, cov = posterior(2, c, scale, seed=1)
    p, error = class_probabilities(mean, cov, tolerance=1e-4)
    for i in range(2):
        expected, standard_error = by_averaging(mean[i], cov[i])
        assert np.all(np.abs(p[i] - expected) < error[i] + 5 * standard_error + 1e-12)
        assert standard_error.max() < 3e-4


@pytest.mark.slow
@pytest.mark.parametrize("c", [10, 26])
def test_probabilities_match_long_averages(c):
    mean, cov = posterior(1, c, 2.0, seed=2)
    cov = np.round(cov, 8)  # Stored numbers depend on all digits, and the last digits depend on the processor.
    p, error = class_probabilities(mean, cov, tolerance=2e-5)
    expected, standard_error = by_averaging(mean[0], cov[0], 17)
    assert np.all(np.abs(p[0] - expected) < error[0] + 5 * standard_error)
    assert standard_error.max() < 2e-4
    assert error[0] < 1e-4


@pytest.mark.parametrize("c", [2, 3, 4, 5, 8])
def test_exchangeable_classes_are_equally_probable(c):
    p, error = class_probabilities(np.full((1, c), 2.0), 3.0 * np.eye(c)[None] + 5.0)
    np.testing.assert_allclose(p, 1 / c, atol=max(error[0], 1e-10))


@pytest.mark.parametrize("c", [2, 3, 4, 6])
def test_reported_error_covers_the_difference_from_a_more_exact_result(c):
    mean, cov = posterior(20, c, 2.0)
    p, error = class_probabilities(mean, cov, tolerance=1e-3)
    tight, tight_error = class_probabilities(mean, cov, tolerance=1e-5)
    assert np.all(tight_error < 2e-5)
    assert np.mean(np.abs(p - tight).max(1) <= error + 2e-5) > 0.9


@pytest.mark.parametrize("c", [2, 3, 4, 5, 7])
@pytest.mark.parametrize(
    ("means", "covariance"),
    [
        (1.0, 0.0),
        (1e3, 1.0),
        (1.0, 1e-12),
        (1.0, 1e6),
        (1e3, 1e6),
    ],
)
def test_extreme_moments_give_valid_probabilities(c, means, covariance):
    rng = np.random.default_rng(c)
    mean = means * rng.standard_normal((5, c))
    a = rng.standard_normal((5, c, c))
    p, error = class_probabilities(mean, covariance * a @ a.transpose(0, 2, 1), tolerance=1e-4)
    assert np.all((p >= 0) & (p <= 1))
    np.testing.assert_allclose(p.sum(1), 1.0, atol=1e-14)
    assert np.all(error < 1e-3)
    if means == 1e3 and covariance == 1.0:
        np.testing.assert_allclose(p[np.arange(5), mean.argmax(1)], 1.0, atol=1e-3)


@pytest.mark.parametrize("c", [3, 4, 6])
def test_nearly_equal_classes_have_accurate_probabilities(c):
    # The latent values of all classes but the last are nearly equal: their utilities differ by the noise.
    mean = np.zeros((1, c))
    mean[0, -1] = -1e5
    p, _ = class_probabilities(mean, np.full((1, c, c), 1e6) + 1e-9 * np.eye(c), tolerance=1e-4)
    np.testing.assert_allclose(p[0], [1 / (c - 1)] * (c - 1) + [0.0], atol=2e-4)
    # Two groups of classes differ along one direction of huge variance.
    direction = np.where(np.arange(c) < c // 2, 1e3, -1e3)
    p, _ = class_probabilities(np.zeros((1, c)), np.outer(direction, direction)[None], tolerance=1e-4)
    expected = np.where(np.arange(c) < c // 2, 0.5 / (c // 2), 0.5 / (c - c // 2))
    np.testing.assert_allclose(p[0], expected, atol=2e-3)


def test_two_classes_match_the_closed_form():
    mean, cov = posterior(50, 2, 3.0)
    p, _ = class_probabilities(mean, cov)
    difference = mean[:, 1] - mean[:, 0]
    variance = 2.0 + cov[:, 0, 0] + cov[:, 1, 1] - 2 * cov[:, 0, 1]
    np.testing.assert_allclose(p[:, 1], ndtr(difference / np.sqrt(variance)), rtol=1e-13)


@pytest.mark.parametrize("c", [3, 4, 10])
def test_probabilities_of_independent_classes_are_exact(c):
    """SciPy integrates the probability of each class. A common shift of all classes does not change the probability."""
    rng = np.random.default_rng(c)
    mean, variance = 2.0 * rng.standard_normal(c), np.exp(rng.standard_normal(c))
    sd = np.sqrt(1.0 + variance)

    def density(x, k):
        others = np.delete((x - mean) / sd, k)
        return norm.pdf(x, mean[k], sd[k]) * ndtr(others).prod()

    expected = [quad(density, -40, 40, args=(k,), epsabs=1e-13, epsrel=1e-12, points=mean)[0] for k in range(c)]
    p, error = class_probabilities(mean[None], np.diag(variance)[None])
    np.testing.assert_allclose(p[0], expected, rtol=0, atol=1e-11)
    assert error[0] < 1e-10
    common, its_error = class_probabilities(mean[None], np.diag(variance)[None] + 50.0)
    np.testing.assert_allclose(common[0], expected, rtol=0, atol=max(its_error[0], 1e-9))


@pytest.mark.parametrize(("c", "variance"), [(5, 4.0), (10, 20.0)])
def test_reported_error_covers_the_true_error_for_weakly_correlated_classes(c, variance):
    """Covariances are nearly diagonal, as under independent priors. The reference integrates each class separately."""
    rng = np.random.default_rng([7, c])
    a = rng.standard_normal((30, c, 2)) * np.sqrt(0.1 * variance)
    mean, cov = np.sqrt(variance) * rng.standard_normal((30, c)), variance * np.eye(c) + a @ a.transpose(0, 2, 1)
    p, error = class_probabilities(mean, cov)
    assert error.max() <= 5e-5
    exact, its_error = _orthants(mean, cov, 2e-5)
    assert np.mean(np.abs(p - exact).max(1) <= error + its_error) > 0.95


@settings(deadline=None, max_examples=50)
@given(st.integers(2, 4), st.integers(0, 2**32), st.floats(-3, 3), st.floats(-100, 100))
def test_shifts_and_permutations_do_not_change_probabilities(c, seed, log_scale, shift):
    mean, cov = posterior(1, c, 10.0**log_scale, seed)
    p, _ = class_probabilities(mean, cov)
    order = np.random.default_rng(seed).permutation(c)
    permuted, _ = class_probabilities(mean[:, order] + shift, cov[:, order][:, :, order] + abs(shift))
    np.testing.assert_allclose(permuted, p[:, order], atol=1e-8)


def test_results_are_reproducible():
    mean, cov = posterior(3, 6, 1.0)
    first, second = class_probabilities(mean, cov, tolerance=1e-3), class_probabilities(mean, cov, tolerance=1e-3)
    alone = class_probabilities(mean[1:2], cov[1:2], tolerance=1e-3)
    np.testing.assert_array_equal(first[0], second[0])
    np.testing.assert_array_equal(first[0][1:2], alone[0])


@pytest.mark.parametrize("c", [2, 3, 4, 6])
def test_nan_moments_return_nan(c):
    mean, cov = posterior(2, c, 1.0)
    cov[0] = np.nan
    p, error = class_probabilities(mean, cov, tolerance=1e-3)
    assert np.isnan(p[0]).all()
    assert np.isnan(error[0])
    assert p[1].sum() == pytest.approx(1.0)


def test_zero_points_return_an_empty_array():
    p, error = class_probabilities(np.empty((0, 3)), np.empty((0, 3, 3)))
    assert p.shape == (0, 3)
    assert error.shape == (0,)


@pytest.mark.parametrize(
    ("mean", "cov", "options", "message"),
    [
        (np.zeros(3), np.eye(3), {}, r"\(m, c\) and \(m, c, c\)"),
        (np.zeros((2, 3)), np.zeros((2, 3, 2)), {}, r"\(2, 3, 2\)"),
        (np.zeros((2, 1)), np.zeros((2, 1, 1)), {}, "at least 2 classes"),
        (np.zeros((2, 3)), np.zeros((2, 3, 3)), {"tolerance": 0.0}, "tolerance must be positive"),
        (np.zeros((2, 3)), np.zeros((2, 3, 3)), {"method": "guess"}, "'guess'"),
    ],
)
def test_wrong_arguments_are_refused(mean, cov, options, message):
    with pytest.raises(ValueError, match=message):
        class_probabilities(mean, cov, **options)


@pytest.mark.parametrize("c", [3, 4, 6])
@pytest.mark.parametrize(("scale", "unequal"), [(0.0, 1.0), (1.0, 1000.0), (30.0, 1.0), (30.0, 1000.0)])
def test_small_probabilities_have_small_relative_error(c, scale, unequal):
    """The reference integrates over the utility of the class. Given this utility, all comparisons are independent."""
    rng = np.random.default_rng(5)
    # The class is far below two similar classes, far below one class, or has a utility with a variance that decides.
    mean = np.array([[0.0, 14.0, 7.0], [0.0, 20.0, 8.0], [0.0, 13.0, 13.0], [0.0, -3.0, 30.0], [0.0, 9.0, -9.0]])
    mean = np.concatenate([mean, rng.uniform(-5.0, 5.0, size=(5, c - 3))], axis=1)
    variance = scale * rng.uniform(0.2, 1.0, size=mean.shape) * np.where(np.arange(c) == 1, unequal, 1.0)
    mean *= np.sqrt(1.0 + scale)
    p, _ = class_probabilities(mean, np.stack([np.diag(each) for each in variance]))
    for m, sd, found in zip(mean, np.sqrt(1.0 + variance), p[:, 0], strict=True):

        def log_density(u, m=m, sd=sd):
            return norm.logpdf(u, m[0], sd[0]) + norm.logcdf(u[:, None], m[1:], sd[1:]).sum(axis=1)

        at = np.linspace(m[0] - 15.0 * sd[0], m[1:].max() + 15.0 * sd.max(), 60_001)
        expected = np.exp(log_density(at)).sum() * (at[1] - at[0])
        assert expected > 0.0
        np.testing.assert_allclose(found, expected, rtol=1e-8 if c == 3 else 1e-6)
