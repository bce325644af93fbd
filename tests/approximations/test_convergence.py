"""Nested EP reaches one fixed point from every start, for a wide range of hyperparameters."""

import itertools

import numpy as np
import pytest

from pymc_gpep.approximations import NestedEP
from tests.reference.data import half_of_grid, iris, squared_exponential, wine

EP = NestedEP()


def check(data, points, every=1):
    """Solve also with permuted rows, and from the solutions at the two previous points of the grid."""
    X, y = (x[::every] for x in data())
    n, c = y.size, y.max() + 1
    mean = np.zeros((c, n))
    order = np.random.default_rng(0).permutation(n)
    found = []
    for log_variance, log_lengthscale in points:
        k = squared_exponential(X, variance=np.exp(log_variance), lengthscale=np.exp(log_lengthscale))
        k += 1e-8 * np.eye(n)
        cold = EP.solve(k, mean, y)
        again = [EP.solve(k[order][:, order], mean, y[order])]
        again += [EP.solve(k, mean, y, start=start) for start in found[-2:]]
        found.append(cold.start)
        for solution in (cold, *again):
            assert solution.convergence.converged, (log_variance, log_lengthscale)
            assert solution.evidence == pytest.approx(cold.evidence, abs=1e-6), (log_variance, log_lengthscale)


@pytest.mark.parametrize("data", [iris, wine])
def test_nested_ep_converges_from_any_start(data):
    check(data, itertools.product((-2, 4, 12), (-2, 1, 5)), every=2)


@pytest.mark.slow
@pytest.mark.parametrize("data", [iris, wine])
def test_nested_ep_converges_from_any_start_on_a_grid(data):
    check(data, half_of_grid(), every=2)
