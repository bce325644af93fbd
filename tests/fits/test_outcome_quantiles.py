"""Quantiles of new observations, against averages of SciPy's distribution functions."""

from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats
from scipy.special import expit, ndtr

from pymc_gpep.fits.prediction import Part, checked_levels, outcome_quantiles
from pymc_gpep.likelihoods.all_likelihoods import LIKELIHOODS
from tests.likelihoods.with_parameters import CASES, STANDARD
from tests.reference.dense_averages import normal_average

LEVELS = np.array([0.05, 0.5, 0.99])
MEAN, VARIANCE = np.array([-1.0, 0.3, 2.0]), np.array([0.5, 0.01, 0.2])
DISTRIBUTIONS = {
    "poisson": lambda f, given: stats.poisson(np.exp(f + given[0])),
    "binomial": lambda f, given: stats.binom(given[0], expit(f)),
    "binomial_probit": lambda f, given: stats.binom(given[0], ndtr(f)),
    "binomial_log_log": lambda f, given: stats.binom(given[0], -np.expm1(-np.exp(f))),
    "negative_binomial": lambda f, given: stats.nbinom(given[1], expit(-f - given[0])),
    "normal": lambda f, given: stats.norm(f, given[0]),
    "log_normal": lambda f, given: stats.lognorm(given[0], scale=np.exp(f)),
    "logistic": lambda f, given: stats.logistic(f, given[0]),
    "asymmetric_laplace": lambda f, given: stats.laplace_asymmetric(given[1], loc=f, scale=1.0 / given[0]),
    "gamma": lambda f, given: stats.gamma(given[1], scale=np.exp(f + given[0])),
    "weibull": lambda f, given: stats.weibull_min(given[1], scale=np.exp(f + given[0])),
}
BY_NAME = {each.name: each for each in LIKELIHOODS}


def parts(name):
    """Two nodes of hyperparameters with different variances."""
    likelihood = BY_NAME[name].given((CASES | STANDARD)[name].parameters[:, :3])
    return [
        Part(weight, likelihood, (MEAN + shift)[:, None], (scale * VARIANCE)[:, None, None])
        for weight, shift, scale in ((0.7, 0.0, 1.0), (0.3, 0.4, 3.0))
    ]


@pytest.mark.variation(but=["negative_binomial", "logistic", "binomial"])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distribution_function_reaches_the_level_at_the_quantile(name):
    found = outcome_quantiles(parts(name), LEVELS)

    def reached(y, i):
        def below(f, likelihood):
            return DISTRIBUTIONS[name](f, likelihood.parameters[:, i]).cdf(y)

        return sum(
            weight * normal_average(partial(below, likelihood=likelihood), mean[i, 0], cov[i, 0, 0])
            for weight, likelihood, mean, cov in parts(name)
        )

    at = np.array([[reached(found[i, j], i) for j in range(3)] for i in range(3)])
    if BY_NAME[name].observed_dtype == "int64":
        before = np.array([[reached(found[i, j] - 1.0, i) for j in range(3)] for i in range(3)])
        assert (found == np.round(found)).all()
        assert ((before < LEVELS) & (at >= LEVELS - 1e-9)).all()
    else:
        assert_allclose(at, np.tile(LEVELS, (3, 1)), rtol=1e-6)


def test_quantiles_of_counts_beyond_all_integers_terminate():
    mean = np.array([[40.0], [100.0]])
    # With a dispersion of 1, counts are geometric, and nearly exponential for large means.
    likelihood = BY_NAME["negative_binomial"].given(np.array([[0.0, 0.0], [1.0, 1.0]]))
    found = outcome_quantiles([Part(1.0, likelihood, mean, np.ones((2, 1, 1)))], LEVELS)
    for (centre,), counts in zip(mean, found, strict=True):
        reached = [normal_average(partial(lambda f, y: -np.expm1(-y * np.exp(-f)), y=y), centre, 1.0) for y in counts]
        assert_allclose(reached, LEVELS, rtol=1e-6)


@pytest.mark.parametrize(("mean", "scale"), [(0.0, 1e-15), (0.0, 1e12), (1e8, 1.0), (1e-4, 1e-13)])
@pytest.mark.parametrize("name", ["normal", "logistic"])
def test_quantiles_keep_digits_in_any_unit(name, mean, scale):
    likelihood = BY_NAME[name].given(np.array([[scale], [-1e300], [1e300]]))
    (found,) = outcome_quantiles([Part(1.0, likelihood, np.array([[mean]]), np.zeros((1, 1, 1)))], LEVELS)
    expected = {"normal": stats.norm, "logistic": stats.logistic}[name].ppf(LEVELS)
    assert_allclose((found - mean) / scale, expected, rtol=0.0, atol=1e-6)


def test_every_likelihood_without_classes_has_quantiles():
    assert set(DISTRIBUTIONS) == {each.name for each in LIKELIHOODS if not each.function_axis and not each.n_classes(1)}


@pytest.mark.parametrize("quantiles", [0.0, 1.5, [0.1, np.nan]])
def test_quantile_levels_outside_0_to_1_raise_value_error(quantiles):
    with pytest.raises(ValueError, match="quantiles must be numbers between 0 and 1"):
        checked_levels(quantiles, BY_NAME["poisson"])


def test_quantiles_of_classes_are_refused():
    with pytest.raises(TypeError, match="are classes, which have no quantiles"):
        checked_levels(0.5, BY_NAME["logit"])
