"""Elliptical slice sampling of a Gaussian vector."""

import numpy as np
import pytest

from pymc_gpep.gaussians.ellipse import elliptical_slice

ROOT = np.array([[1.5, 0.0], [0.9, 0.4]])
"""Cholesky factor of the covariance of the Gaussian."""

NOISE = 0.5


def observed(x):
    """Log likelihood of one observation, 1, whose mean is the first component."""
    return -0.5 * ((1.0 - x[0]) / NOISE) ** 2


def posterior():
    prior = ROOT @ ROOT.T
    gain = prior[:, 0] / (prior[0, 0] + NOISE**2)
    return gain, prior - np.outer(gain, prior[0])


def check_moments(x, mean, covariance):
    errors = np.sqrt(np.diag(covariance) / len(x))
    np.testing.assert_array_less(np.abs(x.mean(axis=0) - mean), 4 * errors)
    centred = x - mean
    products = centred[:, :, None] * centred[:, None, :]
    np.testing.assert_array_less(np.abs(products.mean(axis=0) - covariance), 4 * products.std(axis=0) / np.sqrt(len(x)))


@pytest.mark.parametrize("updates", [1, 5])
def test_slice_sampler_leaves_the_posterior_invariant(updates):
    rng = np.random.default_rng(1)
    mean, covariance = posterior()
    x = rng.multivariate_normal(mean, covariance, size=3000)
    start = x.copy()
    for state in x:
        for _ in range(updates):
            state[:], _, _ = elliptical_slice(state, ROOT @ rng.standard_normal(2), observed, observed(state), rng)
    assert (x != start).any(axis=1).all()
    check_moments(x, mean, covariance)


def test_slice_sampler_reaches_the_posterior_from_any_start():
    rng = np.random.default_rng(2)
    states = []
    for _ in range(1500):
        x = np.array([-3.0, 4.0])
        for _ in range(40):
            x, _, _ = elliptical_slice(x, ROOT @ rng.standard_normal(2), observed, observed(x), rng)
        states.append(x)
    check_moments(np.array(states), *posterior())


@pytest.mark.parametrize("nowhere", [-np.inf, np.nan])
def test_draws_stay_where_the_density_is_positive(nowhere):
    rng = np.random.default_rng(3)

    def positive(x):
        return 0.0 if x > 0 else nowhere

    x, value, states = np.array(-1.0), nowhere, []
    for _ in range(6000):
        x, value, _ = elliptical_slice(x, np.array(rng.standard_normal()), positive, value, rng)
        states.append(float(x))
    kept = np.array(states[10:])
    assert kept.min() > 0
    means = kept[: len(kept) // 60 * 60].reshape(60, -1).mean(axis=1)
    assert abs(means.mean() - np.sqrt(2 / np.pi)) < 4 * means.std(ddof=1) / np.sqrt(len(means))


def test_step_returns_value_and_number_of_evaluations_and_does_not_change_its_arguments():
    rng = np.random.default_rng(4)
    x, direction = rng.standard_normal((2, 3, 5))
    before = x.copy(), direction.copy()
    seen = []

    def log_ratio(f):
        seen.append(f)
        return -20.0 * float((f**2).sum())

    new, value, evaluations = elliptical_slice(x, direction, log_ratio, log_ratio(x), rng)
    assert new.shape == (3, 5)
    assert value == log_ratio(new)
    assert evaluations == len(seen) - 2 > 1
    assert new is seen[-2]
    np.testing.assert_array_equal([x, direction], before)


def test_step_returns_its_start_if_all_other_states_have_zero_density():
    x = np.ones(3)
    new, value, evaluations = elliptical_slice(x, np.zeros(3) + 1e3, lambda f: np.nan, 2.0, np.random.default_rng(5))
    assert new is x
    assert value == 2.0
    assert 10 < evaluations < 200
