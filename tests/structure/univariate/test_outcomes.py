"""Moments of observations beside those that are known, where observations have two modes or many sizes."""

import numpy as np
from numpy.testing import assert_allclose
from scipy import stats

from pymc_gpep.structure.univariate.outcomes import count_moments, number_moments

MEAN = np.array([0.01, 3.0, 61.0, 200.0, 4321.0, 5e4, 1e6])
F = np.log(MEAN)
PSI = 0.7


def assert_moments(found, mean, square):
    assert_allclose(found[0], mean, rtol=1e-4)
    assert_allclose(found[1] - found[0] ** 2, square - mean**2, rtol=2e-4)


def beside_zero(density, at_zero):
    """A log density with probability PSI, and other log densities at 0."""
    return lambda y: np.where(y == 0.0, at_zero, np.log(PSI) + density(y))


def test_more_zeros_and_a_bulk_of_any_size():
    zeros = np.log(1.0 - PSI + PSI * np.exp(-MEAN))
    found = count_moments(beside_zero(lambda y: stats.poisson.logpmf(y, MEAN), zeros), F)
    assert_moments(found, PSI * MEAN, PSI * (MEAN + MEAN**2))
    positive = PSI / -np.expm1(-MEAN)
    cut = beside_zero(lambda y: stats.poisson.logpmf(y, MEAN) - np.log(-np.expm1(-MEAN)), np.log1p(-PSI))
    assert_moments(count_moments(cut, F), positive * MEAN, positive * (MEAN + MEAN**2))
    # The bulk is nowhere near the exponential of the latent value.
    exposed = 37.3 * MEAN
    found = count_moments(beside_zero(lambda y: stats.poisson.logpmf(y, exposed), np.log1p(-PSI)), F)
    assert_allclose(found[0, 1:], PSI * exposed[1:], rtol=1e-4)


def test_two_bulks_and_tails_as_long_as_their_mean():
    def mixed(y):
        return np.logaddexp(np.log(0.4) + stats.poisson.logpmf(y, 7.0), np.log(0.6) + stats.poisson.logpmf(y, MEAN))

    assert_moments(count_moments(mixed, F), 2.8 + 0.6 * MEAN, 0.4 * 56.0 + 0.6 * (MEAN + MEAN**2))
    found = count_moments(lambda y: stats.geom.logpmf(y + 1.0, 1.0 / (1.0 + MEAN)), F)
    assert_moments(found, MEAN, MEAN + 2.0 * MEAN**2)


def test_numbers_that_may_be_zero():
    log_normal = beside_zero(lambda y: stats.lognorm.logpdf(y, 0.4, scale=MEAN), np.log1p(-PSI))
    found = number_moments(log_normal, F)
    assert_moments(found, PSI * MEAN * np.exp(0.08), PSI * MEAN**2 * np.exp(0.32))
    gamma = beside_zero(lambda y: stats.gamma.logpdf(y, 0.5, scale=2.0 * MEAN), np.log1p(-PSI))
    assert_moments(number_moments(gamma, F), PSI * MEAN, 3.0 * PSI * MEAN**2)
    # A density that is no probability at 0.
    found = number_moments(lambda y: stats.expon.logpdf(y, scale=MEAN), F)
    assert_moments(found, MEAN, 2.0 * MEAN**2)
    found = number_moments(lambda y: stats.norm.logpdf(y, 0.0, MEAN), F)
    assert_allclose(found[0] / MEAN, 0.0, atol=1e-6)
    assert_allclose(found[1], MEAN**2, rtol=1e-6)
