"""Multinomial probit with normal latent values integrated out: integral, derivatives and draws."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose
from scipy.integrate import quad
from scipy.stats import norm

from pymc_gpep.likelihoods.multinomial_probit import UnequalNoiseProbit, log_averages_and_gradients
from pymc_gpep.likelihoods.multinomial_probit_distribution import log_probabilities_and_gradients

RNG = np.random.default_rng(4)


@pytest.mark.parametrize("c", [2, 3, 5])
def test_integral_matches_the_probability_of_the_largest_utility(c):
    mean, scale = RNG.normal(scale=2.0, size=c), np.sqrt(1.0 + RNG.exponential(size=c))
    expected = [
        quad(
            lambda t, y=y: (
                norm.pdf(t, mean[y], scale[y])
                * np.prod([norm.cdf((t - mean[j]) / scale[j]) for j in range(c) if j != y])
            ),
            mean[y] - 12 * scale[y],
            mean[y] + 12 * scale[y],
            epsabs=1e-13,
        )[0]
        for y in range(c)
    ]
    found, *_ = log_averages_and_gradients(np.arange(c), mean, scale**2 - 1.0)
    assert_allclose(np.exp(found), expected, rtol=1e-9)
    assert_allclose(np.exp(found).sum(), 1.0, rtol=1e-12)


def test_zero_variance_returns_the_multinomial_probit():
    y, f = RNG.integers(4, size=20), RNG.normal(scale=3.0, size=(20, 4))
    value, gradient = log_probabilities_and_gradients(y, f)
    found = log_averages_and_gradients(y, f, np.zeros((20, 4)))
    assert_allclose(found[0], value, rtol=1e-12)
    assert_allclose(found[1], gradient, atol=1e-10)


@pytest.mark.parametrize("mode", [None, pytest.param("NUMBA", marks=pytest.mark.slow)])
def test_derivatives_match_differences(mode):
    y, f, s = RNG.integers(3, size=4), RNG.normal(size=(4, 3)), RNG.exponential(size=(4, 3))
    mean, variance = pt.dmatrix("mean"), pt.dmatrix("variance")
    value = pm.logp(UnequalNoiseProbit.dist(mean, variance), y).sum()
    function = pytensor.function([mean, variance], [value, *pytensor.grad(value, [mean, variance])], mode=mode)
    _, *slopes = function(f, s)
    step = 1e-6
    for which, slope in enumerate(slopes):
        for place in np.ndindex(4, 3):
            ends = []
            for sign in (1.0, -1.0):
                moved = [f.copy(), s.copy()]
                moved[which][place] += sign * step
                ends.append(float(function(*moved)[0]))
            assert_allclose(slope[place], (ends[0] - ends[1]) / (2 * step), atol=2e-8)


def test_draws_are_valid_and_invalid_labels_have_probability_zero():
    mean, variance = np.array([0.5, 0.0, -0.3]), np.array([0.0, 3.0, 0.5])
    labels = pm.draw(UnequalNoiseProbit.dist(mean, variance, shape=40_000), random_seed=1)
    expected = np.exp(log_averages_and_gradients(np.arange(3), mean, variance)[0])
    assert_allclose(np.bincount(labels) / labels.size, expected, atol=4 * np.sqrt(0.25 / labels.size))
    for label in (-1, 3):
        value, *slopes = log_averages_and_gradients(np.array(label), mean, variance)
        assert value == -np.inf
        assert not np.any(slopes)
