"""Evaluations that start from stored solutions of earlier evaluations."""

import threading

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.approximations import NestedEP
from pymc_gpep.evidence import evidence as recent_solves
from pymc_gpep.evidence.evidence import Evidence, RecentSolves, place_of
from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.kernels.status import CONVERGED
from tests.reference.data import iris, squared_exponential

X, LABELS = (values[::3] for values in iris())
C, N = 3, LABELS.size
MEAN, COLD = np.zeros((C, N)), np.zeros(2 * N * (C - 1))
PATH = [np.array([2.0, 0.5]) + 0.3 * np.array([np.sin(t), np.cos(2 * t)]) for t in range(8)]


def covariance(place):
    variance, lengthscale = np.exp(place)
    return (squared_exponential(X, variance=variance, lengthscale=lengthscale) + 1e-6 * np.eye(N))[None]


@pytest.fixture
def recent(monkeypatch):
    """Clear the stored solutions before and after the test."""
    recent = RecentSolves()
    monkeypatch.setattr("pymc_gpep.evidence.evidence._recent", recent)
    return recent


def evaluate(op, place, labels=LABELS):
    evidence, gradient, _, _, status, iterations, _ = op.evaluate(covariance(place), MEAN, labels, COLD)
    assert status == CONVERGED
    return evidence, gradient, iterations


def test_warm_start_changes_sweep_count_but_not_values(recent):
    op, cold = (Evidence(NestedEP(), remembers=remembers) for remembers in (True, False))
    found, expected = ([evaluate(each, place) for place in PATH] for each in (op, cold))
    assert_allclose([value for value, *_ in found], [value for value, *_ in expected], atol=1e-9)
    for (_, gradient, _), (_, wanted, _) in zip(found, expected, strict=True):
        assert_allclose(gradient, wanted, atol=1e-5 * np.abs(wanted).max())
    assert found[0][2] == expected[0][2]
    assert sum(sweeps for *_, sweeps in found[4:]) < 0.7 * sum(sweeps for *_, sweeps in expected[4:])


def test_solves_with_other_labels_are_not_reused(recent):
    op = Evidence(NestedEP(), remembers=True)
    first = evaluate(op, PATH[0])
    assert (
        evaluate(op, PATH[0], labels=LABELS[::-1].copy())[2]
        == evaluate(Evidence(NestedEP()), PATH[0], LABELS[::-1].copy())[2]
    )
    assert evaluate(op, PATH[0])[2] <= 2 < first[2]


def test_recent_solves_are_separate_for_threads_and_processes(recent, monkeypatch):
    op = Evidence(NestedEP(), remembers=True)
    sweeps = [evaluate(op, PATH[0])[2]]
    thread = threading.Thread(target=lambda: sweeps.append(evaluate(op, PATH[0])[2]))
    thread.start()
    thread.join()
    monkeypatch.setattr(recent_solves.os, "getpid", lambda: -1)
    sweeps.append(evaluate(op, PATH[0])[2])
    assert sweeps == 3 * sweeps[:1]


def test_failed_warm_start_is_followed_by_a_cold_start(recent):
    op = Evidence(NestedEP(), remembers=True)
    k = covariance(PATH[0])
    recent.add((op, k.shape, LABELS.tobytes()), place_of(DensePrior(k, MEAN), MEAN), np.full(COLD.size, np.nan))
    assert evaluate(op, PATH[0])[0] == evaluate(Evidence(NestedEP()), PATH[0])[0]


def test_number_of_stored_solutions_is_limited():
    recent = RecentSolves()
    for problem in range(40):
        recent.add(problem, np.zeros(1), np.zeros(2))
    assert recent.near(0) is None
    assert recent.near(39) is not None


def test_distance_of_solves_follows_log_hyperparameters():
    here = place_of(DensePrior(covariance(PATH[0]), MEAN), MEAN)
    for step in np.eye(2):
        distance = np.linalg.norm(place_of(DensePrior(covariance(PATH[0] + 0.1 * step), MEAN), MEAN) - here)
        assert 0.02 < distance < 0.2
    moved = place_of(DensePrior(covariance(PATH[0]), MEAN), MEAN + 0.1 * np.exp(1.0 + 0.15 * np.cos(0)))
    assert 0.02 < np.linalg.norm(moved - here) < 0.5
