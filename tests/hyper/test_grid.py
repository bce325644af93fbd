"""Integration on a grid of hyperparameters, if the log posterior differs from a normal density."""

from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.integrate import quad

from pymc_gpep.hyper import hyper_method
from pymc_gpep.hyper.optimum import Optimum
from pymc_gpep.kernels.status import CONVERGED, OUT_OF_ITERATIONS
from pymc_gpep.log_posteriors.evaluation import Evaluation
from tests.hyper import given_density


class Given:
    """Log posterior of one hyperparameter, computed by a given function. The approximation fails if it returns NaN."""

    entries, kept, joint = 1, 1, True
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


def test_nodes_above_the_search_maximum_are_weighted_and_reported():
    """The second mode is so high that its density relative to the first mode overflows."""
    two = Given(lambda x: np.logaddexp(normal(x), 800.0 + 200.0 * normal(x - 4.5)))
    found = two.integrated()
    assert_allclose(found.weights @ found.theta, 4.5, atol=0.01)
    assert not found.converged
    assert "is 800 above the maximum that the search found" in found.message


def test_nodes_are_denser_if_the_density_is_narrower_than_the_gaussian():
    def steep(x):
        return normal(x) - 3.0 * np.abs(x) ** 3

    found = Given(steep).integrated()
    moments = [quad(lambda x, power=power: x**power * np.exp(steep(x)), -5, 5)[0] for power in (0, 2)]
    assert found.converged
    assert found.log_evidence == pytest.approx(np.log(moments[0]), abs=0.01)
    assert found.weights @ found.theta[:, 0] ** 2 == pytest.approx(moments[1] / moments[0], rel=0.06)


def test_one_failed_node_does_not_end_the_grid():
    """The approximation fails at the node one step from the maximum."""
    gap = Given(lambda x: np.nan if 1.3 < x < 1.7 else normal(x)).integrated()
    whole = Given(normal).integrated()
    assert len(gap) == len(whole) - 1
    assert "the approximation failed at 1 of" in gap.message
    assert not gap.converged


def test_grid_ends_where_the_approximation_fails():
    found = Given(lambda x: np.nan if x > 1.3 else normal(x)).integrated()
    assert found.theta.max() < 1.3
    assert "the approximation failed at 3 of 11 points" in found.message


def test_unfinished_tail_of_a_grid_is_reported():
    def heavy(x):
        return -0.55 * np.log1p(x**2)

    found = Given(heavy).integrated()
    assert not found.converged
    assert "not negligible 20 steps from the maximum" in found.message


def test_long_tail_within_the_grid_is_integrated():
    def tail(x):
        return -0.5 * x**2 if x > 0 else -np.log(np.cosh(x))

    found = Given(tail).integrated()
    whole = quad(lambda x: np.exp(tail(x)), -40, 0)[0] + quad(lambda x: np.exp(tail(x)), 0, 40)[0]
    assert found.converged
    assert found.log_evidence == pytest.approx(np.log(whole), abs=0.01)


@pytest.mark.variation(but=["1"])
@pytest.mark.parametrize("seed", [1, 3])
def test_draws_of_steep_scales_match_a_fine_grid(seed):
    """Scales of a random walk, a season and noise. Interpolation between nodes gave false modes or thin tails here."""
    rng, t = np.random.default_rng(seed), np.arange(24)
    y = np.cumsum(0.3 * rng.normal(size=24)) + 0.2 * rng.normal(size=4)[t % 4] + 0.5 * rng.normal(size=24)
    walk, season = np.minimum.outer(t, t) * 1.0, (t[:, None] % 4 == t % 4) * 1.0

    def log_density(a, b, c):
        """Log posterior (k,) for two log scales and k log noises c. The priors are half-normal with scale 1."""
        values, vectors = np.linalg.eigh(np.exp(2 * a) * walk + np.exp(2 * b) * season + 4.0)
        variance = values[:, None] + np.exp(2 * c)
        rows = -0.5 * ((vectors.T @ y) ** 2)[:, None] / variance - 0.5 * np.log(variance)
        return rows.sum(axis=0) + sum(x - 0.5 * np.exp(2 * x) for x in (a, b, c))

    model = given_density.Given(lambda x: log_density(x[0], x[1], x[2:])[0], ["a", "b", "c"])
    found = model.integrated(method="grid")
    ends = [np.linspace(-8.0, 1.2, 51), np.linspace(-8.0, 1.3, 51), np.linspace(-4.5, 0.6, 41)]
    centres = [0.5 * (each[1:] + each[:-1]) for each in ends]
    logs = np.array([[log_density(a, b, centres[2]) for b in centres[1]] for a in centres[0]])
    p = np.exp(logs - logs.max())
    levels = np.array([0.025, 0.25, 0.5, 0.75, 0.975])
    for axis in range(3):
        own = p.sum(axis=tuple(set(range(3)) - {axis}))
        own /= own.sum()
        exact = np.exp(np.interp(levels, np.concatenate([[0.0], np.cumsum(own)]), ends[axis]))
        mean = own @ np.exp(centres[axis])
        sd = np.sqrt(own @ (np.exp(centres[axis]) - mean) ** 2)
        draws = np.exp(found.density[:, axis])
        assert_allclose((np.quantile(draws, levels) - exact) / sd, 0.0, atol=0.2 if seed == 1 else 0.5)
        assert draws.std() == pytest.approx(sd, rel=0.15)
