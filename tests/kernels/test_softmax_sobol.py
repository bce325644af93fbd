"""Parts of the average of a softmax over Sobol points, against double precision (see test_softmax_predictive.py)."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.kernels.special.logistic_average import logistic_normal
from pymc_gpep.kernels.special.softmax_average import _exponentials, _tabulate
from pymc_gpep.likelihoods.softmax import softmax_probabilities


def test_fast_exponentials_match_numpy():
    x = -np.concatenate([np.linspace(0.0, 79.0, 5000), [0.0, 1e-8, 500.0, 1e30]]).astype(np.float32)
    found = x.copy()
    _exponentials(found)
    assert_allclose(found[:-2], np.exp(x[:-2].astype(float)), rtol=5e-6)
    near = x > -2.0
    assert_allclose(found[near], np.exp(x[near].astype(float)), rtol=4e-7)
    assert (found[-2:] < 1e-34).all()


@pytest.mark.parametrize("variance", [0.0, 1.0, 30.0, 1e6])
def test_table_of_the_logistic_average_matches_scipy(variance):
    table = np.empty((512, 4), np.float32)
    reach = _tabulate(variance, table)
    for x in np.linspace(-reach, reach, 301)[:-1]:
        cell, t = divmod((x + reach) * 256.0 / reach, 1.0)
        found = table[int(cell)].astype(float) @ t ** np.arange(4)
        assert found == pytest.approx(logistic_normal(x, np.sqrt(variance))[1], abs=2e-7)


@pytest.mark.parametrize("far", [1e3, 1e9])
def test_probabilities_keep_their_digits_next_to_unlikely_classes(far):
    """Three classes have negligible probabilities, and one of them has a large variance."""
    rng = np.random.default_rng(0)
    a = 0.5 * rng.standard_normal((5, 5))
    mean, cov = np.zeros((1, 8)), np.zeros((1, 8, 8))
    mean[0, :5], cov[0, :5, :5] = rng.standard_normal(5), a @ a.T
    mean[0, 5:] = -far, -2.0 * far, -20.0 * far
    cov[0, 5, 5] = cov[0, 6, 6] = 1.0
    cov[0, 7, 7] = min(far, 1e5) ** 2
    p, error = softmax_probabilities(mean, cov, tolerance=1e-4)
    alone, its_error = softmax_probabilities(mean[:, :5], cov[:, :5, :5], tolerance=1e-4)
    assert_allclose(p[0, :5], alone[0], atol=error[0] + its_error[0])
    assert p[0, 5:].max() < 1e-6
    assert error[0] < 1e-3


def test_variance_beyond_single_precision_returns_a_step_function():
    rng = np.random.default_rng(1)
    a = rng.standard_normal((5, 5))
    mean, cov = rng.standard_normal((1, 5)), (a @ a.T)[None]
    large, error = softmax_probabilities(1e6 * mean, 1e12 * cov, tolerance=1e-3)
    larger, its_error = softmax_probabilities(1e40 * mean, 1e80 * cov, tolerance=1e-3)
    assert_allclose(larger, large, atol=error[0] + its_error[0])
    assert max(error[0], its_error[0]) < 3e-3
