"""Averages of the logistic function over a normal variable, by two formulas, against quadrature; and its logarithm."""

import mpmath
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import expit

from pymc_gpep.kernels.special.logistic_average import (
    MIXTURE_ERROR,
    ROOM,
    log_logistic_mixture,
    log_logistic_normal,
    logistic_normal,
    logistic_of_normal,
    mixture_scales,
)
from tests.reference.stored import stored


@stored
def exact(mean, sd):
    """E σ(−d) and E σ(d)."""
    with mpmath.workdps(25):
        breaks = sorted({-12.0, 12.0} | {min(12.0, max(-12.0, (x - mean) / sd)) for x in (-40, -10, -2, 0, 2, 10, 40)})
        return [
            float(mpmath.quad(lambda z, s=s: mpmath.npdf(z) / (1 + mpmath.exp(-s * (mean + sd * z))), breaks))
            for s in (-1, 1)
        ]


@pytest.mark.parametrize("sd", [1e-8, 0.1, 1.0, 7.99, 8.0, 30.0, 1e3])
@pytest.mark.parametrize("mean", [0.0, 0.3, -7.0, 60.0])
def test_averages_match_quadrature(mean, sd):
    expected = exact(mean, sd)
    assert_allclose(logistic_normal(mean, sd), expected, atol=2e-15)
    scales = mixture_scales(sd**2)
    value, slope = logistic_of_normal(mean, scales)
    assert_allclose(value, expected[1], atol=MIXTURE_ERROR)
    step = 1e-3
    right, left = (logistic_of_normal(mean + by, scales)[0] for by in (step, -step))
    assert_allclose(slope, (right - left) / (2 * step), atol=1e-7)


@pytest.mark.parametrize("sd", [0.0, 2.0])
def test_small_probabilities_keep_their_digits(sd):
    below, above = logistic_normal(-30.0, sd)
    assert above == pytest.approx(np.exp(-30.0 + sd**2 / 2), rel=1e-9)
    assert below == pytest.approx(1.0)


def test_mixture_matches_the_logistic_function():
    x = np.linspace(-60, 60, 20_001)
    scales = mixture_scales(0.0)
    found = [logistic_of_normal(value, scales)[0] for value in x]
    assert np.abs(found - expit(x)).max() < MIXTURE_ERROR


@pytest.mark.parametrize("variance", [0.0, 0.1, 1.0, 4.0, 30.0, 300.0, 1e4])
def test_log_average_by_the_mixture_keeps_digits_in_both_tails(variance):
    scales, room = mixture_scales(variance), np.empty(ROOM)
    for mean in [-200.0, -40.0, -15.0, -5.0, -1.0, 0.0, 0.3, 2.0, 15.0, 40.0, 200.0]:
        value, first, second = log_logistic_mixture(mean, variance, scales)
        expected = log_logistic_normal(mean, variance, room)
        assert_allclose(value, expected[0], rtol=2e-7)
        assert_allclose(first, expected[1], rtol=2e-7)
        assert_allclose(second, expected[2], rtol=5e-6, atol=1e-9)
