"""Functions of the normal distribution against mpmath."""

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pymc_gpep.kernels.special.normal import LOG_2PI, hazard, log_ndtr, log_ndtr_and_hazard, probit_moments

# Points from the far tail to the centre in steps of ¼, and both sides of each change of formula.
POINTS = np.unique(
    np.concatenate(
        [
            -np.logspace(-3, 4, 71),
            np.logspace(-3, np.log10(37), 41),
            np.arange(-10, 10, 0.25),
            [np.nextafter(-4.0, -5.0), np.nextafter(-4.0, 0.0), -5e-324, 0.0],
        ]
    )
)


def exact_moments(z):
    """Exact moments. More digits are used for 1 − h(h + z), which is of size z⁻²."""
    with mpmath.workdps(60):
        z = mpmath.mpf(float(z))
        upper = mpmath.erfc(z / mpmath.sqrt(2)) / 2
        lower = mpmath.erfc(-z / mpmath.sqrt(2)) / 2
        h = mpmath.npdf(z) / lower
        log_p = mpmath.log(lower) if z < 0 else mpmath.log1p(-upper)
        return log_p, h, h * (h + z), 1 - h * (h + z)


def relative_error(value, exact):
    with mpmath.workdps(60):
        return float(abs((mpmath.mpf(float(value)) - exact) / exact))


@pytest.mark.parametrize("part", range(4), ids=["log Φ", "hazard", "curvature", "truncated variance"])
def test_probit_moments_are_exact_to_rounding(part):
    errors = [relative_error(probit_moments(z)[part], exact_moments(z)[part]) for z in POINTS]
    worst = int(np.argmax(errors))
    assert errors[worst] < 1.2e-13, f"at z = {POINTS[worst]}"


def test_functions_for_the_same_probit_quantity_return_equal_values():
    for z in POINTS:
        log_p, h, *_ = probit_moments(z)
        assert (log_p, h) == log_ndtr_and_hazard(z) == (log_ndtr(z), hazard(z))


def test_log_two_pi_is_exact():
    assert relative_error(LOG_2PI, mpmath.log(2 * mpmath.pi)) < 1e-15


@pytest.mark.parametrize("z", [-1e100, -1e8])
def test_moments_in_the_far_tail_match_their_limit(z):
    _, h, curvature, truncated = probit_moments(z)
    assert h == pytest.approx(-z, rel=1e-15)
    assert curvature == pytest.approx(1.0, rel=1e-15)
    assert truncated == pytest.approx(z**-2, rel=1e-15)


def test_infinities_and_nan_are_handled():
    assert (log_ndtr(np.inf), hazard(np.inf)) == (0.0, 0.0)
    assert (log_ndtr(-np.inf), hazard(-np.inf)) == (-np.inf, np.inf)
    assert np.isnan(probit_moments(np.nan)).all()


@settings(deadline=None, derandomize=True)
@given(st.floats(-1e6, 38.0))
def test_curvature_and_truncated_variance_lie_between_zero_and_one(z):
    _, h, curvature, truncated = probit_moments(z)
    assert h > max(0.0, -z) * (1 - 1e-15)
    assert 0.0 < curvature <= 1.0 + 1e-15
    assert 0.0 < truncated <= 1.0
    assert curvature + truncated == pytest.approx(1.0, abs=3e-15)


@settings(deadline=None, derandomize=True)
@given(st.floats(-37.0, 37.0))
def test_normal_tail_probabilities_sum_to_one(z):
    assert np.exp(log_ndtr(z)) + np.exp(log_ndtr(-z)) == pytest.approx(1.0, abs=1e-15)
