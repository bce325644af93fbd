"""Averages of a likelihood of one latent function and of its logarithm, for moderate and extreme arguments."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.kernels.scalar import logit, probit
from pymc_gpep.likelihoods.bernoulli import LogitLikelihood
from pymc_gpep.likelihoods.counts import PoissonLikelihood
from pymc_gpep.likelihoods.local_computations import GaussianAverage
from tests.reference.scalar_averages import exact_average_log, exact_log_average

LINKS = {"probit": probit, "logit": logit}


def terms(link, mean, sd, label=1):
    h, g = np.empty((5, 1)), np.empty((3, 1))
    arrays = np.array([mean]), np.array([sd**2]), np.array([label]), np.empty((0, 1))
    LINKS[link].average(*arrays, h)
    LINKS[link].average_log(*arrays, g)
    return h[:, 0], g[:, 0]


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("sd", [0.001, 0.7, 0.75, 1.9, 2.5, 30.0, 3000.0])
def test_averages_of_log_likelihoods_in_the_tails_keep_their_digits(link, sd):
    """Means lie on both sides of each change of the rule, up to forty standard deviations from 0."""
    for multiple in (-40.0 if sd < 10.0 else -6.45, -0.3):
        found, _ = terms(link, multiple * sd, sd)
        assert_allclose(found, exact_log_average(link, multiple * sd, sd), rtol=1e-10)
    for multiple in (-6.45, 1.5, 12.0):
        _, found = terms(link, multiple * sd, sd)
        assert_allclose(found, exact_average_log(link, multiple * sd, sd), rtol=1e-10)


@pytest.mark.parametrize("sd", [0.001, 0.7, 1.9, 2.5, 30.0, 3000.0])
@pytest.mark.parametrize("link", LINKS)
def test_average_probabilities_of_both_classes_sum_to_one(link, sd):
    """The reference is 1 − p. The more likely class is compared with values from the less likely class."""
    for multiple in (0.0, 0.4, 3.0, 9.0):
        likely, _ = terms(link, multiple * sd, sd)
        other, _ = terms(link, multiple * sd, sd, label=0)
        p, q = np.exp(likely[0]), np.exp(other[0])
        assert p + q == pytest.approx(1.0, abs=1e-14)
        assert_allclose(likely[0], np.log1p(-q), rtol=1e-12)
        assert_allclose(likely[1], -q * other[1] / p, rtol=1e-11)
        second = -q * (other[2] + other[1] ** 2) / p
        assert_allclose(likely[2], second - likely[1] ** 2, rtol=1e-10)
        third = -q * (other[3] + 3 * other[2] * other[1] + other[1] ** 3) / p
        assert_allclose(likely[3], third - 3 * likely[1] * second + 2 * likely[1] ** 3, rtol=1e-9, atol=1e-12 / sd**3)


@pytest.mark.parametrize("sd", [1.5, 8.0, 60.0])
def test_logistic_averages_in_the_far_tail_match_exponentials(sd):
    mean = -40.0 * sd if sd < 40.0 else -40.0 * sd**2
    h, g = terms("logit", mean, sd)
    tail = math.exp(mean + 1.5 * sd**2)
    assert_allclose(h, [mean + 0.5 * sd**2, 1.0 - tail, -tail, -tail, -tail], rtol=1e-12)
    assert_allclose(g, [mean, 1.0, -0.5 * math.exp(mean + 0.5 * sd**2)], rtol=1e-12)


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize(
    ("mean", "variance"), [(np.nan, 1.0), (np.inf, 1.0), (0.0, -1.0), (0.0, np.nan), (0.0, np.inf)]
)
def test_invalid_normal_density_returns_nan(link, mean, variance):
    out = np.empty((5, 1))
    arrays = np.array([mean]), np.array([variance]), np.array([1]), np.empty((0, 1))
    LINKS[link].average_log(*arrays, out[:3])
    assert np.isnan(out[:3]).all()
    if link == "logit":
        LINKS[link].average(*arrays, out)
        assert np.isnan(out).all()


@pytest.mark.parametrize("link", LINKS)
def test_averages_are_continuous_where_the_quadrature_rule_changes(link):
    rng = np.random.default_rng(3)
    for sd in (math.sqrt(0.5), 2.0):
        for mean in rng.normal(size=8) * 5:
            below, above = (terms(link, mean, sd * (1.0 + side)) for side in (-1e-13, 1e-13))
            for left, right in zip(below, above, strict=True):
                assert_allclose(left, right, rtol=2e-10, atol=1e-12)


@pytest.mark.parametrize("link", LINKS)
def test_averages_are_log_concave_at_any_mean_and_width(link):
    """Tilted and effective variances are positive, and the average log p is below the log of the average."""
    rng = np.random.default_rng(5)
    n = 4000
    sd = 10.0 ** rng.uniform(-9, 6, n)
    mean = np.where(
        rng.random(n) < 0.5, rng.normal(size=n) * sd * 20, rng.choice([-1, 1], n) * 10 ** rng.uniform(-9, 6, n)
    )
    h, g = np.empty((5, n)), np.empty((3, n))
    arrays = mean, sd**2, rng.integers(0, 2, n), np.empty((0, n))
    LINKS[link].average(*arrays, h)
    LINKS[link].average_log(*arrays, g)
    assert np.isfinite(h).all()
    assert np.isfinite(g).all()
    largest = {"probit": 1.0, "logit": 0.25}[link]
    for curvature in (-h[2], -2.0 * g[2]):
        assert (curvature >= 0.0).all()
        assert (curvature <= largest * (1.0 + 1e-13)).all()
    assert (-h[2] * sd**2 < 1.0).all()
    assert (g[0] <= h[0] + 1e-9 * np.abs(h[0]) + 1e-300).all()


@pytest.mark.parametrize(("likelihood", "most"), [(LogitLikelihood, 1), (PoissonLikelihood, 400)])
def test_rough_average_has_nine_digits_of_a_site(likelihood, most):
    """Errors are in units of the cavity. Widths go from nearly 0 to widths where σ and counts are step functions."""
    rng = np.random.default_rng(1)
    n = 3000
    y, variance = rng.integers(0, most + 1, n), np.exp(rng.uniform(np.log(1e-7), np.log(1e3), n))
    mean = rng.normal(0.0, 3.0, n) + (np.log(y + 0.5) if most > 1 else 0.0)
    exact, rough = np.full((5, n), np.nan), np.full((5, n), np.nan)
    average = average_of(likelihood)
    average.terms(mean, variance, y, np.zeros((1, n)), exact)
    average.rough(mean, variance, y, np.zeros((1, n)), rough)
    units = np.stack([np.ones(n), np.sqrt(variance), variance])
    assert_allclose(units * rough[:3], units * exact[:3], rtol=1e-8, atol=1e-8)
    assert np.isnan(rough[3:]).all()


@pytest.mark.parametrize("likelihood", [LogitLikelihood, PoissonLikelihood])
def test_rough_average_of_an_invalid_normal_density_is_nan(likelihood):
    found = np.zeros((5, 3))
    arrays = np.array([0.0, np.inf, 0.0]), np.array([-1.0, 1.0, np.inf]), np.zeros(3, np.int64), np.zeros((1, 3))
    average_of(likelihood).rough(*arrays, found)
    assert np.isnan(found[:3]).all()


def average_of(likelihood):
    return next(each for each in likelihood.local if isinstance(each, GaussianAverage))
