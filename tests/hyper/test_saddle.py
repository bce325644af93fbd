"""Searches that start at a stationary point, on artificial log posteriors: ends and messages."""

from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.hyper.ascent import higher_nearby
from pymc_gpep.hyper.inducing_inputs import SignedSteps, alternate_updates
from pymc_gpep.hyper.optimum import maximise
from pymc_gpep.kernels.status import CONVERGED, NOT_POSITIVE_DEFINITE
from pymc_gpep.log_posteriors.evaluation import Evaluation

LEFT = "having left a stationary point that is not a maximum"


class MadeUp:
    """Log posterior from a function of value and slopes. It counts its calls."""

    name = "made up"
    classifier = SimpleNamespace(prior=SimpleNamespace(integrated=(), processes=()))

    def __init__(self, function):
        self.function = function
        self.calls = 0

    def loosely(self):
        return self

    def roughly(self):
        return self

    def point(self, theta):
        return {"theta": theta}

    def check_moments(self, theta):
        pass

    def covariance(self, theta):
        return np.eye(1)[None], np.zeros(1, int)

    def __call__(self, theta, start=None):
        self.calls += 1
        value, slope = self.function(*theta)
        status = CONVERGED if np.isfinite(value) else NOT_POSITIVE_DEFINITE
        return Evaluation(np.array(theta), value, np.array(slope, float), value, 1, status, np.ones(1))

    def after_one_sweep(self, theta, start):
        return self(theta)


def magnitude(a, b):
    """Log density with a saddle at (0, 1) and maxima at (±2, 1)."""
    return -((a**2 - 4) ** 2) / 8 - (b - 1) ** 2, (-a * (a**2 - 4) / 2, -2 * (b - 1))


def exchangeable(a, b):
    """Log density with a saddle at (½, ½), and maxima where a + b = 1 and a − b = ±2."""
    total, apart = a + b - 1, (a - b) * ((a - b) ** 2 - 4) / 4
    return -(total**2) - ((a - b) ** 2 - 4) ** 2 / 16, (-2 * total - apart, -2 * total + apart)


def fourth_power(a, b):
    """Log density with a maximum of 0 at (0, 1).

    Its higher maxima solve 0.04 (1 + a⁴)² = 20 a²: a² = 2.6938 by bisection.
    """
    ratio = a**4 / (1 + a**4)
    return 5 * ratio - 0.02 * a**2 - (b - 1) ** 2, (20 * a**3 / (1 + a**4) ** 2 - 0.04 * a, -2 * (b - 1))


def product(a, b):
    """Log density with a maximum of 0 at (0, 0).

    Its higher maxima solve (1 + a⁴)² = 250 a², a² = b²: 6.1924 by bisection.
    """
    p = a * b
    slope = 10 * p / (1 + p**2) ** 2
    return 5 * p**2 / (1 + p**2) - 0.02 * (a**2 + b**2), (slope * b - 0.04 * a, slope * a - 0.04 * b)


@pytest.mark.parametrize(
    ("function", "start", "end"),
    [
        (magnitude, (0.0, 0.0), (2.0, 1.0)),
        (magnitude, (0.0, 1.0), (2.0, 1.0)),  # the saddle
        (exchangeable, (0.0, 0.0), (1.5, -0.5)),
        (fourth_power, (0.0, 0.0), None),
        (product, (0.0, 0.0), (2.4885, 2.4885)),
    ],
)
def test_search_leaves_a_point_of_symmetry(function, start, end):
    found = maximise(MadeUp(function), np.array(start), 100)
    assert found.converged
    assert LEFT in found.outcome
    if end is None:
        a = found.best.theta[0]
        assert 20 * a**2 == pytest.approx(0.04 * (1 + a**4) ** 2, rel=1e-2)
        assert a > 1
    else:
        assert_allclose(np.sort(found.best.theta), np.sort(end), atol=1e-3)


def test_inner_updates_leave_a_point_of_symmetry():
    found = alternate_updates(MadeUp(magnitude), np.zeros(2), 400, lambda history: None, SignedSteps(), 1e-8)
    assert LEFT in found.outcome
    assert_allclose(found.best.theta, (2.0, 1.0), atol=1e-2)


def test_search_without_saddle_has_no_extra_evaluations():
    def bowl(a, b):
        return -((a - 2) ** 2) - 3 * (b - a) ** 2, (-2 * (a - 2) + 6 * (b - a), -6 * (b - a))

    made_up = MadeUp(bowl)
    found = maximise(made_up, np.zeros(2), 100)
    assert "left" not in found.outcome
    assert made_up.calls < 2 * len(found.history)


def test_search_that_starts_at_a_maximum_does_not_move():
    found = maximise(MadeUp(lambda a: (-(a**2), (-2 * a,))), np.zeros(1), 100)
    assert found.converged
    assert found.best.theta == 0.0
    assert "left" not in found.outcome


@pytest.mark.parametrize("search", ["L-BFGS", "sweeps"])
def test_start_with_an_undefined_log_posterior_is_replaced(search):
    def without_zero(a, b):
        value, slopes = magnitude(a, b)
        return (value, slopes) if a else (np.nan, (np.nan, np.nan))

    if search == "L-BFGS":
        found = maximise(MadeUp(without_zero), np.zeros(2), 100)
    else:
        found = alternate_updates(MadeUp(without_zero), np.zeros(2), 400, lambda history: None, SignedSteps(), 1e-8)
    assert "having replaced the start, at which the log posterior is undefined" in found.outcome
    assert_allclose(found.best.theta, (2.0, 1.0), atol=1e-2)


@pytest.mark.parametrize("search", ["L-BFGS", "sweeps"])
@pytest.mark.parametrize(("only_here", "says"), [(False, "Another start does not help"), (True, "")])
def test_error_names_a_slope_that_is_not_finite(search, only_here, says):
    def rooted(a, b):
        return -(a**2) - b**2, (-2 * a, np.nan if b == 0.0 or not only_here else -2 * b)

    here = MadeUp(rooted), np.array([1.0, 0.0]), 20
    begin = {
        "L-BFGS": lambda: maximise(*here),
        "sweeps": lambda: alternate_updates(*here, lambda history: None, SignedSteps(), 1e-8),
    }[search]
    with pytest.raises(ValueError, match="its derivatives with respect to theta are not finite there") as error:
        begin()
    assert says in str(error.value)
    assert ("Another start" in str(error.value)) != only_here
    assert "sqrt(squared + 1e-12)" in str(error.value)


def test_error_names_the_reason_if_all_points_fail():
    made_up = MadeUp(lambda a: (np.nan, (np.nan,)))
    with pytest.raises(ValueError, match="Check the covariance function, and the covariance matrices"):
        maximise(made_up, np.zeros(1), 20)


def test_interrupt_during_the_escape_from_a_saddle_keeps_the_saddle():
    class Interrupted(MadeUp):
        def __call__(self, theta, start=None):
            if theta[0] != 0.0:
                raise KeyboardInterrupt
            return super().__call__(theta, start)

    found = maximise(Interrupted(magnitude), np.zeros(2), 100)
    assert found.interrupted
    assert not found.converged
    assert_allclose(found.best.theta, (0.0, 1.0), atol=1e-3)


def test_search_without_hyperparameters_has_no_extra_evaluations():
    """The search learns inducing inputs alone."""
    made_up = MadeUp(magnitude)
    assert higher_nearby(made_up, [made_up(np.zeros(2))], 0) is None
    assert made_up.calls == 1


def test_limit_on_iterations_includes_the_escape_from_a_saddle():
    found = maximise(MadeUp(fourth_power), np.zeros(2), 4)
    assert not found.converged
    assert LEFT in found.outcome
    assert len(found.history) <= 6
