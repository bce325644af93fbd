"""Kernels of the multinomial probit: log probabilities and derivatives, against quadrature and differences."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pymc_gpep.kernels.likelihoods.multinomial_probit import (
    log_probability_and_gradient,
    log_probability_derivatives,
    log_probability_hessian,
)
from pymc_gpep.kernels.special.normal import log_ndtr
from tests.reference import multinomial_probit as reference


def value_and_gradient(f, y):
    gradient = np.full(len(f), np.nan)
    return log_probability_and_gradient(f, y, gradient), gradient


def hessian(f, y):
    result = np.full((len(f), len(f)), np.nan)
    log_probability_hessian(f, y, result)
    return result


def random_latents(c, scale):
    return scale * np.random.default_rng(c).standard_normal(c)


# Equal spacing, one class below all, two close classes, a tie for second. Log probabilities are down to −375 000.
TAILS = [
    np.array([0.0, 1e3]),
    np.array([0.0, 1e3, 1e3, 1e3]),
    np.array([0.0, 1e3, 500.0, -1e3]),
    np.array([-40.0, 0.0, 30.0, 30.0, 29.0]),
]


@pytest.mark.parametrize("c", [2, 3, 6, 26])
@pytest.mark.parametrize("scale", [0.3, 5.0, 300.0])
def test_log_probability_matches_quadrature(c, scale):
    f = random_latents(c, scale)
    assert abs(value_and_gradient(f, c - 1)[0] - reference.log_probability(f, c - 1)) < 1e-10


@pytest.mark.parametrize("f", TAILS, ids=str)
def test_log_probability_is_accurate_in_the_tail(f):
    value, _ = value_and_gradient(f, 0)
    assert value < -500
    assert abs(value - reference.log_probability(f, 0)) < 1e-10


@pytest.mark.parametrize(
    "f", [random_latents(2, 3.0), random_latents(4, 1.0), random_latents(4, 20.0), *TAILS], ids=str
)
def test_derivatives_match_reference(f):
    np.testing.assert_allclose(value_and_gradient(f, 0)[1], reference.gradient(f, 0), rtol=1e-12, atol=1e-11)
    np.testing.assert_allclose(hessian(f, 0), reference.hessian(f, 0), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("f", [random_latents(4, 1.0), random_latents(4, 20.0), *TAILS], ids=str)
@pytest.mark.parametrize("y", [0, 1, -1])
def test_derivatives_computed_together_equal_separate_derivatives(f, y):
    gradient, second = np.full(len(f), np.nan), np.full((len(f), len(f)), np.nan)
    value = log_probability_derivatives(f, y, gradient, second)
    expected_value, expected_gradient = value_and_gradient(f, y)
    assert value == pytest.approx(expected_value, rel=1e-14)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-13, atol=1e-13)
    np.testing.assert_array_equal(second, hessian(f, y))


@pytest.mark.parametrize("c", [2, 5, 26])
def test_derivatives_match_differences_of_the_value(c):
    f = random_latents(c, 2.0)
    h = 1e-5
    for y in (0, c - 1):
        plus, minus = zip(
            *[(value_and_gradient(f + e, y), value_and_gradient(f - e, y)) for e in h * np.eye(c)], strict=True
        )
        slopes = [(p[0] - m[0]) / (2 * h) for p, m in zip(plus, minus, strict=True)]
        curvatures = [(p[1] - m[1]) / (2 * h) for p, m in zip(plus, minus, strict=True)]
        np.testing.assert_allclose(value_and_gradient(f, y)[1], slopes, atol=1e-9)
        np.testing.assert_allclose(hessian(f, y), curvatures, atol=1e-9)


def test_two_classes_equal_the_probit():
    for d in np.linspace(-60, 60, 121):
        value, _ = value_and_gradient(np.array([d, 0.0]), 0)
        assert value == pytest.approx(log_ndtr(d / np.sqrt(2)), rel=1e-14, abs=1e-15)


@pytest.mark.parametrize("y", [-1, 3, 2**40])
def test_label_outside_the_classes_has_probability_zero(y):
    value, gradient = value_and_gradient(np.zeros(3), y)
    assert value == -np.inf
    assert not gradient.any()
    assert not hessian(np.zeros(3), y).any()


def test_nan_argument_returns_nan():
    f = np.array([0.0, np.nan, 1.0])
    value, gradient = value_and_gradient(f, 0)
    assert np.isnan(value)
    assert np.isnan(gradient).any()
    assert np.isnan(hessian(f, 0)).any()


latents = st.integers(2, 26).flatmap(lambda c: arrays(float, c, elements=st.floats(-30, 30)))


@settings(deadline=None)
@given(latents)
def test_probabilities_sum_to_one_and_gradients_to_zero(f):
    results = [value_and_gradient(f, y) for y in range(len(f))]
    probabilities = np.exp([value for value, _ in results])
    assert probabilities.sum() == pytest.approx(1.0, abs=1e-13)
    np.testing.assert_allclose(probabilities @ [gradient for _, gradient in results], 0.0, atol=1e-12)


@settings(deadline=None)
@given(latents, st.floats(-100, 100), st.randoms(use_true_random=False))
def test_shifts_and_permutations_do_not_change_probabilities(f, shift, random):
    order = np.array(random.sample(range(len(f)), len(f)))
    y = random.randrange(len(f))
    value, gradient = value_and_gradient(f, y)
    other, other_gradient = value_and_gradient(f[order] + shift, int(np.flatnonzero(order == y)[0]))
    assert other == pytest.approx(value, rel=1e-11, abs=1e-13)
    np.testing.assert_allclose(other_gradient, gradient[order], rtol=1e-10, atol=1e-12)


@settings(deadline=None)
@given(latents)
def test_hessian_is_negative_semidefinite(f):
    # The integrand is log-concave in (u, f), and so is the integral over u (Prékopa 1973).
    H = hessian(f, 0)
    np.testing.assert_allclose(H, H.T)
    np.testing.assert_allclose(H.sum(0), 0.0, atol=1e-12)
    assert np.linalg.eigvalsh(H).max() < 1e-12
