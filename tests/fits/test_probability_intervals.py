"""Intervals of class probabilities, against exact distribution functions and draws by another formula."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import brentq
from scipy.special import expit, ndtr, ndtri, softmax
from scipy.stats import norm

from pymc_gpep.fits.prediction import Part, checked_interval, probability_intervals
from pymc_gpep.likelihoods.all_likelihoods import LIKELIHOODS

BY_NAME = {each.name: each for each in LIKELIHOODS}
LEVELS = np.array([0.05, 0.95])
MEAN, VARIANCE = np.array([-1.0, 0.3, 2.0]), np.array([0.5, 0.01, 0.2])
ONE_FUNCTION = {"probit": ndtr, "logit": expit}


def of_one_function(name):
    """Two nodes with different variances."""
    return [
        Part(weight, BY_NAME[name], (MEAN + shift)[:, None], (scale * VARIANCE)[:, None, None])
        for weight, shift, scale in ((0.7, 0.0, 1.0), (0.3, 0.4, 3.0))
    ]


@pytest.mark.parametrize("name", ONE_FUNCTION)
def test_bounds_for_two_classes_match_the_mixture_of_normals(name):
    found = probability_intervals(of_one_function(name), LEVELS)

    def quantile(i, level):
        parts = [(part.weight, norm(part.mean[i, 0], np.sqrt(part.cov[i, 0, 0]))) for part in of_one_function(name)]
        return brentq(lambda f: sum(weight * each.cdf(f) for weight, each in parts) - level, -9.0, 9.0)

    expected = np.array([[ONE_FUNCTION[name](quantile(i, level)) for level in LEVELS] for i in range(3)])
    assert_allclose(found[:, 1], expected, atol=2e-4)
    assert_allclose(found[:, 0], 1.0 - found[:, 1, ::-1])


def test_bounds_for_one_node_have_five_digits():
    part = of_one_function("probit")[0]._replace(weight=1.0)
    found = probability_intervals([part], LEVELS)
    assert_allclose(found[:, 1], ndtr(MEAN[:, None] + np.sqrt(VARIANCE)[:, None] * ndtri(LEVELS)), rtol=2e-5)


def test_nine_of_ten_draws_of_a_softmax_lie_within_the_interval():
    rng = np.random.default_rng(3)
    root = rng.normal(size=(2, 3, 3))
    mean = rng.normal(size=(2, 3))
    parts = [Part(0.5, BY_NAME["softmax"], mean + shift, root @ root.swapaxes(1, 2)) for shift in ([1, 0, 0], 0.0)]
    ends = probability_intervals(parts, LEVELS)
    draws = np.concatenate([
        softmax(part.mean + np.einsum("mij,dj->dmi", root, rng.normal(size=(20_000, 3))), axis=-1) for part in parts
    ])  # fmt: skip
    assert_allclose((draws < ends[..., 0]).mean(axis=0), 0.05, atol=0.006)
    assert_allclose((draws > ends[..., 1]).mean(axis=0), 0.05, atol=0.006)


def test_intervals_without_variance_equal_the_probabilities():
    likelihood = BY_NAME["multinomial_probit"]
    mean, cov = np.array([[0.3, -0.2, 1.0]]), np.zeros((1, 3, 3))
    p, _ = likelihood.probabilities(mean, cov)
    assert_allclose(probability_intervals([Part(1.0, likelihood, mean, cov)], LEVELS), np.stack([p, p], axis=-1))


@pytest.mark.parametrize("level", [0.0, 1.0, np.nan, True, [0.5, 0.9]])
def test_level_must_be_one_number_between_0_and_1(level):
    with pytest.raises(ValueError, match="intervals must be a number between 0 and 1"):
        checked_interval(level, BY_NAME["probit"], 1)


def test_numeric_observations_have_quantiles_and_no_intervals():
    with pytest.raises(TypeError, match=r"Use quantiles=\[0.05, 0.95\]"):
        checked_interval(0.9, BY_NAME["poisson"], 1)
