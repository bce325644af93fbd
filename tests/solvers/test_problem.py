"""Records of iterations, and their observers."""

import numpy as np

from pymc_gpep.approximations import NestedEP
from pymc_gpep.solvers.problem import History, watching
from tests.reference.data import random_problem


def test_record_of_iterations_is_full_after_the_largest_number_of_iterations():
    history = History(2)
    assert history.array.shape == (0, 2)
    assert history.smallest_residual == np.inf
    history.add(-3.0, 0.5)
    assert not history.is_full()
    history.add(-2.0, 0.7)
    assert history.is_full()
    assert len(history) == 2
    assert history.smallest_residual == 0.5
    assert (history.array == [[-3.0, 0.5], [-2.0, 0.7]]).all()


def test_observer_receives_every_iteration():
    problem = random_problem(0, 10, 3)
    seen = []
    with watching(lambda *row: seen.append(row)):
        solution = NestedEP().solve(problem.K, problem.m, problem.y)
    NestedEP().solve(problem.K, problem.m, problem.y)
    assert [number for number, *_ in seen] == list(range(1, solution.convergence.iterations + 1))
    assert [evidence for _, evidence, _ in seen] == list(solution.convergence.evidence)
    assert [residual for *_, residual in seen] == list(solution.convergence.residual)
