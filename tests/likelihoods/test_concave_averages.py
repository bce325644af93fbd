"""Averages of a log-concave density that a kernel computes, against closed forms, mpmath and differences."""

import mpmath
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import integrate, stats

from pymc_gpep.kernels.scalar import logit, ordinal, probit
from pymc_gpep.likelihoods.averages_over_cells import average_log_density, parameter_slopes
from pymc_gpep.likelihoods.counts import PoissonLikelihood
from pymc_gpep.likelihoods.local_computations import ScalarDensity
from pymc_gpep.solvers.problem import NO_PARAMETERS
from tests.likelihoods.concave import gaussian_average, poisson
from tests.reference.scalar_averages import log_average

DENSITIES = {
    "poisson": (poisson.derivatives, poisson.parameter_derivatives),
    "ordinal probit": (ordinal.probit_derivatives, ordinal.probit_parameter_derivatives),
    "ordinal logit": (ordinal.logit_derivatives, ordinal.logit_parameter_derivatives),
}
MEAN = np.array([0.3, -2.0, 2.5, -6.0, 5.0])
VARIANCE = np.array([1e-4, 0.5, 2.0, 30.0, 9.0])
Y = np.array([0, 1, 2, 1, 2])
PARAMETERS = {"poisson": 0.1 * MEAN[None]}
CUTPOINTS = np.array([[-0.5], [1.0]]) + 0.05 * MEAN
STEP = 1e-4


def written(terms, rows, mean, variance, y, parameters):
    out = np.empty((rows, len(mean)))
    terms(mean, variance, y, parameters, out)
    return out


@pytest.mark.parametrize("link", [probit, logit], ids=["probit", "logit"])
@pytest.mark.parametrize("sd", [0.0, 0.001, 0.1, 1.0, 3.0, 30.0, 3000.0])
def test_averages_for_two_classes_match_closed_forms(link, sd):
    """Errors of the k-th derivative are relative to max(sd, 1)⁻ᵏ."""
    density = ScalarDensity(link.derivatives)
    mean = np.array([0.0, 0.3, -0.3, 2.0, -2.0, 5.0, -5.0, 20.0, -20.0]) * (sd or 1.0)
    arrays = mean, np.full(9, sd**2), np.repeat([1, 0, 1], 3), NO_PARAMETERS
    natural = max(sd, 1.0) ** -np.arange(5.0)[:, None]
    h = written(gaussian_average(density).terms, 5, *arrays)
    expected = written(link.average, 5, *arrays)
    assert_allclose((h / natural)[:4], (expected / natural)[:4], rtol=2e-10, atol=2e-10)
    # The fourth derivative is computed by a difference, divided by the variance: it loses digits for small variances.
    assert_allclose(h[4] / natural[4], expected[4] / natural[4], rtol=2e-10, atol=2e-10 + (sd < 0.1) * 4e-4)
    g = written(average_log_density(density).terms, 3, *arrays)
    assert_allclose(g, written(link.average_log, 3, *arrays), rtol=1e-11, atol=1e-11)


def exact_densities(count, offset, lower, upper):
    """Densities of a Poisson and an ordinal probit row in mpmath, each with an approximate log density for arrays."""

    def poisson_mp(f):
        rate = mpmath.exp(f + offset)
        return mpmath.exp(count * (f + offset) - rate) / mpmath.factorial(count)

    def interval(f):
        return mpmath.ncdf(upper - f) - mpmath.ncdf(lower - f)

    return (
        (poisson_mp, lambda f: count * (f + offset) - np.exp(np.minimum(f + offset, 600.0))),
        (interval, lambda f: -0.5 * np.maximum(np.maximum(lower - f, f - upper), 0.0) ** 2),
    )


@pytest.mark.parametrize(("mean", "sd"), [(0.4, 0.05), (-3.0, 1.5), (2.0, 8.0)])
def test_counts_and_categories_match_values_of_many_digits(mean, sd):
    for (exact, log_size), kernel, y, parameters in zip(
        exact_densities(3, 0.2, -0.5, 1.0),
        (poisson.derivatives, ordinal.probit_derivatives),
        (3, 1),
        (np.array([[0.2]]), np.array([[-0.5], [1.0]])),
        strict=True,
    ):
        terms = gaussian_average(ScalarDensity(kernel)).terms
        found = written(terms, 5, np.array([mean]), np.array([sd**2]), np.array([y]), parameters)
        assert_allclose(found[:, 0], np.array(log_average(exact, log_size, mean, sd), dtype=float), rtol=1e-9)


@pytest.mark.parametrize("name", DENSITIES)
def test_averages_match_integrals_and_derivatives(name):
    density = ScalarDensity(DENSITIES[name][0])
    parameters = PARAMETERS.get(name, CUTPOINTS)
    h, g = gaussian_average(density).terms, average_log_density(density).terms

    def log_density(f, i):
        out = np.empty((4, 1))
        density.derivatives(np.array([f]), Y[i : i + 1], parameters[:, i : i + 1].copy(), out)
        return out[0, 0]

    value, log_value = written(h, 5, MEAN, VARIANCE, Y, parameters), written(g, 3, MEAN, VARIANCE, Y, parameters)
    for i, (mean, sd) in enumerate(zip(MEAN, np.sqrt(VARIANCE), strict=True)):
        ends = (mean - 15 * sd, mean + 15 * sd)
        normal = stats.norm(mean, sd).pdf
        options = {"epsabs": 0, "epsrel": 1e-11, "limit": 400, "points": sorted([mean, mean + sd, mean - sd])}
        p, _ = integrate.quad(lambda f, i=i, normal=normal: normal(f) * np.exp(log_density(f, i)), *ends, **options)
        log_p, _ = integrate.quad(lambda f, i=i, normal=normal: normal(f) * log_density(f, i), *ends, **options)
        assert value[0, i] == pytest.approx(np.log(p), rel=1e-9)
        assert log_value[0, i] == pytest.approx(log_p, rel=1e-9)
    above, below = (written(h, 5, MEAN + step, VARIANCE, Y, parameters) for step in (STEP, -STEP))
    assert_allclose(value[1:], ((above - below) / (2 * STEP))[:4], rtol=1e-5, atol=1e-6)
    for row, steps in ((1, (STEP, 0.0)), (2, (0.0, 0.1 * STEP))):
        above, below = (
            written(g, 3, MEAN + sign * steps[0], VARIANCE + sign * steps[1], Y, parameters)[0] for sign in (1.0, -1.0)
        )
        assert_allclose(log_value[row], (above - below) / (2 * sum(steps)), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", DENSITIES)
def test_slopes_in_parameters_match_differences(name):
    derivatives, parameter_derivatives = DENSITIES[name]
    density = ScalarDensity(derivatives)
    parameters = PARAMETERS.get(name, CUTPOINTS)
    slopes = parameter_slopes(density, parameter_derivatives)
    for terms, rows, slope in (
        (gaussian_average(density).terms, 5, slopes.average),
        (average_log_density(density).terms, 3, slopes.average_log),
    ):
        found = written(slope, len(parameters), MEAN, VARIANCE, Y, parameters)
        for row in range(len(parameters)):
            step = np.zeros_like(parameters)
            step[row] = STEP
            above, below = (
                written(terms, rows, MEAN, VARIANCE, Y, parameters + sign * step)[0] for sign in (1.0, -1.0)
            )
            assert_allclose(found[row], (above - below) / (2 * STEP), rtol=1e-6, atol=1e-7)


CLOSED = [
    pytest.param("poisson", 5, gaussian_average, poisson.average, id="h of counts"),
    pytest.param("poisson", 3, average_log_density, poisson.average_log, id="g of counts"),
    pytest.param("ordinal probit", 5, gaussian_average, ordinal.probit_average, id="h of the ordinal probit"),
    pytest.param("ordinal logit", 5, gaussian_average, ordinal.logit_average, id="h of the ordinal logit"),
    pytest.param("ordinal logit", 3, average_log_density, ordinal.logit_average_log, id="g of the ordinal logit"),
]


@pytest.mark.parametrize(("name", "rows", "adaptive", "kernel"), CLOSED)
def test_closed_forms_match_quadrature_rules(name, rows, adaptive, kernel):
    arrays = MEAN, VARIANCE, Y, PARAMETERS.get(name, CUTPOINTS)
    expected = written(adaptive(ScalarDensity(DENSITIES[name][0])).terms, rows, *arrays)
    assert_allclose(written(kernel, rows, *arrays), expected, rtol=2e-9, atol=1e-11)


@pytest.mark.parametrize(
    ("name", "average", "kernel"),
    [
        ("poisson", "average", poisson.average_slopes),
        ("poisson", "average_log", poisson.average_log_slopes),
        ("ordinal probit", "average", ordinal.probit_average_slopes),
        ("ordinal logit", "average", ordinal.logit_average_slopes),
        ("ordinal logit", "average_log", ordinal.logit_average_log_slopes),
    ],
)
def test_closed_form_slopes_match_quadrature_rules(name, average, kernel):
    derivatives, parameter_derivatives = DENSITIES[name]
    arrays = MEAN, VARIANCE, Y, PARAMETERS.get(name, CUTPOINTS)
    adaptive = getattr(parameter_slopes(ScalarDensity(derivatives), parameter_derivatives), average)
    rows = len(arrays[-1])
    assert_allclose(written(kernel, rows, *arrays), written(adaptive, rows, *arrays), rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("kernel", [ordinal.probit_average, ordinal.logit_average], ids=["probit", "logit"])
def test_probabilities_of_all_categories_sum_to_one(kernel):
    """The sum is also 1 if all probabilities except one are tiny."""
    mean, variance = np.array([0.2, -9.0, 40.0, 3.0]), np.array([0.0, 2.0, 30.0, 1e6])
    cutpoints = np.array([[-1.0], [-0.2], [3.0]]) + np.zeros(4)
    log_p = [written(kernel, 5, mean, variance, np.full(4, k), cutpoints)[0] for k in range(4)]
    assert_allclose(np.exp(log_p).sum(axis=0), 1.0, rtol=1e-13)
    assert np.isfinite(log_p).all()
    assert np.isnan(written(kernel, 5, mean, variance, np.array([-1, 4, -7, 9]), cutpoints)).all()


def test_probabilities_of_counts_sum_to_one_and_have_closed_form_moments():
    mean, variance, offset = np.full(200, 0.7), np.full(200, 0.3), np.full((1, 200), 0.2)
    counts = np.arange(200)
    h = written(gaussian_average(ScalarDensity(poisson.derivatives)).terms, 5, mean, variance, counts, offset)
    p = np.exp(h[0])
    assert p.sum() == pytest.approx(1.0, rel=1e-11)
    given = PoissonLikelihood().given(offset[:, :1].copy())
    moments = given.outcome_moments(mean[:1, None], variance[:1, None, None])
    assert_allclose(moments[:, 0], [p @ counts, p @ counts**2], rtol=1e-10)


def test_invalid_rows_have_nan_averages_and_other_rows_are_finite():
    density = ScalarDensity(poisson.derivatives)
    mean, variance = np.array([0.0, np.nan, 0.0, 0.0, 0.0]), np.array([1.0, 1.0, -1.0, np.inf, 1.0])
    arrays = mean, variance, np.array([-1, 2, 2, 2, 2]), np.zeros((1, 5))
    for terms, rows in ((gaussian_average(density).terms, 5), (average_log_density(density).terms, 3)):
        out = written(terms, rows, *arrays)
        assert np.isnan(out[:, :4]).all()
        assert np.isfinite(out[:, 4]).all()


def test_average_that_does_not_converge_is_nan():
    """A density with a jump has no derivatives, so that quadrature rules do not agree."""

    def jump(f, y, parameters, out):
        out[:] = 0.0
        out[0] = np.where(f > 0.123, 0.0, -3.0)

    out = written(
        gaussian_average(ScalarDensity(jump)).terms, 5, np.zeros(1), np.ones(1), np.zeros(1, int), np.empty((0, 1))
    )
    assert np.isnan(out).all()


def test_average_evaluates_a_density_few_times():
    """The search for narrow bends of a log-concave density is limited to wide cells, to save evaluations."""
    evaluated = 0

    def derivatives(f, y, parameters, out):
        nonlocal evaluated
        evaluated += len(f)
        logit.derivatives(f, y, parameters, out)

    mean, variance = np.array([-1.0, 0.0, 2.0]), np.array([0.1, 1.0, 4.0])
    written(gaussian_average(ScalarDensity(derivatives)).terms, 5, mean, variance, np.ones(3, np.int64), NO_PARAMETERS)
    assert evaluated < 230 * len(mean)
