"""Averages with kept densities, against sums over dense grids and against averages by new rules."""

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from pymc_gpep.likelihoods.all_likelihoods import LIKELIHOODS
from pymc_gpep.likelihoods.averages_over_cells import log_average_terms
from pymc_gpep.likelihoods.local_computations import GaussianAverage
from pymc_gpep.likelihoods.stacked import StackedLikelihood
from pymc_gpep.univariate import kept_nodes
from pymc_gpep.univariate.kept_nodes import KeptAverage
from pymc_gpep.univariate.likelihood import ANY_UNIVARIATE

N = 40
_GRID = np.linspace(-30.0, 30.0, 60_001)


class Evaluated:
    """Density that counts the latent values at which it is evaluated."""

    evaluations = 0

    def two_derivatives(self, f, columns):
        self.evaluations += f.size
        return np.stack(self.orders(f, *columns))


class ZeroInflated(Evaluated):
    """Poisson counts with a log link, in which 30 % of the observations are additional zeros."""

    def orders(self, f, y):
        rate = np.exp(f)
        none = 0.3 + 0.7 * np.exp(-rate)
        share = 0.7 * np.exp(-rate) / none
        value = np.where(y == 0.0, np.log(none), np.log(0.7) + stats.poisson.logpmf(y, rate))
        slope = np.where(y == 0.0, -share * rate, y - rate)
        return value, slope, np.where(y == 0.0, -share * rate * (1.0 - rate * (1.0 - share)), -rate)


class StudentT(Evaluated):
    """Student t with three degrees of freedom, and several modes under a wide normal density."""

    def orders(self, f, y):
        r = (3.0 * y - f) / 0.3
        q = 3.0 + r**2
        return stats.t.logpdf(r, 3.0) - np.log(0.3), 4.0 * r / q / 0.3, -4.0 * (3.0 - r**2) / q**2 / 0.09


class Kinked(Evaluated):
    """Laplace density, with a kink at its mode."""

    def orders(self, f, y):
        return -2.0 * np.abs(y - f), 2.0 * np.sign(y - f), 0.0 * f


every = pytest.mark.parametrize("kind", [ZeroInflated, StudentT, Kinked])


def moments(seed):
    """Observations, means and variances of normal densities."""
    rng = np.random.default_rng(seed)
    return rng.poisson(1.0, N) * 1.0, rng.normal(size=N), rng.uniform(0.02, 2.0, N)


def written(average, mean, variance, rows=None):
    out = np.empty((5, len(mean)))
    average(mean, variance, out, rows)
    return out


def sums(density, mean, variance, y):
    """Log average and its first two derivatives in the mean, by sums over a dense grid."""
    found = []
    for m, v, each in zip(mean, variance, y, strict=True):
        log_p = density.two_derivatives(_GRID, np.full((1, _GRID.size), each))[0]
        exponent = log_p + stats.norm.logpdf(_GRID, m, np.sqrt(v))
        weights = np.exp(exponent - exponent.max())
        total, s = weights.sum(), (_GRID - m) / v
        first = weights @ s / total
        value = exponent.max() + np.log(total * (_GRID[1] - _GRID[0]))
        found.append([value, first, weights @ (s - first) ** 2 / total - 1.0 / v])
    return np.transpose(found)


@every
def test_averages_match_sums_after_the_moments_have_changed(kind):
    y, mean, variance = moments(0)
    density = kind()
    average = KeptAverage(density, y[None])
    for factor in (0.0, 1e-3, 0.1, 0.5, 3.0):
        now = mean + factor * np.sqrt(variance), variance * (1.0 + factor)
        assert_allclose(written(average, *now)[:3], sums(density, *now, y), rtol=1e-5, atol=1e-5)


@every
def test_all_derivatives_match_new_rules(kind):
    y, mean, variance = moments(1)
    average, rng = KeptAverage(kind(), y[None]), np.random.default_rng(2)
    natural = np.maximum(variance, 1.0) ** (-0.5 * np.arange(5)[:, None])
    for size in (0.0, 1e-4, 1e-2, 0.3, 5.0, 0.3):
        mean = mean + size * np.sqrt(variance) * rng.normal(size=N)
        variance = np.clip(variance * np.exp(size * rng.normal(size=N)), 1e-3, 5.0)
        expected = log_average_terms(kind(), mean, variance, y[None])
        assert_allclose(written(average, mean, variance) / natural, expected / natural, rtol=1e-7, atol=1e-9)


@every
def test_rough_averages_have_six_digits(kind):
    y, mean, variance = moments(6)
    exact, rough = (written(KeptAverage(kind(), y[None], rough=each), mean, variance)[:3] for each in (False, True))
    assert_allclose(rough, exact, rtol=1e-6, atol=1e-6)


def test_after_slight_changes_densities_are_hardly_evaluated_again():
    y, mean, variance = moments(3)
    density = ZeroInflated()
    average = KeptAverage(density, y[None])
    written(average, mean, variance)
    first, density.evaluations = density.evaluations, 0
    written(average, mean + 0.05 * np.sqrt(variance), 1.03 * variance)
    assert 20 * density.evaluations < first < 300 * N


def test_some_rows_have_the_averages_of_all_rows():
    y, mean, variance = moments(4)
    average = KeptAverage(StudentT(), y[None])
    whole, rows = written(average, mean, variance), np.array([7, 3, 30])
    assert_allclose(written(average, mean[rows], variance[rows], rows), whole[:, rows], rtol=1e-12)
    # Rows that are computed anew, and rows whose density is kept.
    moved = mean.copy()
    moved[::2] += 9.0
    expected = log_average_terms(StudentT(), moved, variance, y[None])
    assert_allclose(written(average, moved, variance)[:3], expected[:3], rtol=1e-9, atol=1e-11)
    assert_allclose(written(average, moved, variance)[:3], expected[:3], rtol=1e-9, atol=1e-11)


def test_densities_beyond_the_largest_number_are_evaluated_again(monkeypatch):
    monkeypatch.setattr(kept_nodes, "_LARGEST", 100)
    y, mean, variance = moments(5)
    density = ZeroInflated()
    average = KeptAverage(density, y[None])
    before, density.evaluations = written(average, mean, variance), 0
    assert_allclose(written(average, mean, variance), before, rtol=1e-12)
    assert density.evaluations > 0


def test_narrow_and_undefined_densities_are_as_before():
    y = np.array([1.0, 2.0, 0.0])
    mean, variance = np.array([0.3, np.nan, 0.1]), np.array([0.0, 1.0, 1e-14])
    average = KeptAverage(ZeroInflated(), y[None])
    for _ in range(2):
        found = written(average, mean, variance)
        assert_allclose(found[:3], log_average_terms(ZeroInflated(), mean, variance, y[None])[:3], rtol=1e-9)


def test_likelihoods_of_several_variables_keep_the_densities_of_each():
    y, mean, variance = moments(7)
    with pm.Model() as model:
        f = pm.Normal("f", 0, 1, shape=N)
        pm.ZeroInflatedPoisson("y", psi=0.7, mu=pm.math.exp(f), observed=y.astype(int))
    univariate = ANY_UNIVARIATE.read(model["y"], {model["f"]}).likelihood
    poisson = next(each for each in LIKELIHOODS if each.name == "poisson")
    count = len(univariate.density.graph.rows)
    parameters = np.full((1 + count, N), 0.7)
    parameters[0] = np.arange(N) % 2
    both = StackedLikelihood(parameters, (poisson, univariate), (1, count))
    average = both.computation(GaussianAverage)
    repeated, rows, expected = average.of_rows(y, parameters), np.array([5, 0, 8]), np.empty((5, N))
    for shift in (0.0, 0.1, 6.0):
        now = mean + shift, variance
        average.terms(*now, y, parameters, expected)
        assert_allclose(written(repeated, *now), expected, rtol=1e-7, atol=1e-9)
        assert_allclose(written(repeated, now[0][rows], variance[rows], rows), expected[:, rows], rtol=1e-7, atol=1e-9)
