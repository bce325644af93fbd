"""Log normalisers of the factors of a point and their derivatives, against quadrature and differences."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.integrate import quad, simpson
from scipy.special import log_ndtr, logsumexp
from scipy.stats import norm

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.methods.factors import (
    FINE,
    FLAT,
    average_labels,
    expected_logit,
    expected_pairs,
    expected_probit,
    mix_labels,
    one_probit,
    pairs,
    whole_points,
)
from pymc_gpep.kernels.special.largest_of_independent import LEGENDRE, log_largest_and_derivatives
from pymc_gpep.kernels.special.tabulated_normal import log_cdf_and_hazard

LOG_ERROR = np.log(1e-6)
RNG = np.random.default_rng(0)


@kernel
def table(z, found):
    for i in range(z.size):
        found[0, i], found[1, i] = log_cdf_and_hazard(z[i])


def test_table_of_the_log_normal_distribution_has_eleven_digits():
    z = np.concatenate([RNG.uniform(-12.0, 12.0, 20_000), [-40.0, -9.0, -8.999999, 0.0, 8.999999, 9.0, 40.0]])
    found = np.empty((2, z.size))
    table(z, found)
    expected = log_ndtr(z)
    hazard = np.exp(-0.5 * z * z - 0.5 * np.log(2.0 * np.pi) - expected)
    assert_allclose(found[0], expected, rtol=1e-13, atol=1e-13)
    assert_allclose(found[1], np.where(z >= 9.0, 0.0, hazard), rtol=1e-11, atol=1e-11)
    nothing = np.empty((2, 1))
    table(np.array([np.nan]), nothing)
    assert np.isnan(nothing).all()


def terms(compute, mean, variance, *between):
    found = np.empty(len(mean)), np.empty_like(mean), np.empty_like(mean)
    compute(mean, variance, *between, *found)
    return found


def assert_derivatives(compute, mean, variance, *between, atol):
    """Compare derivatives of values with central differences."""
    _, in_mean, in_variance = terms(compute, mean, variance, *between)
    h = 1e-4
    for i in range(mean.shape[1]):
        step = h * (np.arange(mean.shape[1]) == i)
        for slope, up, down in (
            (in_mean, (mean + step, variance), (mean - step, variance)),
            (in_variance, (mean, variance + step), (mean, variance - step)),
        ):
            difference = terms(compute, *up, *between)[0] - terms(compute, *down, *between)[0]
            assert_allclose(slope[:, i], difference / (2.0 * h), rtol=1e-4, atol=atol)


def some(b, d, spread=2.0):
    return RNG.normal(size=(b, d)) * spread, RNG.uniform(0.01, 1.0, (b, d)) * spread**2


def test_terms_of_pairs_match_quadrature():
    mean, variance = some(20, 6)
    value, *_ = terms(pairs, mean, variance, 2.0)
    z = (mean[:, :3] - mean[:, 3:]) / np.sqrt(2.0 + variance[:, :3] + variance[:, 3:])
    assert_allclose(value, log_ndtr(z).sum(axis=1), rtol=1e-7, atol=1e-8)
    assert_derivatives(pairs, mean, variance, 2.0, atol=1e-6)


def test_terms_of_one_function_match_quadrature():
    mean, variance = some(20, 1)
    labels = RNG.integers(2, size=20)
    value, *_ = terms(one_probit, mean, variance, labels, 1.0)
    assert_allclose(
        value, log_ndtr((2 * labels - 1) * mean[:, 0] / np.sqrt(1.0 + variance[:, 0])), rtol=1e-7, atol=1e-8
    )
    assert_derivatives(one_probit, mean, variance, labels, 1.0, atol=1e-6)


def by_quadrature(mean, variance, y):
    """log ∫ N(u | m_y, 1 + v_y) ∏ Φ((u − m_k) / √(1 + v_k)) du."""
    width = np.sqrt(1.0 + variance)
    others = np.arange(len(mean)) != y

    def log_integrand(x):
        u = mean[y] + width[y] * x
        return -0.5 * x * x + log_ndtr((u - mean[others]) / width[others]).sum()

    grid = np.linspace(-60.0, 60.0, 4001)
    top = grid[np.argmax([log_integrand(x) for x in grid])]
    peak = log_integrand(top)
    inside, _ = quad(lambda x: np.exp(log_integrand(x) - peak), top - 12.0, top + 12.0, points=[top], limit=500)
    return peak + np.log(inside) - 0.5 * np.log(2.0 * np.pi)


@pytest.mark.parametrize("spread", [1.0, 4.0, 20.0])
def test_terms_of_whole_points_match_quadrature(spread):
    """For similar widths of the utilities a few nodes suffice. For different widths more nodes are needed."""
    mean, variance = some(12, 5, spread)
    variance[6:, 1:] *= 1e-3
    labels = RNG.integers(5, size=12)
    value, in_mean, in_variance = terms(whole_points, mean, variance, labels, 1.0, FLAT, LOG_ERROR, np.zeros(12))
    expected = [by_quadrature(mean[b], variance[b], labels[b]) for b in range(12)]
    assert_allclose(value, expected, rtol=1e-5, atol=2e-5)
    for b in range(12):
        rho, gamma = np.empty(5), np.empty(5)
        log_largest_and_derivatives(mean[b], 1.0 + variance[b], labels[b], *LEGENDRE, rho, gamma, np.empty((10, 5)))
        assert_allclose(in_mean[b], rho, rtol=1e-4, atol=1e-4)
        assert_allclose(in_variance[b], 0.5 * (rho**2 - gamma), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("ratio", [1e-10, 1e-4, 0.3, 900.0, 2000.0, 1e6, 1e10])
def test_whole_points_with_a_wide_or_narrow_utility_match_quadrature(ratio):
    """The number of nodes suffices for steep integrands, and flat integrands lose no digits by cancellation."""
    mean, variance = RNG.normal(size=(6, 3)), RNG.uniform(0.5, 2.0, (6, 3))
    variance[:, 0] *= ratio
    mean[:, 0] *= max(1.0, np.sqrt(ratio))
    labels = np.zeros(6, np.int64)
    value, in_mean, in_variance = terms(whole_points, mean, variance, labels, 0.0, 0.0, FINE, np.zeros(6))
    expected = [_by_hand(mean[b], variance[b]) for b in range(6)]
    assert_allclose(value, [each[0] for each in expected], rtol=1e-9, atol=1e-9)
    assert_allclose(in_mean, [each[1] for each in expected], rtol=1e-6)
    assert_allclose(in_variance, [each[2] for each in expected], rtol=1e-6, atol=1e-9 * np.abs(in_variance).max())


def _by_hand(mean, variance):
    """Log probability that the first of three utilities is the largest, and its derivatives, by Simpson's rule."""
    s = np.sqrt(variance)
    at = np.linspace(-9.0, 9.0, 6001)
    # The grid is dense wherever one of the three functions changes.
    u = np.unique(np.concatenate([m + w * at for m, w in zip(mean, s, strict=True)]))
    x, z = (u - mean[0]) / s[0], (u[:, None] - mean[1:]) / s[1:]
    first, others = norm.pdf(x), norm.cdf(z)
    both = first * others.prod(axis=1)
    total = _simpson(u, both) / s[0]
    d0 = _simpson(u, both * x) / s[0] ** 2
    v0 = _simpson(u, both * (x * x - 1.0)) / (2.0 * s[0] ** 3)
    steep = norm.pdf(z) * others[:, ::-1] * first[:, None]
    d = [-_simpson(u, steep[:, k]) / (s[0] * s[1 + k]) for k in range(2)]
    v = [-_simpson(u, steep[:, k] * z[:, k]) / (2.0 * s[0] * s[1 + k] ** 2) for k in range(2)]
    if s[0] < min(s[1:]):  # avoids the difference of nearly equal numbers
        d0 = -sum(d)
        bend = norm.pdf(z)
        curve = 2.0 * bend.prod(axis=1) / s[1:].prod() - (bend * z * others[:, ::-1] / s[1:] ** 2).sum(axis=1)
        v0 = 0.5 * _simpson(u, first * curve) / s[0]
    return np.log(total), np.array([d0, *d]) / total, np.array([v0, *v]) / total


def _simpson(u, values):
    return simpson(values, x=u)


def test_start_of_the_mode_search_does_not_change_results():
    mean, variance = some(30, 4)
    labels = RNG.integers(4, size=30)
    places = np.zeros(30)
    first = terms(whole_points, mean, variance, labels, 1.0, FLAT, LOG_ERROR, places)
    assert places.any()
    far = np.where(np.arange(30) % 3 == 0, np.nan, 5.0)
    for start in (places, far):
        again = terms(whole_points, mean, variance, labels, 1.0, FLAT, LOG_ERROR, start)
        for one, other in zip(first, again, strict=True):
            assert_allclose(one, other, atol=1e-4)


def test_terms_with_label_noise_match_quadrature():
    value, in_mean, in_variance = np.log([0.3, 1e-30]), RNG.normal(size=(2, 3)), RNG.normal(size=(2, 3))
    found = value.copy(), in_mean.copy(), in_variance.copy()
    mix_labels(0.06, 3, *found)
    expected = logsumexp([np.log(0.94) + value, np.full(2, np.log(0.02))], axis=0)
    assert_allclose(found[0], expected)
    share = 0.94 * np.exp(value - expected)[:, None]
    assert_allclose(found[1], share * in_mean)
    assert_allclose(found[2], share * in_variance)


def expected_log(log_response, mean, variance):
    """Expected log response of a normal variable, by adaptive quadrature."""
    deviation = np.sqrt(variance)
    found, _ = quad(lambda x: log_response(mean + deviation * x) * norm.pdf(x), -12.0, 12.0, limit=500, points=[0.0])
    return found


def log_expit(f):
    return -np.logaddexp(0.0, -f)


@pytest.mark.parametrize(("compute", "log_response"), [(expected_probit, log_ndtr), (expected_logit, log_expit)])
def test_expected_logarithms_of_one_function_match_quadrature(compute, log_response):
    mean, variance = some(12, 1)
    labels = np.arange(12) % 2
    value, _, in_variance = terms(compute, mean, variance, labels)
    signed = (2 * labels - 1) * mean[:, 0]
    expected = [expected_log(log_response, m, v) for m, v in zip(signed, variance[:, 0], strict=True)]
    assert_allclose(value, expected, rtol=1e-6, atol=1e-8)
    assert_derivatives(compute, mean, variance, labels, atol=1e-6)
    assert (in_variance <= 0.0).all()
    far = terms(compute, np.array([[800.0], [-800.0]]), np.ones((2, 1)), np.array([0, 0]))
    assert all(np.isfinite(each).all() for each in far)


def test_expected_logarithms_of_pairs_match_quadrature():
    mean, variance = some(12, 4)
    value, _, in_variance = terms(expected_pairs, mean, variance, 2.0)
    differences, spread = mean[:, :2] - mean[:, 2:], variance[:, :2] + variance[:, 2:]
    expected = [
        sum(expected_log(log_ndtr, m / np.sqrt(2.0), v / 2.0) for m, v in zip(*each, strict=True))
        for each in zip(differences, spread, strict=True)
    ]
    assert_allclose(value, expected, rtol=1e-6, atol=1e-8)
    assert_derivatives(expected_pairs, mean, variance, 2.0, atol=1e-6)
    assert (in_variance <= 0.0).all()


def test_expected_logarithms_with_label_noise_match_quadrature():
    value, in_mean, in_variance = np.log([0.3, 1e-30]), RNG.normal(size=(2, 3)), RNG.normal(size=(2, 3))
    found = value.copy(), in_mean.copy(), in_variance.copy()
    average_labels(np.full(2, 0.06), 3, *found)
    p = np.exp(value)
    assert_allclose(found[0], p * np.log(0.96) + (1.0 - p) * np.log(0.02))
    gain = (p * np.log(0.96 / 0.02))[:, None]
    assert_allclose(found[1], gain * in_mean)
    assert_allclose(found[2], gain * in_variance)
