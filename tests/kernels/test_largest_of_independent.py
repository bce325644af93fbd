"""Largest of independent utilities: log probability and derivatives, against quadrature and differences."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.integrate import quad
from scipy.special import log_ndtr

from pymc_gpep.kernels.special.largest_of_independent import LEGENDRE, log_largest, log_largest_and_derivatives

NODES, WEIGHTS = LEGENDRE
CASES = {
    "alike": ([0.3, -0.2, 0.5], [1.0, 2.0, 0.7]),
    "unlikely": ([-20.0, 3.0, 5.0], [1.0, 2.0, 0.7]),
    "narrow others": ([0.1, -0.4, 0.8], [4.0, 1e-8, 1e-3]),
    "a narrow one far above": ([-6.0, 0.0, 3.0], [1.0, 1e-6, 0.5]),
    "a narrow observed one": ([0.2, 0.1, -0.5], [1e-8, 1.0, 3.0]),
    "all narrow": ([0.2, 0.1, -0.5], [1e-4, 2e-4, 1e-5]),
    "far below": ([50.0, 0.0, 1.0], [1.0, 1e-4, 2.0]),
}


def evaluate(mean, variance, y=0):
    mean, variance = np.array(mean), np.array(variance)
    rho, gamma = np.empty_like(mean), np.empty_like(mean)
    room = np.empty((10, mean.size))
    return log_largest_and_derivatives(mean, variance, y, NODES, WEIGHTS, rho, gamma, room), rho, gamma


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_probability_matches_the_integral(case):
    mean, sd = np.array(case[0]), np.sqrt(case[1])

    def log_integrand(t):
        others = log_ndtr((t - mean[1:]) / sd[1:]).sum()
        return -0.5 * ((t - mean[0]) / sd[0]) ** 2 - 0.5 * np.log(2 * np.pi) - np.log(sd[0]) + others

    ends = [mean[0] - 12 * sd[0], max(mean.max() + 12 * sd.max(), mean[0] + 12 * sd[0])]
    points = np.unique(np.clip(np.concatenate([mean + k * sd for k in (-6, -2, 0, 2, 6)]), *ends))
    top = max(log_integrand(t) for t in np.linspace(*ends, 20001))
    pieces = zip([ends[0], *points], [*points, ends[1]], strict=True)
    total = sum(quad(lambda t: np.exp(log_integrand(t) - top), *piece, epsabs=1e-14, limit=200)[0] for piece in pieces)
    assert_allclose(evaluate(*case)[0], top + np.log(total), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("y", [0, 2])
def test_derivatives_match_differences(case, y):
    mean, variance = (np.array(each) for each in case)
    _, rho, gamma = evaluate(mean, variance, y)
    assert (gamma >= 0.0).all()
    assert (gamma * variance <= 1.0 + 1e-12).all()
    for k in range(3):
        h = 1e-4 * np.sqrt(variance.min()) * (np.arange(3) == k)
        up, down = evaluate(mean + h, variance, y), evaluate(mean - h, variance, y)
        assert_allclose((up[0] - down[0]) / (2 * h[k]), rho[k], rtol=1e-5, atol=1e-7 / h[k] * 1e-5)
        assert_allclose((down[1][k] - up[1][k]) / (2 * h[k]), gamma[k], rtol=1e-4, atol=1e-9 / h[k] * (1 + abs(rho[k])))


def test_probabilities_of_all_classes_sum_to_one():
    rng = np.random.default_rng(1)
    for _ in range(50):
        mean, variance = 2.0 * rng.normal(size=6), np.exp(6.0 * rng.normal(size=6))
        assert_allclose(sum(np.exp(evaluate(mean, variance, y)[0]) for y in range(6)), 1.0, atol=1e-12)


def furthest_tail(mean, variance):
    """Log probability of class 0 in the far tail: the largest value of a log integrand with quadratic pieces."""
    slopes, offsets = np.sqrt(variance[0] / variance[1:]), (mean[0] - mean[1:]) / np.sqrt(variance[1:])
    x = 0.0
    for _ in range(len(mean)):
        low = slopes * x + offsets < 0.0
        x = -(slopes * offsets)[low].sum() / (1.0 + (slopes[low] ** 2).sum())
    return -0.5 * x**2 - 0.5 * (np.minimum(slopes * x + offsets, 0.0) ** 2).sum()


def test_tail_probabilities_with_unequal_widths_keep_digits():
    """With hazards of 10⁸ a curvature by differences has no valid digit. The search for the mode failed here."""
    rng = np.random.default_rng(3)
    reached = 0
    for _ in range(2000):
        variance = 10.0 ** rng.uniform(-8, 8, 6)
        mean = 10.0 ** rng.uniform(0, 6) * rng.normal(size=6)
        mean[0] = mean.min() - 1.0
        expected = furthest_tail(mean, variance)
        if not -1e15 < expected < -1e9:
            continue
        reached += 1
        log_p, rho, gamma = evaluate(mean, variance)
        assert_allclose(log_p, expected, rtol=1e-7)
        assert np.isfinite(rho).all()
        assert (gamma >= 0.0).all()
    assert reached > 400


@pytest.mark.parametrize("c", [2, 3, 26])
@pytest.mark.parametrize("spread", [0.0, 0.5, 3.0])
def test_rough_rule_has_six_digits(c, spread):
    rng = np.random.default_rng(c)
    for scale in (0.1, 1.0, 10.0, 40.0):
        mean, variance = scale * rng.normal(size=c), np.exp(spread * rng.uniform(-1, 1, size=c))
        for y in range(min(c, 4)):
            exact, _, _ = evaluate(mean, variance, y)
            rough = log_largest(mean, variance, y, np.empty((3, c)))
            assert rough == pytest.approx(exact, rel=1e-6, abs=1e-6)
