"""Small problems run on one BLAS thread, and leave the user's setting as it was."""

import threading

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController

from pymc_gpep import NestedEP
from pymc_gpep.approximations.base import run
from pymc_gpep.kernels.blas_threads import _SMALL, limit_blas_threads, restore_blas_threads
from tests.reference.data import random_problem


@pytest.fixture
def blas():
    """The OpenBLAS of SciPy, on two threads."""
    controller = ThreadpoolController().select(internal_api="openblas")
    found = [library for library in controller.lib_controllers if "scipy_openblas-" in library.filepath]
    if not found:
        pytest.skip("SciPy does not bring its own OpenBLAS")
    with controller.limit(limits=2):
        yield found[0]


def test_limited_and_restored(blas):
    before = limit_blas_threads(_SMALL)
    assert blas.num_threads == 1
    restore_blas_threads(before)
    assert blas.num_threads == 2


def test_large_problems_keep_their_threads(blas):
    before = limit_blas_threads(_SMALL + 1)
    assert blas.num_threads == 2
    restore_blas_threads(before)
    assert blas.num_threads == 2


def test_a_limit_of_the_user_is_not_lifted(blas):
    blas.set_num_threads(1)
    restore_blas_threads(limit_blas_threads(10))
    assert blas.num_threads == 1


@pytest.mark.parametrize("k", [np.eye(12), -np.eye(12)], ids=["solved", "failed"])
def test_a_solve_leaves_the_setting_alone(blas, k):
    problem = random_problem(0, 12, 3)
    run(NestedEP(), k[None], problem.m, problem.y, np.zeros(48))
    assert blas.num_threads == 2


def test_overlapping_solves_leave_the_setting_alone(blas):
    problem = random_problem(0, 40, 3, variance=30.0)

    def solve():
        for _ in range(30):
            NestedEP().solve(problem.K, problem.m, problem.y)

    threads = [threading.Thread(target=solve) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert blas.num_threads == 2
