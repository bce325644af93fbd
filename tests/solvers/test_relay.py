"""Solvers that compiled code calls."""

import time

import numba
import numpy as np
import pytest

from pymc_gpep.evidence.evidence import REFUSED, external
from pymc_gpep.kernels.status import CONVERGED, NOT_FINITE, OUT_OF_MEMORY
from pymc_gpep.solvers.problem import Outcome

C, N, P, SIZE = 3, 4, 2, 5


def outcome(status=CONVERGED, value=7.0):
    array = np.full((C, N), value)
    return Outcome(value, np.full((1, N, N), value), array, array, array, np.zeros((N, C, C)), array,
                   np.full(SIZE, value), np.zeros((6, 2)), status, 0, np.full((P, N), value))  # fmt: skip


def call(name, solve, labels=None, observed_axes=1):
    """Results of a solver in compiled code: evidence, derivatives, sites, status and iterations."""
    function = external(name, solve, observed_axes=observed_axes)

    @numba.njit
    def compiled(k, mean, labels, sites, parameters):
        evidence, gradient, gradient_mean = np.zeros(1), np.zeros_like(k), np.zeros_like(mean)
        gradient_parameters = np.zeros_like(parameters)
        ended = np.zeros(2, np.int64)
        c, n = mean.shape
        function(
            len(k), c, n, k.shape[2], len(parameters), k.ctypes, mean.ctypes, labels.ctypes, parameters.ctypes,
            sites.ctypes, sites.size, 3.0,
            evidence.ctypes, gradient.ctypes, gradient_mean.ctypes, gradient_parameters.ctypes, ended.ctypes,
        )  # fmt: skip
        return evidence[0], gradient, gradient_mean, sites, gradient_parameters, ended

    k, mean, parameters = np.arange(16.0).reshape(1, N, N), np.ones((C, N)), np.full((P, N), 2.0)
    return compiled(k, mean, np.arange(N) if labels is None else labels, np.arange(5.0), parameters)


def test_solver_receives_the_arrays_and_its_results_are_returned():
    seen = {}

    def solve(k, mean, labels, start, looseness, parameters, gradient):
        seen.update(k=k.copy(), mean=mean.copy(), labels=labels.copy(), start=start.copy(), gradient=gradient)
        seen.update(looseness=looseness, parameters=parameters.copy())
        return outcome()

    evidence, gradient, gradient_mean, sites, gradient_parameters, ended = call("arrays", solve)
    assert (seen["looseness"], seen["parameters"].tolist()) == (3.0, [[2.0] * N] * P)
    assert (gradient_parameters == 7.0).all()
    assert (seen["k"] == np.arange(16.0).reshape(1, N, N)).all()
    assert (seen["mean"] == 1.0).all()
    assert (seen["labels"] == np.arange(N)).all()
    assert (seen["start"] == np.arange(5.0)).all()
    assert seen["gradient"] is True
    assert evidence == 7.0
    assert (gradient == 7.0).all()
    assert (gradient_mean == 7.0).all()
    assert (sites == 7.0).all()
    assert tuple(ended) == (CONVERGED, 6)


def test_votes_have_an_axis_for_classes():
    seen, votes = {}, np.arange(N * C).reshape(N, C)

    def solve(k, mean, labels, *_, gradient):
        seen.update(labels=labels.copy())
        return outcome()

    assert call("votes", solve, votes, observed_axes=2)[0] == 7.0
    assert seen["labels"].tolist() == votes.tolist()


def test_failure_returns_nan_and_a_status():
    evidence, gradient, gradient_mean, sites, gradient_parameters, ended = call(
        "failure", lambda *_, gradient: outcome(NOT_FINITE)
    )
    assert np.isnan([evidence, *gradient.ravel(), *gradient_mean.ravel(), *gradient_parameters.ravel()]).all()
    assert (sites == 7.0).all()
    assert tuple(ended) == (NOT_FINITE, 6)


def test_refused_problem_returns_nan_and_a_status():
    def refuse(*_, gradient):
        raise ValueError("start is too short")

    evidence, gradient, gradient_mean, sites, gradient_parameters, ended = call("refusal", refuse)
    assert np.isnan([evidence, *gradient.ravel(), *gradient_mean.ravel(), *gradient_parameters.ravel()]).all()
    assert (sites == np.arange(5.0)).all()
    assert tuple(ended) == (REFUSED, 0)


def test_interrupt_is_raised_after_compiled_code_returns():
    def interrupted(*_, gradient):
        raise KeyboardInterrupt

    returned = []
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012  in the middle of waiting
        returned.append(call("interrupt", interrupted))
        for _ in range(1000):
            time.sleep(0.01)
    evidence, *_, ended = returned[0]
    assert np.isnan(evidence)
    assert ended[0] == OUT_OF_MEMORY


def test_solver_is_registered_once():
    def solve(*_, gradient):
        return outcome()

    assert external("once", solve).symbol == external("once", solve).symbol
    assert external("once", solve).symbol != external("twice", solve).symbol
