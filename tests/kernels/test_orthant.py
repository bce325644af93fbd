"""Probabilities that jointly normal variables are below bounds, against SciPy, closed forms and finer rules."""

import mpmath
import numpy as np
import pytest
from scipy.special import log_ndtr, logsumexp, ndtr

from pymc_gpep.kernels.special import orthant
from pymc_gpep.kernels.special import orthant as bivariate_kernels
from pymc_gpep.kernels.special import orthant as trivariate_kernels
from tests.reference.stored import stored


def random_covariance(rng, d, scale):
    a = scale * rng.standard_normal((d, d))
    return a @ a.T + np.eye(d)


@stored
def given_first(b, s):
    """P(x < b) for x ~ N(0, s) in two dimensions, by one quadrature with 20 digits."""
    with mpmath.workdps(20):
        slope = mpmath.mpf(s[0, 1]) / s[0, 0]
        spread = mpmath.sqrt(s[1, 1] - slope * s[0, 1])
        sd = mpmath.sqrt(s[0, 0])

        def integrand(x):
            return mpmath.npdf(x, 0, sd) * mpmath.ncdf((b[1] - slope * x) / spread)

        grid = sorted(
            {-12 * float(sd), *(b[0] - w * float(sd) for w in (0, 0.01, 0.1, 1, 3)), *_steep(b, slope, spread)}
        )
        grid = [x for x in grid if -12 * float(sd) <= x <= b[0]]
        return float(mpmath.quad(integrand, grid)) if len(grid) > 1 else 0.0


def _steep(b, slope, spread):
    return [float((b[1] + w * spread) / slope) for w in (-4, -1, 0, 1, 4)] if slope else []


@pytest.mark.parametrize("correlation", [-0.99999, -0.7, 0.0, 0.5, 0.999, 0.9999999])
@pytest.mark.parametrize(
    "b", [(0.0, 0.0), (0.0, 1.0), (-0.5, 0.0), (1.0, 2.0), (-1.0, 0.3), (-3.0, -2.5), (1.0, 1.0001)]
)
def test_bivariate_probability_matches_scipy(correlation, b):
    s = np.array([[2.0, correlation * np.sqrt(6.0)], [correlation * np.sqrt(6.0), 3.0]])
    value = bivariate_kernels.bivariate(b[0], b[1], s[0, 0], s[0, 1], s[1, 1])
    assert value == pytest.approx(given_first(b, s), abs=2e-13)


def test_bivariate_probability_at_zero_follows_from_an_angle():
    for rho in np.linspace(-0.999, 0.999, 21):
        value = bivariate_kernels.bivariate(0.0, 0.0, 1.0, rho, 1.0)
        assert value == pytest.approx(0.25 + np.arcsin(rho) / (2 * np.pi), abs=1e-15)


@pytest.mark.parametrize("correlation", [-0.9, -0.3, 0.0, 0.5, 0.99, 0.99999])
@pytest.mark.parametrize("b", [(-8.0, -7.0), (-20.0, 3.0), (0.1, -12.0), (-30.0, -1.0), (-9.0, -9.0), (-6.0, -5.9)])
def test_small_bivariate_probability_has_small_relative_error(correlation, b):
    """References are Gauss-Legendre rules on pieces of length 0.01 of the first variable, with log sums."""
    nodes, weights = np.polynomial.legendre.leggauss(20)
    x = (b[0] - 0.01 * (np.arange(5000)[:, None] + 0.5 * (1.0 + nodes))).ravel()
    spread = np.sqrt((1.0 - correlation) * (1.0 + correlation))
    log_terms = -0.5 * x * x + log_ndtr((b[1] - correlation * x) / spread) + np.log(np.tile(weights, 5000))
    expected = np.exp(logsumexp(log_terms) + np.log(0.005) - 0.5 * np.log(2.0 * np.pi))
    value = bivariate_kernels.bivariate(2.0 * b[0], 3.0 * b[1], 4.0, 6.0 * correlation, 9.0)
    assert value == pytest.approx(expected, rel=1e-8, abs=1e-300)


def trivariate(b, s):
    return trivariate_kernels.trivariate(b, s, np.empty(trivariate_kernels.STACK))


def small_trivariate(b, s):
    s, b = s.copy(), b.copy()
    assert orthant._order_and_factor(s, b, np.empty(3))
    return trivariate_kernels.small_trivariate(b, s, np.empty(trivariate_kernels.STACK))


def test_trivariate_probability_at_zero_follows_from_a_solid_angle():
    rng = np.random.default_rng(1)
    for scale in (0.5, 5.0, 100.0):
        s = random_covariance(rng, 3, scale)
        r = s / np.sqrt(np.outer(np.diag(s), np.diag(s)))
        expected = 0.125 + np.arcsin(r[np.triu_indices(3, 1)]).sum() / (4 * np.pi)
        assert trivariate(np.zeros(3), s) == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("scale", [0.5, 10.0, 1000.0])
def test_trivariate_probabilities_of_both_signs_sum_to_the_bivariate_probability(scale):
    rng = np.random.default_rng(2)
    for _ in range(10):
        s = random_covariance(rng, 3, scale)
        b = scale * rng.standard_normal(3)
        flip = np.diag([1.0, 1.0, -1.0])
        both = trivariate(b, s) + trivariate(flip @ b, flip @ s @ flip)
        assert both == pytest.approx(bivariate_kernels.bivariate(b[0], b[1], s[0, 0], s[0, 1], s[1, 1]), abs=1e-10)


@pytest.mark.parametrize("scale", [0.5, 1.0, 10.0])
def test_two_formulas_for_the_trivariate_probability_agree(scale):
    rng = np.random.default_rng(3)
    for _ in range(20):
        s, b = random_covariance(rng, 3, scale), scale * rng.standard_normal(3)
        assert trivariate(b, s) == pytest.approx(small_trivariate(b, s), abs=1e-10)


def test_small_trivariate_probability_has_small_relative_error():
    """Variables are independent, so that the probability is a product."""
    b = np.array([-7.0, -6.0, 0.3])
    assert small_trivariate(b, np.eye(3)) == pytest.approx(np.exp(log_ndtr(b).sum()), rel=1e-9)


@pytest.mark.parametrize("scale", [1e4, 1e8, 1e50])
def test_nearly_collinear_wide_classes_are_integrated(scale):
    """Utilities are scale (m + a z) with one z, plus noise. Without noise the largest follows from intervals of z."""
    rng = np.random.default_rng(4)
    a, m = rng.standard_normal((50, 4)), rng.standard_normal((50, 4))
    found = np.empty((50, 4))
    orthant.largest_of_four(scale * m, scale**2 * a[:, :, None] * a[:, None, :], found)
    for p, slope, start in zip(found, a, m, strict=True):
        ends = [(start[j] - start[k]) / (slope[k] - slope[j]) for k in range(4) for j in range(k)]
        edges = np.concatenate([[-np.inf], np.sort(ends), [np.inf]])
        middle = np.clip(edges[:-1], -50, 50) / 2 + np.clip(edges[1:], -50, 50) / 2
        largest = np.argmax(start[:, None] + slope[:, None] * middle, axis=0)
        expected = np.bincount(largest, np.diff(ndtr(edges)), minlength=4)
        np.testing.assert_allclose(p, expected, atol=max(2.0 / scale, 1e-6))


@pytest.mark.parametrize("d", [4, 9, 25])
def test_ordered_factor_reproduces_the_covariance(d):
    rng = np.random.default_rng(d)
    s, b = random_covariance(rng, d, 1.0), rng.standard_normal(d)
    factor, bounds = s.copy(), b.copy()
    assert orthant._order_and_factor(factor, bounds, np.empty(d))
    order = [int(np.flatnonzero(b == x)[0]) for x in bounds]
    assert sorted(order) == list(range(d))
    lower = np.tril(factor)
    np.testing.assert_allclose(lower @ lower.T, s[np.ix_(order, order)], rtol=1e-10, atol=1e-12)
    assert order[0] == np.argmin(b / np.sqrt(np.diag(s)))


def test_indefinite_matrix_has_no_factor():
    assert not orthant._order_and_factor(np.array([[1.0, 2.0], [2.0, 1.0]]), np.zeros(2), np.empty(2))
    assert not orthant._order_and_factor(np.full((2, 2), np.nan), np.zeros(2), np.empty(2))


def tilted(s, b):
    """Unit lower triangular factor, bounds, tilt, and the variables at the saddle point."""
    d = len(b)
    factor, bound = s.copy(), b.copy()
    assert orthant._order_and_factor(factor, bound, np.empty(d))
    diagonal = np.diag(factor).copy()
    lower, bound = np.tril(factor) / diagonal[:, None], bound / diagonal
    mu, hazards = np.empty(d), np.empty(d)
    others = np.empty((4, d))
    orthant._tilt(lower, bound, mu, np.empty((d, d)), np.empty((d, d)), *others[:3], hazards, others[3])
    return lower, bound, mu, mu - hazards


def tilted_log_weight(z, mu, lower, bound):
    """Botev (2017), equation 10, for upper bounds."""
    arguments = bound - (lower - np.eye(len(bound))) @ z - mu
    return np.sum(0.5 * mu**2 - z * mu + log_ndtr(arguments))


@pytest.mark.parametrize("d", [4, 9, 25])
@pytest.mark.parametrize("scale", [0.3, 3.0, 30.0])
def test_tilt_is_a_saddle_point_of_the_log_weight(d, scale):
    rng = np.random.default_rng(d)
    lower, bound, mu, z = tilted(random_covariance(rng, d, scale), scale * rng.standard_normal(d))
    assert mu[-1] == 0.0
    z[-1] = 0.0  # the last variable is not part of the saddle point
    for e in 1e-5 * np.eye(d)[:-1]:
        for dz, dmu in ((e, 0.0), (0.0, e)):
            rise = tilted_log_weight(z + dz, mu + dmu, lower, bound) - tilted_log_weight(z - dz, mu - dmu, lower, bound)
            assert abs(rise / 2e-5) < 1e-3


def weights(u, lower, bound, mu):
    """Integrand at points u (points, d, sequences) of the unit cube."""
    d = len(bound)
    points = (u * 2**orthant.BITS).astype(np.int64)
    found = np.zeros((len(u), orthant.SEQUENCES))
    room = np.empty((d, orthant.SEQUENCES)), np.empty((4, orthant.SEQUENCES))
    for i in range(len(u)):
        orthant._add_points(points, i, i + 1, np.zeros_like(points[0]), lower, bound, mu, *room, found[i])
    return found.ravel()


def test_tilting_keeps_the_mean_and_reduces_the_variance():
    rng = np.random.default_rng(3)
    d = 9
    lower, bound, mu, _ = tilted(random_covariance(rng, d, 1.0), rng.standard_normal(d) - 1.0)
    u = rng.random((2500, d, orthant.SEQUENCES))
    plain, weighted = (weights(u, lower, bound, shift) for shift in (np.zeros(d), mu))
    assert weighted.mean() == pytest.approx(plain.mean(), abs=4 * plain.std() / np.sqrt(plain.size))
    assert weighted.std() < plain.std() / 3
    # The weight at the saddle point is the largest.
    assert weighted.max() < 3 * weighted.mean()


def test_class_probabilities_sum_to_one():
    probabilities = np.array([0.2, 0.3, 0.51])
    error = orthant._sum_to_one(probabilities, np.array([0.0, 0.0, 1e-4]))
    np.testing.assert_allclose(probabilities, [0.2, 0.3, 0.5], rtol=1e-14)
    assert error == 0.0
    probabilities = np.array([0.2, 0.3, 0.51])
    error = orthant._sum_to_one(probabilities, np.full(3, 1e-8))
    np.testing.assert_allclose(probabilities, [0.2 - 0.01 / 3, 0.3 - 0.01 / 3, 0.51 - 0.01 / 3], rtol=1e-14)
    # The sum differs from 1 by 58 standard deviations.
    assert error == pytest.approx(np.sqrt(1e-8 * 2 / 3) * 0.01 / np.sqrt(3e-8))


@pytest.mark.parametrize("b", [-45.0, -8.0, 0.0, 8.0])
def test_weight_of_independent_variables_is_a_product_of_probabilities(b):
    d = 5
    bound = np.linspace(b, 0.0, d)
    found = weights(np.full((1, d, orthant.SEQUENCES), 0.3), np.eye(d), bound, np.zeros(d))
    np.testing.assert_allclose(found, np.prod(ndtr(bound)), rtol=1e-12, atol=1e-300)
