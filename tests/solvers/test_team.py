"""BLAS on one thread, the package's own threads, and the user's thread setting."""

import threading
import time

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController

from pymc_gpep.approximations import NestedEP
from pymc_gpep.solvers import team as team_module
from pymc_gpep.solvers.team import ALONE, Team, gather, one_blas_thread
from tests.interrupted_calls import interrupt, moments_of
from tests.reference.data import random_problem


@pytest.fixture
def blas():
    """Controllers of all OpenBLAS libraries of the process, set to two threads."""
    controller = ThreadpoolController().select(user_api="blas")
    if not controller.lib_controllers:
        pytest.skip("there is no BLAS whose threads can be counted")
    with controller.limit(limits=2):
        yield controller.lib_controllers


def counts(blas):
    return {library.num_threads for library in blas}


def test_thread_limit_is_set_and_restored(blas):
    with one_blas_thread():
        assert counts(blas) == {1}
        with one_blas_thread():
            assert counts(blas) == {1}
        assert counts(blas) == {1}
    assert counts(blas) == {2}


def test_team_has_as_many_threads_as_blas_may_use(blas, monkeypatch):
    monkeypatch.setattr("pymc_gpep.solvers.team._processors", lambda: 8)
    with one_blas_thread(), gather(1000) as team:
        assert team.size == 2
        assert gather(50) is ALONE
    with ThreadpoolController().limit(limits=1, user_api="blas"), one_blas_thread():
        assert gather(1000).size == 1  # the user's limit stays
    assert gather(1000).size == 1  # outside of `one_blas_thread` BLAS uses its own threads


def test_team_has_no_more_threads_than_processors(blas, monkeypatch):
    monkeypatch.setattr("pymc_gpep.solvers.team._processors", lambda: 1)
    with one_blas_thread():
        assert gather(1000).size == 1


def test_interrupt_during_the_search_for_libraries_leaves_no_limit(blas, monkeypatch):
    def interrupt():
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("pymc_gpep.solvers.team._libraries", interrupt)
        with pytest.raises(KeyboardInterrupt), one_blas_thread():
            pass
    test_thread_limit_is_set_and_restored(blas)


def test_interrupt_at_any_call_restores_threads_and_floating_point_errors(blas):
    def work():
        with one_blas_thread(), np.errstate(all="ignore"):
            pass

    before, files = np.geterr(), {team_module.__file__, np.errstate.__enter__.__code__.co_filename}
    total = moments_of(work, files)
    assert total > 10
    for moment in range(total):
        with pytest.raises(KeyboardInterrupt), interrupt(moment, files):
            work()
        assert counts(blas) == {2}
        assert np.geterr() == before
    test_thread_limit_is_set_and_restored(blas)


@pytest.mark.parametrize("k", [np.eye(12), -np.eye(12)], ids=["solved", "failed"])
def test_solve_keeps_the_thread_setting(blas, k):
    problem = random_problem(0, 12, 3)
    NestedEP().run(k[None], problem.m, problem.y, np.zeros(48))
    assert counts(blas) == {2}


def test_overlapping_solves_keep_the_thread_setting(blas):
    problem = random_problem(0, 40, 3, variance=30.0)

    def solve():
        for _ in range(10):
            NestedEP().solve(problem.K, problem.m, problem.y)

    threads = [threading.Thread(target=solve) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts(blas) == {2}


@pytest.mark.parametrize("helpers", [0, 1, 3])
def test_each_item_is_computed_once_and_results_keep_their_order(helpers):
    done = []

    def square(item):
        time.sleep(1e-4 * (item % 3))
        done.append(item)
        return item**2

    with Team(helpers) as team:
        assert team.each(square, range(20)) == [i**2 for i in range(20)]
    assert sorted(done) == list(range(20))
    assert threading.active_count() == 1 or all("ThreadPool" not in t.name for t in threading.enumerate())


def test_work_is_distributed_over_threads():
    names = set()
    both = threading.Barrier(2, timeout=10)

    def work(item):
        both.wait()
        names.add(threading.current_thread().name)

    with Team(1) as team:
        team.each(work, range(2))
    assert len(names) == 2


def test_exception_in_a_worker_thread_is_raised():
    def fail(item):
        time.sleep(0.01)
        raise ValueError(item)

    with Team(1) as team, pytest.raises(ValueError, match=r"[01]"):
        team.each(fail, range(2))


@pytest.mark.parametrize("per_class", [False, True])
def test_evidence_and_gradient_do_not_depend_on_the_threads(blas, monkeypatch, per_class):
    monkeypatch.setattr("pymc_gpep.solvers.team._processors", lambda: 2)
    monkeypatch.setattr("pymc_gpep.solvers.team._SMALL", 10)
    problem = random_problem(2, 40, 3, variance=30.0, per_class=per_class)
    arguments = problem.K.reshape(-1, 40, 40), problem.m, problem.y, np.zeros(160)
    shared = NestedEP().run(*arguments, gradient=True)
    with ThreadpoolController().limit(limits=1, user_api="blas"):
        alone = NestedEP().run(*arguments, gradient=True)
    assert shared.evidence == alone.evidence
    assert (shared.gradient == alone.gradient).all()
    assert (shared.cov == alone.cov).all()
