"""Largest of independent utilities: probabilities against quadrature in many digits, tables against SciPy."""

import mpmath
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import ndtr, ndtri

from pymc_gpep.kernels.special.largest_of_independent import FINE, probabilities_of_independent
from pymc_gpep.kernels.special.tabulated_normal import cdf_and_density, quantile
from tests.reference.stored import stored


@stored
def by_mpmath(mean, sd):
    """Integral for each class with mpmath, split at the means of the other classes."""
    with mpmath.workdps(20):

        def integrand(x, k):
            value = mpmath.npdf(x, mean[k], sd[k])
            for j in range(len(mean)):
                if j != k:
                    value *= mpmath.ncdf((x - mean[j]) / sd[j])
            return value

        found = []
        for k in range(len(mean)):
            low, high = mean[k] - 10 * sd[k], mean[k] + 10 * sd[k]
            breaks = {mean[j] + w * sd[j] for j in range(len(mean)) for w in (-6, -3, -1, 0, 1, 3, 6)}
            grid = sorted({low, high, *(x for x in breaks if low < x < high)})
            found.append(float(mpmath.quad(lambda x, k=k: integrand(x, k), grid)))
        return found


def computed(mean, variance, rule):
    (nodes, weights), reach, width = rule
    p, error = np.empty(mean.shape), np.empty(len(mean))
    probabilities_of_independent(mean, variance, nodes, weights, reach, width, p, error)
    return p, error


@pytest.mark.parametrize("spread", [0.0, 2.0])
def test_probabilities_of_the_largest_utility_match_values_of_many_digits(spread):
    rng = np.random.default_rng(0)
    sd = np.exp(spread * rng.standard_normal(4))
    mean = sd.max() * rng.standard_normal(4)
    expected = by_mpmath(mean, sd)
    p, error = computed(mean[None], sd[None] ** 2, FINE)
    assert_allclose(p[0], expected, rtol=0, atol=1e-11)
    assert error[0] < 1e-10


def test_many_classes_of_any_scale_match_a_finer_rule():
    rng = np.random.default_rng(1)
    finer = (np.polynomial.legendre.leggauss(30), 8.9, 0.5)
    for c, spread in ((10, 0.0), (10, 2.0), (40, 0.0), (10, 6.0)):
        variance = np.exp(spread * rng.standard_normal((5, c)))
        mean = np.sqrt(variance.mean()) * rng.standard_normal((5, c))
        p, error = computed(mean, variance, FINE)
        assert_allclose(p, computed(mean, variance, finer)[0], rtol=0, atol=1e-9 if spread > 2 else 1e-11)
        assert error.max() < 1e-7
        order = rng.permutation(c)
        assert_allclose(computed(mean[:, order] + 3.0, variance[:, order], FINE)[0], p[:, order], rtol=0, atol=1e-9)


def test_zero_variance_returns_a_step_and_invalid_moments_return_nan():
    p, _ = computed(np.array([[0.0, 1e6], [0.0, 0.0], [0.0, np.nan], [0.0, 0.0]]),
                    np.array([[1.0, 1.0], [1e-12, 1.0], [1.0, 1.0], [0.0, 1.0]]), FINE)  # fmt: skip
    assert_allclose(p[:2], [[0.0, 1.0], [0.5, 0.5]], atol=1e-12)
    assert np.isnan(p[2:]).all()


def test_tables_of_the_normal_distribution_match_exact_functions():
    s = np.random.default_rng(2).uniform(-9, 9, 2000)
    found = np.array([cdf_and_density(x) for x in s])
    assert_allclose(found[:, 0], ndtr(s), rtol=1e-9, atol=1e-15)
    assert_allclose(found[:, 1], np.exp(-0.5 * s**2) / np.sqrt(2 * np.pi), rtol=1e-7, atol=1e-12)
    u = np.random.default_rng(3).uniform(0, 1, 2000)
    assert_allclose([quantile(x) for x in u], ndtri(u), rtol=0, atol=1e-8)
    assert quantile(1e-200) == ndtri(1e-200)
