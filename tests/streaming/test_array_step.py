"""Steps in NumPy: stored results of another implementation, interrupts, and single precision."""

import os
import signal
from contextlib import nullcontext

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.solvers.step_arrays import StepArrays
from pymc_gpep.streaming.memories import Stateless, Variational
from tests import models
from tests.streaming.problems import small
from tests.streaming.steps import STEPS, kept, matern, numbers, own_covariances, problem_of


@pytest.mark.variation(
    but=[
        "stateless, pairwise",
        "sites, pairwise",
        "stateless, bernoulli_probit",
        "two that share another covariance",
        "own covariances with noise",
    ]
)
@pytest.mark.parametrize("name", STEPS)
def test_step_matches_stored_results_of_the_graph(name):
    problem, tolerance = problem_of(name), STEPS[name][3]
    found, expected = numbers(problem, problem.step(0.02)), kept()[name]
    assert found.keys() == expected.keys()
    for each, values in expected.items():
        assert_allclose(found[each], values, rtol=tolerance, atol=tolerance * np.abs(values).max(), err_msg=each)


def test_failed_step_does_not_change_the_state():
    problem = small(models.shared, Stateless(), "pairwise", 30, together=True)
    step = problem.step(0.02)
    before, after = problem.refused(step)
    assert all(np.array_equal(after[name], before[name]) for name in before)
    batch = problem.all_rows()
    assert step(*batch, 0.5, True).went_well
    assert not np.array_equal(problem.state.values()["theta"], before["theta"])


def test_interrupt_waits_for_the_end_of_a_step(monkeypatch):
    states, with_sites = [], StepArrays.with_sites
    for interrupts in (False, True):
        problem = small(models.fixed, Stateless(), "pairwise", 30, together=True)
        step = problem.step(0.02)
        if interrupts:
            monkeypatch.setattr(
                StepArrays, "with_sites", lambda *given: (os.kill(os.getpid(), signal.SIGINT), with_sites(*given))[1]
            )
        with pytest.raises(KeyboardInterrupt) if interrupts else nullcontext():
            step(*problem.all_rows(), 0.5, True)
        states.append(problem.state.values())
    whole, interrupted = states
    assert all(np.array_equal(whole[name], interrupted[name]) for name in whole)


@pytest.mark.parametrize("build", [models.shared, own_covariances(matern, matern, matern)], ids=["shared", "own"])
def test_fit_in_single_precision_equals_fit_in_double_precision(build):
    found = []
    for single in (False, True):
        problem = small(build, Stateless(), "pairwise", 13, together=build is models.shared)
        step = problem.step(0.02, single)
        batches = problem.batches.after(0)
        values = [step(*next(batches), 0.3, True).log_posterior for _ in range(6)]
        found.append(problem.state.values() | {"log posterior": np.array(values)})
    double, narrow = found
    assert not np.array_equal(double["precision"], narrow["precision"])
    for name, expected in double.items():
        assert_allclose(narrow[name], expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max(), err_msg=name)


def test_steps_of_a_bound_use_double_precision(monkeypatch):
    """For large magnitudes the rounding errors of single precision accumulate."""
    monkeypatch.setattr("pymc_gpep.streaming.step._MANY", 1)
    bits = []
    for memory in (Stateless(), Variational()):
        problem = small(models.fixed, memory, "pairwise", 30, together=True)
        step = problem.step(0.02)
        bits.append(step.arrays.single)
    assert bits == [True, False]
