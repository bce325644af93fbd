"""Predictions under latent variances of 1e10 to 1e300: the likelihood is a step function at this scale."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import integrate, stats
from scipy.special import ndtr

from pymc_gpep.kernels.scalar import logit, probit
from pymc_gpep.likelihoods.all_likelihoods import LIKELIHOODS
from tests.likelihoods.concave import poisson

NAMED = {each.name: each for each in LIKELIHOODS}
Z = np.array([-3.0, -1.0, 0.0, 0.5, 2.0])
WIDE = [1e18, 1e20, 1e21, 1e60, 1e150, 1e300]


def gaussian(variance):
    """Return means Z · sd (5, 1), and covariances (5, 1, 1)."""
    return np.sqrt(variance) * Z[:, None], np.full((len(Z), 1, 1), variance)


@pytest.mark.parametrize("variance", WIDE)
@pytest.mark.parametrize("name", ["logit", "probit"])
def test_probability_of_a_class_is_the_probability_of_the_sign_of_its_latent_value(name, variance):
    p, _ = NAMED[name].probabilities(*gaussian(variance))
    assert_allclose(p, np.stack([ndtr(-Z), ndtr(Z)], axis=1), rtol=1e-8)


@pytest.mark.parametrize("variance", WIDE)
@pytest.mark.parametrize("name", ["ordered_probit", "ordered_logit"])
def test_ordered_class_has_the_normal_density_between_its_cutpoints(name, variance):
    likelihood = NAMED[name].given(np.tile([[-0.7], [0.9]], len(Z)))
    between = 1.6 * np.exp(-0.5 * Z**2) / np.sqrt(2 * np.pi * variance)
    p, _ = likelihood.probabilities(*gaussian(variance))
    assert_allclose(p, np.stack([ndtr(-Z), between, ndtr(Z)], axis=1), rtol=1e-8)


@pytest.mark.parametrize("variance", [1e9, 1e12])
def test_ordered_logit_equals_ordered_probit_of_the_same_noise_variance(variance):
    # Logistic noise has the variance π²/3. Under a wide normal only this variance counts.
    cuts = np.tile([[-0.7], [0.9]], len(Z))
    mean, cov = gaussian(variance)
    of_logit, _ = NAMED["ordered_logit"].given(cuts).probabilities(mean, cov)
    of_probit, _ = NAMED["ordered_probit"].given(cuts).probabilities(mean, cov + np.pi**2 / 3 - 1)
    assert_allclose(of_logit, of_probit, rtol=1e-8)


@pytest.mark.parametrize("variance", WIDE)
@pytest.mark.parametrize("name", ["softmax", "multinomial_probit"])
def test_class_probability_is_the_probability_of_the_largest_function(name, variance):
    # The reference is the probability that two differences of functions are positive, by SciPy's bivariate normal.
    rng = np.random.default_rng(1)
    mean, root = rng.normal(size=(3, 3)), rng.normal(size=(3, 3))
    cov = root @ root.T + 0.1 * np.eye(3)
    expected = np.empty((3, 3))
    for label in range(3):
        apart = np.delete(np.eye(3)[label] - np.eye(3), label, axis=0)
        expected[:, label] = stats.multivariate_normal(np.zeros(2), apart @ cov @ apart.T).cdf(mean @ apart.T)
    p, _ = NAMED[name].probabilities(np.sqrt(variance) * mean, np.tile(variance * cov, (3, 1, 1)))
    assert_allclose(p, expected, atol=1e-6)


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("variance", WIDE)
def test_density_of_a_count_is_the_prior_density_of_its_log_rate(variance, count):
    likelihood = NAMED["poisson"].given(np.zeros((1, len(Z))))
    found = likelihood.log_tail(*gaussian(variance), np.full(len(Z), count))
    assert_allclose(found, stats.norm.logpdf(Z) - 0.5 * np.log(variance) - np.log(count), rtol=1e-8)


def log_none(mean, variance):
    """log E exp(−eᵃ). The integrand is 1 below −40 and 0 above 5. Quadrature covers the interval between."""
    density = stats.norm(mean, np.sqrt(variance))
    near, _ = integrate.quad(lambda a: np.exp(-np.exp(a)) * density.pdf(a), -40, 5, points=[-3, 0, 2], epsrel=1e-12)
    return np.log(near + density.cdf(-40.0))


@pytest.mark.parametrize("variance", [20.0, 1e3, 1e5, 1e8, 1e11, 1e13, *WIDE[:-1]])
def test_probability_of_zero_and_its_slope_match_quadrature(variance):
    sd = np.sqrt(variance)
    out = np.empty((5, len(Z)))
    poisson.average(sd * Z, np.full(len(Z), variance), np.zeros(len(Z), np.int64), np.zeros((1, len(Z))), out)
    assert_allclose(out[0], [log_none(sd * z, variance) for z in Z], rtol=1e-8)
    step = 1e-3
    slope = [(log_none(sd * (z + step), variance) - log_none(sd * (z - step), variance)) / (2 * step * sd) for z in Z]
    assert_allclose(out[1], slope, rtol=1e-4)


@pytest.mark.parametrize("variance", [1e20, 1e25, 1e60])
def test_average_log_density_matches_its_asymptote(variance):
    # Except near 0, log σ(f) is min(f, 0) and log Φ(f) is −½ min(f, 0)². Near 0 the prior mass is negligible.
    sd, out = np.sqrt(variance), np.empty((3, len(Z)))
    ones = np.ones(len(Z), np.int64)
    below, density = ndtr(-Z), stats.norm.pdf(Z)
    logit.average_log(sd * Z, np.full(len(Z), variance), ones, np.empty((0, len(Z))), out)
    assert_allclose(out[0], -sd * (density - Z * below), rtol=1e-8)
    assert_allclose(out[1], below, rtol=1e-8)
    assert_allclose(out[2], -0.5 * density / sd, rtol=1e-8)
    probit.average_log(sd * Z, np.full(len(Z), variance), ones, np.empty((0, len(Z))), out)
    assert_allclose(out[0], -0.5 * variance * ((1 + Z**2) * below - Z * density), rtol=1e-8)
    assert_allclose(out[1], sd * (density - Z * below), rtol=1e-8)
    assert_allclose(out[2], -0.5 * below, rtol=1e-8)


def test_count_of_an_enormous_rate_has_infinite_moments():
    mean, square = NAMED["poisson"].given(np.zeros((1, len(Z)))).outcome_moments(*gaussian(1e20))
    assert (mean == np.inf).all()
    assert (square == np.inf).all()
