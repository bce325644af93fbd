"""Counts and ordered categories of one latent function: densities against SciPy, derivatives against differences."""

import mpmath
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats
from scipy.special import expit, ndtr

from pymc_gpep.kernels.scalar import ordinal
from tests.likelihoods.concave import poisson
from tests.reference.scalar_averages import log_average
from tests.reference.stored import stored

F = np.array([-3.0, -0.7, 0.2, 1.9, 4.0, 0.5])
CUTPOINTS = np.array([-1.0, 0.3, 0.9, 2.5])[:, None] + 0.1 * np.arange(6)
CASES = {
    "poisson": (poisson.derivatives, poisson.parameter_derivatives, np.array([0, 3, 1, 12, 40, 2]), 0.3 * F[None]),
    "ordinal probit": (
        ordinal.probit_derivatives,
        ordinal.probit_parameter_derivatives,
        np.array([0, 1, 2, 3, 4, 1]),
        CUTPOINTS,
    ),
    "ordinal logit": (
        ordinal.logit_derivatives,
        ordinal.logit_parameter_derivatives,
        np.array([0, 1, 2, 3, 4, 1]),
        CUTPOINTS,
    ),
}
STEP = 1e-4


def density(name, f, y=None, parameters=None):
    kernel, _, labels, given = CASES[name]
    out = np.empty((4, len(f)))
    kernel(f, labels if y is None else y, given if parameters is None else parameters, out)
    return out


def slopes(name, f, y=None):
    _, kernel, labels, parameters = CASES[name]
    out = np.empty((len(parameters), 3, len(f)))
    kernel(f, labels if y is None else y, parameters, out)
    return out


def test_counts_match_scipy():
    _, _, y, offset = CASES["poisson"]
    assert_allclose(density("poisson", F)[0], stats.poisson.logpmf(y, np.exp(F + offset[0])), rtol=1e-12)


def averaged(mean, variance, count):
    out = np.empty((5, 1))
    poisson.average(np.array([mean], float), np.array([variance], float), np.array([count]), np.zeros((1, 1)), out)
    return out[:, 0]


@stored
def exact_average_of_counts(mean, sd, count):
    def density(f):
        return mpmath.exp(count * f - mpmath.exp(f)) / mpmath.factorial(count)

    return log_average(density, lambda f: count * f - np.exp(np.minimum(f, 600.0)), mean, sd)


@pytest.mark.parametrize(
    "count", [0, 3, 15]
)  # for these counts the tilted density is a few units wide, as the reference assumes
@pytest.mark.parametrize(("mean", "sd"), [(0.4, 0.01), (0.4, 0.5), (5.0, 1.5), (-3.0, 4.0), (2.0, 30.0)])
def test_averages_of_counts_match_values_of_many_digits(mean, sd, count):
    assert_allclose(averaged(mean, sd**2, count), exact_average_of_counts(mean, sd, count), rtol=1e-9)


@pytest.mark.parametrize("count", [0, 1, 10**4, 10**12])
@pytest.mark.parametrize("variance", [0.0, 1e-12, 1e-3, 1.0, 9.99, 10.01, 1e4, 1e8])
def test_averages_of_counts_are_finite_for_wide_and_far_densities(count, variance):
    """Averages are log-concave, as is the density."""
    for mean in (-200.0, -20.0, 0.0, 5.0, 30.0):
        value, slope, curvature, third, fourth = averaged(mean, variance, count)
        assert np.isfinite([value, slope, curvature, third, fourth]).all()
        assert value <= 0.0 or value < 1e-12
        assert -1.0 / max(variance, 1e-300) <= curvature * (1 - 1e-9) <= 1e-12
        assert slope <= count + 1e-12


@pytest.mark.parametrize(
    ("mean", "variance", "count"), [(np.nan, 1.0, 2), (0.0, -1.0, 2), (0.0, np.inf, 2), (0, 1, -1)]
)
def test_averages_for_invalid_arguments_are_nan(mean, variance, count):
    assert np.isnan(averaged(mean, variance, count)).all()


@pytest.mark.parametrize(("name", "cdf"), [("ordinal probit", ndtr), ("ordinal logit", expit)])
def test_categories_are_differences_of_the_distribution_function(name, cdf):
    _, _, y, cutpoints = CASES[name]
    at_cutpoints = np.vstack([np.zeros(6), cdf(cutpoints - F), np.ones(6)])
    columns = np.arange(6)
    expected = np.log(at_cutpoints[y + 1, columns] - at_cutpoints[y, columns])
    assert_allclose(density(name, F)[0], expected, rtol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_derivatives_match_differences_of_the_value(name):
    difference = (density(name, F + STEP) - density(name, F - STEP)) / (2 * STEP)
    assert_allclose(density(name, F)[1:], difference[:3], rtol=1e-7, atol=2e-8)


@pytest.mark.parametrize("name", CASES)
def test_slopes_in_parameters_match_differences(name):
    parameters = CASES[name][3]
    found = slopes(name, F)
    for row in range(len(parameters)):
        step = np.zeros_like(parameters)
        step[row] = STEP
        above, below = (density(name, F, parameters=parameters + sign * step) for sign in (1.0, -1.0))
        assert_allclose(found[row], ((above - below) / (2 * STEP))[:3], rtol=1e-7, atol=2e-8)


@pytest.mark.parametrize("name", ["ordinal probit", "ordinal logit"])
@pytest.mark.parametrize("f", [-30.0, 30.0])
def test_log_average_far_from_an_interval_depends_on_its_nearer_end(name, f):
    """The log odds relative to a half-infinite interval, log(1 − e^(log-slope × width)), are nearly constant in f."""
    y = np.array([2])
    cutpoints = np.array([[-1.0], [-0.5], [0.5], [3.0]])
    arrays = np.array([f]), y, cutpoints
    out, one_sided = np.empty((4, 1)), np.empty((4, 1))
    CASES[name][0](*arrays, out)
    end = cutpoints[1:2] if f < 0 else cutpoints[2:3]
    CASES[name][0](np.array([f]), np.array([1 if f < 0 else 0]), end, one_sided)
    rate = abs(one_sided[1, 0])
    assert out[0, 0] - one_sided[0, 0] == pytest.approx(np.log(-np.expm1(-rate - (0.5 if rate > 2 else 0.0))), abs=0.02)
    assert_allclose(out[1:3], one_sided[1:3], atol=0.02)


@pytest.mark.parametrize("name", CASES)
def test_impossible_observations_return_nan(name):
    y = np.full(6, -1)
    assert np.isnan(density(name, F, y)).all()
    assert np.isnan(slopes(name, F, y)).all()
    if name != "poisson":
        assert np.isnan(density(name, F, np.full(6, 5))).all()
        assert np.isnan(density(name, F, parameters=-CUTPOINTS)[:, 1:4]).all()
