"""Averages of densities with several modes, kinks or narrow features, against sums over a dense grid."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from pymc_gpep.likelihoods.averages_over_cells import (
    average_log_terms,
    average_slopes,
    log_average_terms,
    normal_slopes,
)

N = 8
RNG = np.random.default_rng(4)
MEAN = RNG.normal(size=N)
VARIANCE = np.geomspace(1e-3, 30.0, N)
Y = MEAN + 3.0 * RNG.normal(size=N)
_Z = np.linspace(-12.0, 12.0, 20_001)


class StudentT:
    """Student t density with three degrees of freedom and a scale."""

    def __init__(self, scale):
        self.scale = scale

    def two_derivatives(self, f, columns):
        r = (columns[0] - f) / self.scale
        q = 3.0 + r**2
        value = stats.t.logpdf(r, 3.0) - np.log(self.scale)
        return np.stack([value, 4.0 * r / q / self.scale, -4.0 * (3.0 - r**2) / q**2 / self.scale**2])


class Kinked:
    """Laplace density, with a kink at its mode."""

    def two_derivatives(self, f, columns):
        r = columns[0] - f
        return np.stack([-2.0 * np.abs(r), 2.0 * np.sign(r), 0.0 * f])


class Halves:
    """Equal mixture of two normal densities. The second has the negative observation."""

    def two_derivatives(self, f, columns):
        means = np.stack([columns[0], -columns[0]])
        log_parts = -0.5 * ((f - means) / 0.4) ** 2
        value = np.logaddexp(*log_parts)
        weights = np.exp(log_parts - value)
        slopes = (means - f) / 0.16
        slope = (weights * slopes).sum(axis=0)
        return np.stack([value, slope, (weights * slopes**2).sum(axis=0) - slope**2 - 1.0 / 0.16])


DENSITIES = {"wide": StudentT(0.7), "narrow": StudentT(0.01), "kinked": Kinked(), "two modes": Halves()}
every = pytest.mark.parametrize("density", DENSITIES.values(), ids=DENSITIES)


def places(mean, variance, y):
    """Nodes and weights of ∫ · df, dense near the means of both densities."""
    f = np.unique(np.concatenate([mean + np.sqrt(variance) * _Z, *(c + s * _Z for c in (y, -y) for s in (0.01, 0.5))]))
    return f, np.gradient(f)


def sums(density, function):
    """Sum of `function(nodes, weights, normal density, log p)` for each point."""
    found = []
    for mean, variance, y in zip(MEAN, VARIANCE, Y, strict=True):
        f, weights = places(mean, variance, y)
        log_p = density.two_derivatives(f, np.full((1, f.size), y))[0]
        found.append(function(weights, stats.norm.logpdf(f, mean, np.sqrt(variance)), log_p))
    return np.array(found)


def log_sum(weights, log_normal, log_p):
    exponent = log_normal + log_p
    return exponent.max() + np.log(weights @ np.exp(exponent - exponent.max()))


@every
def test_averages_of_densities_with_several_modes_match_integrals(density):
    h = log_average_terms(density, MEAN, VARIANCE, Y[None])
    g = average_log_terms(density, MEAN, VARIANCE, Y[None])
    assert_allclose(h[0], sums(density, log_sum), rtol=1e-5, atol=1e-5)
    expected = sums(density, lambda weights, log_normal, log_p: weights @ (np.exp(log_normal) * log_p))
    assert_allclose(g[0], expected, rtol=1e-5, atol=1e-5)


@every
def test_derivatives_of_averages_match_differences(density):
    sd = np.sqrt(VARIANCE)
    step = 1e-3 * sd
    natural = sd ** -np.arange(5.0)[:, None]

    def differences(terms, shift=0.0, widened=0.0):
        up, down = (terms(density, MEAN + t * shift, VARIANCE * (1.0 + t * widened), Y[None]) for t in (1.0, -1.0))
        return up - down

    h = log_average_terms(density, MEAN, VARIANCE, Y[None])
    found = differences(log_average_terms, shift=step)[:4] / (2.0 * step)
    assert_allclose(found / natural[1:], h[1:] / natural[1:], rtol=2e-5, atol=2e-5)
    g = average_log_terms(density, MEAN, VARIANCE, Y[None])
    assert_allclose(differences(average_log_terms, shift=step)[0] / (2.0 * step), g[1], rtol=1e-5, atol=1e-5)
    assert_allclose(differences(average_log_terms, widened=1e-3)[0] / (2e-3 * VARIANCE), g[2], rtol=1e-5, atol=1e-5)


def test_slopes_match_differences_of_averages():
    """The parameter is the scale of the density."""
    scale, step = 0.7, 1e-4
    columns = Y[None]

    def slopes(f, points):
        r = (Y[points] - f) / scale
        return ((4.0 * r**2 / (3.0 + r**2) - 1.0) / scale)[None]

    for terms, of in ((log_average_terms, average_slopes), (average_log_terms, normal_slopes)):
        found = of(StudentT(scale), MEAN, VARIANCE, columns, slopes, 1)[0]
        up, down = (terms(StudentT(scale + t * step), MEAN, VARIANCE, columns)[0] for t in (1.0, -1.0))
        assert_allclose(found, (up - down) / (2.0 * step), rtol=1e-6, atol=1e-7)


def test_density_that_is_nan_has_nan_averages():
    class Nothing:
        def two_derivatives(self, f, columns):
            return np.full((3, f.size), np.nan)

    assert np.isnan(log_average_terms(Nothing(), MEAN, VARIANCE, Y[None])).all()
    assert np.isnan(average_log_terms(Nothing(), MEAN, VARIANCE, Y[None])).all()


def test_average_for_zero_variance_is_the_density():
    density = StudentT(0.7)
    at = density.two_derivatives(MEAN, Y[None])
    assert_allclose(log_average_terms(density, MEAN, 0.0 * VARIANCE, Y[None])[:3], at, rtol=1e-12)
    g = average_log_terms(density, MEAN, 0.0 * VARIANCE, Y[None])
    assert_allclose(g, at * [[1.0], [1.0], [0.5]], rtol=1e-12)
