"""Likelihoods of one latent function: averages against Gauss-Hermite quadrature, derivatives against differences."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import log_expit, log_ndtr, roots_hermitenorm

from pymc_gpep.kernels.scalar import logit, probit

LINKS = [pytest.param(probit, log_ndtr, id="probit"), pytest.param(logit, log_expit, id="logit")]
MEAN = np.array([0.3, -1.2, 2.0, 1.5, -5.0])
VARIANCE = np.array([0.5, 2.0, 1.5, 4.0, 1.0])
Y = np.array([1, 1, 0, 1, 1])
SIGN = 2 * Y - 1
STEP = 1e-4


def written(kernel, rows, *arrays, y=Y):
    out = np.empty((rows, len(y)))
    kernel(*arrays, y, np.empty((0, len(y))), out)
    return out


def difference(function, x):
    return (function(x + STEP) - function(x - STEP)) / (2 * STEP)


@pytest.mark.parametrize(("link", "log_p"), LINKS)
def test_averages_match_gauss_hermite(link, log_p):
    nodes, weights = roots_hermitenorm(180)
    log_density = log_p(SIGN[:, None] * (MEAN[:, None] + np.sqrt(VARIANCE)[:, None] * nodes))
    weights /= weights.sum()
    assert_allclose(written(link.average, 5, MEAN, VARIANCE)[0], np.log(np.exp(log_density) @ weights), rtol=1e-11)
    assert_allclose(written(link.average_log, 3, MEAN, VARIANCE)[0], log_density @ weights, rtol=1e-13)


@pytest.mark.parametrize(("link", "log_p"), LINKS)
def test_derivatives_match_differences_of_the_values(link, log_p):
    assert_allclose(written(link.derivatives, 4, MEAN)[0], log_p(SIGN * MEAN), rtol=1e-14)
    for kernel, rows in (
        (lambda x: written(link.derivatives, 4, x), 3),
        (lambda x: written(link.average, 5, x, VARIANCE), 4),
    ):
        assert_allclose(kernel(MEAN)[1:], difference(kernel, MEAN)[:rows], atol=2e-9)
    for kernel in (link.average_log, link.bound):
        found = written(kernel, 3, MEAN, VARIANCE)
        in_mean = difference(lambda m, kernel=kernel: written(kernel, 3, m, VARIANCE)[0], MEAN)
        in_variance = difference(lambda v, kernel=kernel: written(kernel, 3, MEAN, v)[0], VARIANCE)
        assert_allclose(found[1:], [in_mean, in_variance], atol=2e-9)


@pytest.mark.parametrize(("link", "log_p"), LINKS)
def test_zero_variance_averages_equal_the_density(link, log_p):
    density = written(link.derivatives, 4, MEAN)
    assert_allclose(written(link.average, 5, MEAN, np.zeros(5))[:4], density, rtol=1e-12, atol=1e-13)
    g = written(link.average_log, 3, MEAN, np.zeros(5))
    assert_allclose(g, density[:3] * [[1.0], [1.0], [0.5]], rtol=1e-13)


@pytest.mark.parametrize(("link", "log_p"), LINKS)
def test_quadratic_bounds_are_below_the_average_log_likelihood(link, log_p):
    assert (written(link.bound, 3, MEAN, VARIANCE)[0] < written(link.average_log, 3, MEAN, VARIANCE)[0]).all()


@pytest.mark.parametrize(("link", "log_p"), LINKS)
@pytest.mark.parametrize("label", [-1, 2])
def test_label_outside_the_classes_returns_nan(link, log_p, label):
    y = np.array([label, 1])
    mean, variance = np.array([0.5, 0.5]), np.ones(2)
    for kernel, rows, arrays in (
        (link.derivatives, 4, (mean,)),
        (link.average, 5, (mean, variance)),
        (link.average_log, 3, (mean, variance)),
        (link.bound, 3, (mean, variance)),
    ):
        found = written(kernel, rows, *arrays, y=y)
        assert np.isnan(found[:, 0]).all()
        assert np.isfinite(found[:, 1]).all()
