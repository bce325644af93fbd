"""Evaluations on several threads return the same digits as on one thread."""

import threading
import time

import numpy as np
import pytest

from pymc_gpep.hyper import hyper_method
from pymc_gpep.solvers import team


@pytest.fixture
def fit(shared):
    return shared.fit


@pytest.mark.variation(but=["ccd-options0"])
@pytest.mark.parametrize(("kind", "options"), [("ccd", {}), ("importance", {"draws": 100})])
def test_nodes_do_not_depend_on_the_number_of_threads(fit, threads, kind, options):
    found = []
    for count in (1, 3):
        threads(count)
        found.append(hyper_method(kind, options).integrate(fit.log_posterior, fit.trace))
    one, three = found
    assert len(one) > 8
    np.testing.assert_array_equal(one.weights, three.weights)
    np.testing.assert_array_equal(one.theta, three.theta)
    for a, b in zip(one.nodes, three.nodes, strict=True):
        assert a.evidence == b.evidence
        np.testing.assert_array_equal(a.start, b.start)


def test_threads_evaluate_at_the_same_time(fit, threads):
    """Each of two evaluations ends only after the other evaluation has started."""
    threads(2)
    meeting = threading.Barrier(2, timeout=10)
    theta = fit.trace.best.theta

    def meet(step):
        meeting.wait()
        return threading.get_ident(), fit.log_posterior(theta + step).log_posterior

    (first, _), (second, _) = met = fit.log_posterior.each(meet, [0.0, 0.1])
    assert first != second
    assert [value for _, value in met] == [fit.log_posterior(theta + step).log_posterior for step in (0.0, 0.1)]


def test_parallel_solves_share_the_threads(threads):
    """Both calls measure their team of threads while both run. The last call measures its team again at the end."""
    threads(5)
    begun, looked = threading.Barrier(2, timeout=10), threading.Barrier(2, timeout=10)

    def sizes(item):
        begun.wait()
        early = team.gather(1000).size
        looked.wait()
        if item:
            return early, None
        deadline = time.monotonic() + 10
        while team.gather(1000).size == early and time.monotonic() < deadline:
            time.sleep(0.01)
        return early, team.gather(1000).size

    with team.one_blas_thread(), team.gather_for_solves(3, 300) as together:
        assert together.size == 5
        assert together.each(sizes, [0, 1]) == [(2, 5), (2, None)]
        assert together.each(lambda n: team.gather(n).size, [1000] * 5) != [5] * 5
        assert team.gather(1000).size == 5


def test_nested_teams_do_not_add_threads(threads):
    threads(4)

    def inner(_):
        with team.gather(1000) as own:
            return own.size, own.each(lambda n: (meeting.wait(), team.gather(n).size, meeting.wait())[1], [1000, 1000])

    meeting = threading.Barrier(4, timeout=10)
    with team.one_blas_thread(), team.Team(1) as together:
        assert together.each(inner, range(2)) == [(2, [1, 1])] * 2


def test_number_of_parallel_solves_is_limited_by_memory(threads):
    threads(8)
    with team.one_blas_thread():
        assert team.gather_for_solves(10, 1000).size == 8
        assert team.gather_for_solves(10, 2000).size == 2
        assert team.gather_for_solves(10, 5000).size == 1


def test_failure_of_a_solve_stops_the_remaining_solves(threads):
    threads(2)
    begun = []

    def fail(item):
        begun.append(item)
        raise KeyboardInterrupt

    with team.one_blas_thread(), team.gather_for_solves(3, 10) as together, pytest.raises(KeyboardInterrupt):
        together.each(fail, range(100))
    assert len(begun) <= 2
