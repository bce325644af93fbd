"""Third derivatives of the multinomial probit, against differences of second derivatives with 30 digits."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.kernels.likelihoods.multinomial_probit import log_probability_third
from tests.reference import multinomial_probit as exact

H = 2.0**-11


def covariance(c, seed):
    a = np.random.default_rng(seed).normal(size=(c, c))
    return a @ a.T


def contracted(f, y, cov):
    third = np.full(len(f), np.nan)
    log_probability_third(np.array(f), y, cov, third)
    return third


@pytest.mark.parametrize(
    ("f", "y"),
    [
        ([0.25, -0.5], 0),
        ([0.5, 0.125, -1.0], 1),
        ([2.0, 1.0, -4.0, 0.5], 2),
        ([8.0, 0.0, 0.25], 1),
        ([-3.0, 3.0, 2.0, 2.5], 1),
    ],
)
def test_third_derivative_matches_differences_of_the_hessian(f, y):
    cov = covariance(len(f), 0)

    def inner(x):
        return (cov * exact.hessian(x, y)).sum()

    expected = []
    for e in np.eye(len(f)):
        near = inner(f + H * e) - inner(f - H * e)
        far = inner(f + 2 * H * e) - inner(f - 2 * H * e)
        expected.append((8 * near - far) / (12 * H))
    assert_allclose(contracted(f, y, cov), expected, atol=3e-11)


def test_third_derivative_does_not_change_with_a_common_shift():
    f, cov = np.array([0.3, -1.0, 2.0, 0.0]), covariance(4, 1)
    third = contracted(f, 3, cov)
    assert_allclose(contracted(f + 5.0, 3, cov), third, atol=1e-12)
    assert_allclose(contracted(f, 3, cov + 7.0), third, atol=1e-12)
    assert third.sum() == pytest.approx(0.0, abs=1e-14)


def test_third_derivative_is_finite_in_both_tails():
    """Third derivatives vanish for a class of probability 1.

    For an impossible class log p is about −(f_0 − f_1)² / 4, so third derivatives vanish as well.
    """
    assert_allclose(contracted([40.0, 0.0], 0, np.eye(2)), 0.0, atol=1e-14)
    assert_allclose(contracted([40.0, 0.0], 1, np.eye(2)), 0.0, atol=1e-3)


@pytest.mark.parametrize("y", [-1, 3])
def test_label_outside_the_classes_has_zero_derivatives(y):
    assert_allclose(contracted([0.0, 1.0, 2.0], y, np.eye(3)), 0.0, atol=0)
