"""Standard densities and their averages under normal distributions, against many digits and differences."""

import math

import mpmath
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import log_expit

from pymc_gpep.kernels.scalar import asymmetric_laplace, log_rate, normal_sides, powers
from pymc_gpep.kernels.special.unimodal_average import LOGISTIC, ROOM, SOME, log_unimodal_normal
from tests.reference.scalar_averages import average_log, log_average
from tests.reference.stored import stored

DENSITIES = {
    "successes and failures": (powers, [3.0, 2.0]),
    "successes": (powers, [4.0, 0.0]),
    "a small power": (powers, [2.0, 0.3]),
    "a time that was seen": (log_rate, [1.0, 0.0]),
    "a time that was not": (log_rate, [0.0, 0.0]),
    "a sum of times": (log_rate, [2.7, 0.0]),
    "an event in time": (log_rate, [0.0, 1.0]),
    "a normal number": (normal_sides, [0.0]),
    "a number below a bound": (normal_sides, [1.0]),
    "a number above a bound": (normal_sides, [-1.0]),
    "quantile": (asymmetric_laplace, [1.7]),
}
MOMENTS = [(0.4, 0.01), (0.4, 0.5), (5.0, 1.5), (-3.0, 4.0), (2.0, 30.0), (-12.0, 3.0)]
SMOOTH = [name for name in DENSITIES if name != "quantile"]
STEP = 1e-4


def exact(name, x):
    """Log density with mpmath."""
    kernel, shapes = DENSITIES[name]
    if kernel is powers:
        a, b = shapes
        return -a * mpmath.log1p(mpmath.exp(-x)) - b * mpmath.log1p(mpmath.exp(x))
    if kernel is log_rate:
        weight, some = shapes
        return mpmath.log(-mpmath.expm1(-mpmath.exp(x))) if some else weight * x - mpmath.exp(x)
    (side,) = shapes
    if kernel is asymmetric_laplace:
        return -side * x if x > 0 else x / side
    if side == 0:
        return -x * x / 2 - mpmath.log(2 * mpmath.pi) / 2
    return mpmath.log(mpmath.ncdf(side * x)) if side * x < 0 else mpmath.log1p(-mpmath.ncdf(-side * x))


def rough(name):
    """Log density of an array, with a few digits."""
    return np.vectorize(lambda x: float(max(exact(name, mpmath.mpf(max(min(x, 30.0), -1e5))), -1e12)))


@stored
def exact_log_average(name, mean, sd):
    if name == "quantile":
        return exact_kinked(mean, sd)
    return np.array(log_average(lambda x: mpmath.exp(exact(name, x)), rough(name), mean, sd), dtype=float)


@stored
def exact_average_log(name, mean, sd):
    return np.array(
        average_log(lambda x: exact(name, x), lambda x: np.log(np.maximum(-rough(name)(x), 1e-300)), mean, sd),
        dtype=float,
    )


def exact_kinked(mean, sd):
    """Cumulants from integrals on both sides of the kink."""
    kappa = mpmath.mpf(DENSITIES["quantile"][1][0])
    with mpmath.workdps(40):

        def moment(k):
            def term(x):
                return x**k * mpmath.exp(exact("quantile", x)) * mpmath.npdf(x, mean, sd)

            centres = [mean, mean - kappa * sd**2, mean + sd**2 / kappa]
            ends = sorted({*(c + t * sd for c in centres for t in (-15, -5, -1, 0, 1, 5, 15)), 0.0})
            return mpmath.quad(term, [mpmath.mpf(x) for x in ends])

        raw = [moment(k) for k in range(5)]
        one, two, three, four = (each / raw[0] for each in raw[1:])
        v = mpmath.mpf(sd) ** 2
        second, third = two - one**2, three - 3 * two * one + 2 * one**3
        fourth = four - 4 * three * one - 3 * two**2 + 12 * two * one**2 - 6 * one**4
        terms = [mpmath.log(raw[0]), (one - mean) / v, second / v**2 - 1 / v, third / v**3, fourth / v**4]
        return np.array(terms, dtype=float)


def call(kernel, rows, shapes, *arguments, extra=()):
    """Output of a kernel at one point, and slopes with respect to shapes."""
    out, slopes = np.empty((rows, 1)), np.empty((len(shapes), *extra, 1))
    kernel(*(np.array([float(x)]) for x in arguments), np.array(shapes)[:, None], out, slopes)
    return out[:, 0], slopes[..., 0]


@pytest.mark.parametrize("name", DENSITIES)
@pytest.mark.parametrize(("mean", "sd"), MOMENTS)
def test_averages_of_the_density_match_values_of_many_digits(name, mean, sd):
    kernel, shapes = DENSITIES[name]
    found, _ = call(kernel.average, 5, shapes, mean, sd**2)
    assert_allclose(found, exact_log_average(name, mean, sd), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize(("mean", "sd"), [(0.4, 0.01), (0.4, 0.5), (1.0, 1.5), (-3.0, 4.0), (-12.0, 3.0)])
def test_averages_of_the_logarithm_match_values_of_many_digits(name, mean, sd):
    kernel, shapes = DENSITIES[name]
    found, _ = call(kernel.average_log, 3, shapes, mean, sd**2)
    assert_allclose(found, exact_average_log(name, mean, sd), rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("name", DENSITIES)
@pytest.mark.parametrize("g", [-50.0, -3.0, -0.2, 0.7, 4.0])
def test_density_and_derivatives_match_reference(name, g):
    kernel, shapes = DENSITIES[name]
    found, _ = call(kernel.derivatives, 4, shapes, g, extra=(3,))
    with mpmath.workdps(60):
        expected = [mpmath.diff(lambda x: exact(name, x), g, k) for k in range(4)]
    assert_allclose(found, np.array(expected, dtype=float), rtol=1e-10, atol=1e-20)


@pytest.mark.parametrize("name", ["successes and failures", "a small power", "a sum of times", "quantile"])
@pytest.mark.parametrize("moments", [(0.6,), (-1.4,), (0.6, 0.5), (-2.0, 20.0)])
def test_slopes_in_shapes_match_differences(name, moments):
    kernel, shapes = DENSITIES[name]
    density = len(moments) == 1
    kinds = [(kernel.derivatives, 4, (3,))] if density else [(kernel.average, 5, ()), (kernel.average_log, 3, ())]
    for function, rows, extra in kinds:
        _, found = call(function, rows, shapes, *moments, extra=extra)
        for k in range(1 if kernel is log_rate else len(shapes)):
            up, down = (
                call(function, rows, np.add(shapes, sign * STEP * np.eye(len(shapes))[k]), *moments, extra=extra)[0]
                for sign in (1.0, -1.0)
            )
            expected = ((up - down) / (2.0 * STEP))[: 3 if density else 1]
            assert_allclose(np.atleast_1d(found[k]), expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("b", [0.0, 0.3, 2.0, 1e6])
@pytest.mark.parametrize("a", [0.0, 0.01, 5.0, 1e8])
def test_averages_of_powers_are_finite_for_wide_and_far_densities(a, b):
    """Averages are log-concave, as is the density."""
    room = np.empty(ROOM)
    for variance in (0.0, 1e-12, 1e-3, 1.0, 9.99, 10.01, 1e4, 1e8, 1e14):
        for mean in (-1e4, -200.0, -20.0, 0.0, 5.0, 30.0, 1e3):
            found = np.array(log_unimodal_normal(LOGISTIC, a, b, mean, variance, room))
            assert np.isfinite(found).all()
            assert found[0] <= 1e-12
            assert -b - 1e-9 <= found[1] <= a + 1e-9
            assert -1.0 / max(variance, 1e-300) * (1.0 + 1e-9) <= found[2] <= 1e-12
            assert found[5] <= 0.0
            assert found[6] <= 0.0


@pytest.mark.parametrize("variance", [0.0, 1e-12, 1.0, 9.99, 10.01, 1e4, 1e8, 1e14])
def test_averages_of_event_times_are_finite_for_wide_and_far_densities(variance):
    room = np.empty(ROOM)
    for mean in (-1e4, -200.0, -20.0, 0.0, 5.0, 30.0, 1e3):
        found = np.array(log_unimodal_normal(SOME, 0.0, 0.0, mean, variance, room))[:5]
        assert np.isfinite(found).all()
        assert found[0] <= 1e-12
        assert -1e-12 <= found[1] <= 1.0 + 1e-12
        assert found[2] <= 1e-12


def test_average_of_successes_satisfies_the_heat_equation():
    """By the heat equation, the log average h(m, v) has ∂h/∂v = ½ (∂²h/∂m² + (∂h/∂m)²)."""
    kernel, shapes = DENSITIES["successes"]
    for mean, variance in ((-0.3, 0.7), (3.0, 50.0)):
        found, _ = call(kernel.average, 5, shapes, mean, variance)
        up, down = (call(kernel.average, 5, shapes, mean, variance * (1.0 + t))[0][0] for t in (1e-4, -1e-4))
        expected = 0.5 * (found[2] + found[1] ** 2)
        assert (up - down) / (2e-4 * variance) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("name", DENSITIES)
def test_invalid_moments_return_nan(name):
    kernel, shapes = DENSITIES[name]
    for mean, variance in ((np.nan, 1.0), (0.0, -1.0), (0.0, np.inf)):
        assert np.isnan(call(kernel.average, 5, shapes, mean, variance)[0]).all()


def test_probability_near_one_keeps_its_digits():
    found, _ = call(powers.derivatives, 4, [5.0, 0.0], 40.0, extra=(3,))
    assert found[0] == pytest.approx(5.0 * log_expit(40.0), rel=1e-12)
    assert math.isfinite(found[1])
