"""Searches on artificial log posteriors: first solves that fail, rough evaluations, and units of the parameters."""

from types import SimpleNamespace

import numpy as np
import pytest

from pymc_gpep.hyper.ascent import is_close
from pymc_gpep.hyper.optimum import maximise
from pymc_gpep.kernels.status import (
    CONVERGED,
    NOT_CONCAVE,
    NOT_FINITE,
    NOT_POSITIVE_DEFINITE,
    OUT_OF_ITERATIONS,
    OUT_OF_MEMORY,
)
from pymc_gpep.log_posteriors.evaluation import Evaluation
from pymc_gpep.log_posteriors.quasi_newton import Curvature, line_search


class Parabola:
    """Log posterior −(θ − 2)². A solve converges after `needs` warm starts."""

    name = "parabola"

    def __init__(self, needs):
        self._needs = needs

    def loosely(self):
        return self

    def roughly(self):
        return self

    def point(self, theta):
        return {"theta": theta}

    def check_moments(self, theta):
        pass

    def __call__(self, theta, start=None):
        done = 0.0 if start is None else float(np.max(getattr(start, "starts", (start,))[0])) + 1.0
        there = done >= self._needs
        gradient = -2.0 * (theta - 2.0) if there else np.full(theta.size, np.nan)
        status = CONVERGED if there else OUT_OF_ITERATIONS
        value = -float(((theta - 2.0) ** 2).sum())
        return Evaluation(theta, value, gradient, value, 1, status, np.array([done]))


@pytest.mark.parametrize("needs", [0, 1])
def test_first_solve_that_fails_is_repeated(needs):
    optimum = maximise(Parabola(needs), np.zeros(2), 20)
    assert optimum.converged
    assert len(optimum.history) > 1
    np.testing.assert_allclose(optimum.best.theta, 2.0, atol=1e-4)


def test_start_without_a_slope_raises_value_error():
    with pytest.raises(ValueError, match=r"parabola cannot start: it .*Increase max_iterations"):
        maximise(Parabola(9), np.zeros(2), 20)


class TooLarge(Parabola):
    """Memory is never sufficient."""

    def __call__(self, theta, start=None):
        return super().__call__(theta, start)._replace(status=OUT_OF_MEMORY)


def test_start_without_memory_raises_memory_error():
    with pytest.raises(MemoryError, match=r"parabola ran out of memory .*fewer rows"):
        maximise(TooLarge(9), np.zeros(2), 20)


class Overflowing(Parabola):
    """The log posterior is never finite."""

    classifier = SimpleNamespace(prior=SimpleNamespace(integrated=(), processes=()))

    def __call__(self, theta, start=None):
        return super().__call__(theta, start)._replace(status=NOT_FINITE, log_posterior=np.nan)


@pytest.mark.parametrize("size", [0, 2])
def test_error_for_overflow_advises_another_start_if_hyperparameters_exist(size):
    with pytest.raises(ValueError, match=r"not finite at the .* Check the magnitudes of the covariance") as error:
        maximise(Overflowing(0), np.zeros(size), 20)
    assert ("start=" in str(error.value)) == (size > 0)
    assert ("hyperparameters" in str(error.value)) == (size > 0)


class NotConcave(Parabola):
    """A parabola whose likelihood has no mode for Laplace's method."""

    def __call__(self, theta, start=None):
        return super().__call__(theta, start)._replace(status=NOT_CONCAVE, log_posterior=np.nan)


@pytest.mark.parametrize("size", [0, 2])
def test_error_for_a_non_concave_likelihood_names_another_method(size):
    with pytest.raises(ValueError, match=r"not concave at the mode.* Take method='ep'") as error:
        maximise(NotConcave(0), np.zeros(size), 20)
    assert ("start=" in str(error.value)) == (size > 0)


class Indefinite(Parabola):
    """The covariance is indefinite. Only the final evaluation checks this."""

    def loosely(self):
        return Parabola(0)

    def __call__(self, theta, start=None):
        return super().__call__(theta, start)._replace(status=NOT_POSITIVE_DEFINITE)


def test_stopped_search_does_not_restart():
    seen = []

    def stop(history):
        seen.append(len(history))
        if len(seen) == 1:
            raise StopIteration("enough")

    optimum = maximise(Indefinite(0), np.zeros(2), 20, stop)
    assert (seen, optimum.message) == ([2], "enough")


class Valley:
    """A long quadratic valley −½ xᵀHx. Rough evaluations are too high by `error`."""

    name = "valley"
    curvature = np.array([[400.0, 30.0], [30.0, 4.0]])

    def __init__(self, error=0.0):
        self.error = error
        self.seen = []

    def loosely(self):
        return self

    def roughly(self):
        return Rough(self)

    def point(self, theta):
        return {"theta": theta}

    def check_moments(self, theta):
        pass

    def evaluated(self, theta, rough):
        self.seen.append(rough)
        slope = -self.curvature @ theta
        value = 0.5 * theta @ slope + (self.error if rough else 0.0)
        return Evaluation(theta, value, slope, value, 1, CONVERGED, np.zeros(1))

    def __call__(self, theta, start=None):
        return self.evaluated(theta, False)


class Rough(Valley):
    """Rough evaluation of a valley."""

    def __init__(self, whole):
        self.whole = whole

    def __call__(self, theta, start=None):
        return self.whole.evaluated(theta, True)


@pytest.mark.parametrize("error", [0.0, 1e-3, 0.3])
def test_search_with_rough_evaluations_ends_at_the_maximum(error):
    valley = Valley(error)
    found = maximise(valley, np.array([3.0, -2.0]), 100)
    assert found.converged
    assert valley.seen[0]
    assert not valley.seen[-1]
    np.testing.assert_allclose(found.best.theta, 0.0, atol=1e-3)
    assert found.best.log_posterior == pytest.approx(0.0, abs=1e-6)


def test_units_from_the_curvature_of_a_search_shorten_the_next_search():
    valley = Valley()
    found = maximise(valley, np.array([3.0, -2.0]), 100)
    np.testing.assert_allclose(found.units.T @ valley.curvature @ found.units, np.eye(2), atol=0.2)
    again = maximise(valley, np.array([1.0, 1.0]), 100, units=found.units)
    assert again.converged
    assert len(again.history) < len(maximise(valley, np.array([1.0, 1.0]), 100).history)
    np.testing.assert_allclose(again.best.theta, 0.0, atol=1e-3)
    assert maximise(valley, np.zeros(2), 100).units is None


@pytest.mark.parametrize("units", [np.diag([1e-4, 1e-4]), np.diag([1e3, 1e-3]), np.array([[0.0, 1e-3], [1.0, 0.0]])])
def test_search_with_units_of_another_search_reaches_the_maximum(units):
    found = maximise(Valley(), np.array([3.0, -2.0]), 200, units=units)
    assert found.converged
    np.testing.assert_allclose(found.best.theta, 0.0, atol=1e-2)


@pytest.mark.parametrize("limit", range(1, 7))
def test_search_stopped_early_evaluates_its_highest_point_accurately(limit):
    valley = Valley(1e-4)
    found = maximise(valley, np.array([3.0, -2.0]), limit)
    exact = Valley()
    highest = max(exact(each.theta).log_posterior for each in found.history)
    assert found.best.log_posterior == pytest.approx(highest, abs=1e-9)


class Skewed:
    """Log density of a smooth hill with its maximum at `at`. The coordinates of `turn` @ (θ − at) are uncorrelated."""

    name = "skewed"

    def __init__(self, turn, at):
        self.turn, self.at, self.count = turn, at, 0

    def loosely(self):
        return self

    roughly = loosely

    def point(self, theta):
        return {"theta": theta}

    def __call__(self, theta, start=None):
        self.count += 1
        moved = self.turn @ (theta - self.at)
        value = float(-np.logaddexp(moved, -moved).sum() - 0.5 * moved @ moved)
        return Evaluation(theta, value, -self.turn.T @ (np.tanh(moved) + moved), value, 1, CONVERGED, np.zeros(1))

    def curvature(self, here):
        return Curvature(np.ones(here.theta.size, dtype=bool), 2.0 * self.turn.T @ self.turn)


UNITS = {
    "plain": np.eye(3),
    "small": 1e4 * np.eye(3),
    "large": 1e-4 * np.eye(3),
    "raw covariates": np.array([[1.0, 8000.0, 50.0], [0.0, 100.0, 3.0], [0.0, 0.0, 10.0]]),
}


@pytest.mark.parametrize("turn", UNITS.values(), ids=UNITS)
def test_search_from_given_curvatures_does_not_depend_on_units(turn):
    at = np.linalg.solve(turn, np.array([1.5, -0.7, 0.4]))
    hill = Skewed(turn, at)
    found = maximise(hill, np.zeros(3), 50, curvature=hill.curvature)
    assert found.converged
    assert found.decrement < 1e-6
    assert hill.count < 20
    np.testing.assert_allclose(turn @ (found.best.theta - at), 0.0, atol=1e-3)
    np.testing.assert_allclose(found.deviations, np.sqrt(np.linalg.inv(2.0 * turn.T @ turn).diagonal()), rtol=0.3)


@pytest.mark.parametrize("turn", [UNITS["plain"], np.diag([30.0, 1.0, 0.1])], ids=["plain", "unequal"])
def test_search_without_given_curvatures_finds_units_by_its_steps(turn):
    at = np.linalg.solve(turn, np.array([1.5, -0.7, 0.4]))
    found = maximise(Skewed(turn, at), np.zeros(3), 200)
    assert found.converged
    np.testing.assert_allclose(turn @ (found.best.theta - at), 0.0, atol=1e-2)


def test_slope_is_negligible_in_units_of_the_standard_deviation():
    """The slope 0.9 with standard deviation 0.01 is negligible. The slope 0.05 with standard deviation 50 is not."""
    assert is_close(0.5 * 0.9**2 * 0.01**2, 1)
    assert not is_close(0.5 * 0.05**2 * 50.0**2, 1)


@pytest.mark.parametrize(
    ("height", "begin"),
    [(lambda t: -((t - 40.0) ** 2), 0.0), (lambda t: -((t - 0.03) ** 2), 0.0), (lambda t: np.log(t) - t, 0.01)],
    ids=["far", "near", "wall"],
)
def test_line_search_raises_the_value_and_reduces_the_slope(height, begin):
    def slope(at):
        return (height(at + 1e-6) - height(at - 1e-6)) / 2e-6

    def look(part):
        with np.errstate(invalid="ignore"):
            return height(begin + part * first) - height(begin), slope(begin + part * first) * first

    first = slope(begin)
    part = line_search(look, first**2)
    rise, there = look(part)
    assert rise > 1e-3 * part * first**2
    assert there < 0.9 * first**2
