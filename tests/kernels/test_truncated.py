"""Draws of utilities with a known sign, against SciPy's truncated normal distribution."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from scipy.stats import kstest, truncnorm

from pymc_gpep.kernels.sampling import draw_by_sign

DRAWS = 40_000
LEAST = 1e-3  # limit for p values; with these seeds the smallest is well above


def draws(f, label, seed=1):
    v = np.full((1, DRAWS), np.nan)
    draw_by_sign(np.random.default_rng(seed), np.full((1, DRAWS), f), np.full(DRAWS, label), v)
    return v[0]


@pytest.mark.parametrize("label", [0, 1])
@pytest.mark.parametrize("f", [-30.0, -3.0, -0.5, 0.0, 0.3, 2.0, 30.0])
def test_truncated_normal_draws_match_scipy(f, label):
    sign = 2 * label - 1
    v = sign * draws(f, label)
    assert (v > 0.0).all()
    exact = truncnorm(-sign * f, np.inf, loc=sign * f)
    mean, variance = exact.stats("mv")
    assert abs(v.mean() - mean) < 4.5 * np.sqrt(variance / DRAWS)
    squares = (v - mean) ** 2
    assert abs(squares.mean() - variance) < 4.5 * squares.std() / np.sqrt(DRAWS)
    assert kstest(v, exact.cdf).pvalue > LEAST


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_infinite_arguments_return_nan(value):
    v = np.zeros((1, 3))
    draw_by_sign(np.random.default_rng(2), np.array([[value, 1e300, 0.0]]), np.array([1, 0, 1]), v)
    assert_array_equal(np.isnan(v[0]), [True, False, False])


def test_labels_outside_the_classes_return_nan():
    v = np.zeros((1, 3))
    draw_by_sign(np.random.default_rng(3), np.zeros((1, 3)), np.array([-1, 2, 1]), v)
    assert_array_equal(np.isnan(v[0]), [True, True, False])
