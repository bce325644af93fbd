"""Searches on log posteriors that are unbounded, and on log posteriors with a narrow maximum."""

import numpy as np
import pytest

from pymc_gpep.hyper.ascent import STUCK, UNBOUNDED
from pymc_gpep.hyper.optimum import maximise
from pymc_gpep.kernels.status import CONVERGED
from pymc_gpep.log_posteriors.evaluation import Evaluation


class Funnel:
    """Log posterior of normal variables x and of their log scale t, with data on x.

    The log posterior is −½ Σ x² e⁻²ᵗ − q t − ½ Σ (x − data)² − ½ t² / 100 − held e⁻²ᵗ. With `held` > 0 the log
    posterior has a maximum, at which the scale is at least √held.
    """

    name = "funnel"

    def __init__(self, data, held=0.0):
        self.data, self.held = np.asarray(data, dtype=np.float64), held

    def loosely(self):
        return self

    roughly = loosely

    def point(self, theta):
        return {"theta": theta}

    def __call__(self, theta, start=None):
        t, x = theta[0], theta[1:]
        with np.errstate(over="ignore"):
            precision = np.exp(-2.0 * t)
            inner = 0.5 * float(x @ x) + self.held
            value = -inner * precision - x.size * t - 0.5 * float(np.square(x - self.data).sum()) - 0.005 * t * t
            slope_t = 2.0 * inner * precision - x.size - 0.01 * t
            slope = np.append(slope_t, -x * precision - (x - self.data))
        return Evaluation(theta, float(value), slope, float(value), 1, CONVERGED, np.zeros(1))


DATA = np.random.default_rng(1).normal(size=12)


@pytest.mark.parametrize("size", [2, 5, 12])
@pytest.mark.parametrize("begin", [0.0, 0.5])
def test_search_of_an_unbounded_density_ends_early(size, begin):
    found = maximise(Funnel(DATA[:size]), np.append(0.0, np.full(size, begin)), 10_000)
    assert not found.converged
    assert found.message in (UNBOUNDED, STUCK)
    assert len(found.history) < 110


@pytest.mark.parametrize("held", [1e-4, 1e-8, 1e-12])
def test_search_of_a_narrow_maximum_converges(held):
    """At the maximum x ≈ 0, and 2 held e⁻²ᵗ = q + t / 100 for x of length q."""
    size = 4
    found = maximise(Funnel(DATA[:size], held), np.append(0.0, np.full(size, 0.5)), 10_000)
    assert found.converged
    t = 0.5 * np.log(2.0 * held / size)
    for _ in range(50):
        t = 0.5 * np.log(2.0 * held / (size + 0.01 * t))
    assert found.best.theta[0] == pytest.approx(t, abs=1e-3 + 10 * held**0.5)
