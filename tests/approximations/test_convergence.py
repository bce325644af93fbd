"""Nested EP reaches one fixed point from wherever it starts, over hyperparameters that an optimiser may try."""

import numpy as np
import pytest

from pymc_gpep import NestedEP
from tests.reference.data import iris, squared_exponential, wine

EP = NestedEP()


def check(data, log_variances, log_lengthscales, every=1):
    X, y = (x[::every] for x in data())
    n, c = y.size, y.max() + 1
    mean = np.zeros((c, n))
    order = np.random.default_rng(0).permutation(n)
    found = {}
    for a, log_variance in enumerate(log_variances):
        for b, log_lengthscale in enumerate(log_lengthscales):
            k = squared_exponential(X, variance=np.exp(log_variance), lengthscale=np.exp(log_lengthscale))
            k += 1e-8 * np.eye(n)
            cold = EP.solve(k, mean, y)
            found[a, b] = cold.start
            again = [EP.solve(k[order][:, order], mean, y[order])]
            again += [EP.solve(k, mean, y, start=found[at]) for at in ((a - 1, b), (a, b - 1)) if at in found]
            for solution in (cold, *again):
                assert solution.convergence.converged, (log_variance, log_lengthscale)
                assert solution.evidence == pytest.approx(cold.evidence, abs=1e-6), (log_variance, log_lengthscale)


@pytest.mark.parametrize("data", [iris, wine])
def test_from_anywhere(data):
    check(data, (-2, 4, 12), (-2, 1, 5), every=2)


@pytest.mark.slow
@pytest.mark.parametrize("data", [iris, wine])
def test_from_anywhere_on_the_whole_grid(data):
    check(data, range(-2, 13, 2), range(-2, 6))
