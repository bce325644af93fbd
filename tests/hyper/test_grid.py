"""The grid of hyperparameters where its log posterior is not what a search promises."""

from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.integrate import quad

from pymc_gpep.hyper import hyper_method
from pymc_gpep.hyper.optimum import Optimum
from pymc_gpep.kernels.status import CONVERGED, OUT_OF_ITERATIONS
from pymc_gpep.log_posteriors.evaluation import Evaluation


class Given:
    """A log posterior of one hyperparameter by a function; the approximation fails where that is NaN."""

    entries, joint = 1, True
    approximator = SimpleNamespace()

    def __init__(self, function):
        self._function = function

    def loosely(self, gradients=True):
        return self

    weighing = loosely

    def each(self, function, items):
        return [function(item) for item in items]

    def point(self, theta):
        return {"s_log__": theta}

    def __call__(self, theta, start=None):
        (x,) = theta
        value = float(self._function(x))
        slope = (self._function(x + 1e-4) - self._function(x - 1e-4)) / 2e-4
        status = OUT_OF_ITERATIONS if np.isnan(value) else CONVERGED
        return Evaluation(np.array(theta), value, np.array([slope]), value, 1, status, np.zeros(1))

    def integrated(self, at=0.0):
        return hyper_method("grid").integrate(self, Optimum(self(np.array([at])), True, "", ()))


def normal(x):
    return -0.5 * x**2


def test_nodes_far_above_the_maximum_of_the_search_are_weighed_and_said():
    """A second mode, so high that its density beside the first overflows."""
    two = Given(lambda x: np.logaddexp(normal(x), 800.0 + 200.0 * normal(x - 4.5)))
    found = two.integrated()
    assert_allclose(found.weights @ found.theta, 4.5, atol=0.01)
    assert not found.converged
    assert "is 800 above the maximum that the search found" in found.message


def test_nodes_come_closer_where_the_density_is_narrower_than_the_gaussian():
    def steep(x):
        return normal(x) - 3.0 * np.abs(x) ** 3

    found = Given(steep).integrated()
    moments = [quad(lambda x, power=power: x**power * np.exp(steep(x)), -5, 5)[0] for power in (0, 2)]
    assert found.converged
    assert found.log_evidence == pytest.approx(np.log(moments[0]), abs=0.01)
    assert found.weights @ found.theta[:, 0] ** 2 == pytest.approx(moments[1] / moments[0], rel=0.06)


def test_one_failure_does_not_end_the_grid():
    """The node one step from the maximum fails."""
    gap = Given(lambda x: np.nan if 1.3 < x < 1.7 else normal(x)).integrated()
    whole = Given(normal).integrated()
    assert len(gap) == len(whole) - 1
    assert "the approximation failed at 1 of" in gap.message
    assert not gap.converged


def test_a_wall_of_failures_ends_the_grid():
    found = Given(lambda x: np.nan if x > 1.3 else normal(x)).integrated()
    assert found.theta.max() < 1.3
    assert "the approximation failed at 3 of 11 points" in found.message


def test_a_tail_that_the_grid_does_not_end_is_said():
    def heavy(x):
        return -0.55 * np.log1p(x**2)

    found = Given(heavy).integrated()
    assert not found.converged
    assert "not negligible 20 steps from the maximum" in found.message


def test_a_long_tail_that_the_grid_ends_has_its_integral():
    def tail(x):
        return -0.5 * x**2 if x > 0 else -np.log(np.cosh(x))

    found = Given(tail).integrated()
    whole = quad(lambda x: np.exp(tail(x)), -40, 0)[0] + quad(lambda x: np.exp(tail(x)), 0, 40)[0]
    assert found.converged
    assert found.log_evidence == pytest.approx(np.log(whole), abs=0.01)
