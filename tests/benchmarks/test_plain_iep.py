"""The plain class-independent EP of the benchmarks has the fixed point of the package."""

from itertools import islice

import numpy as np
import pytest

from benchmarks.paper.plain_iep import plain_iep
from pymc_gpep.rivals.class_independent_ep import IEP
from tests.reference.data import squared_exponential


@pytest.mark.parametrize("max_inner", [1, 100])
def test_plain_iteration_reaches_the_fixed_point_of_iep(max_inner):
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(25, 2)), rng.integers(3, size=25)
    k = squared_exponential(X, variance=2.0, lengthscale=1.0) + 1e-6 * np.eye(25)
    *_, plain = islice(plain_iep(k, y, 3, 0.7, max_inner), 150)
    exact = IEP(tolerance=1e-9).solve(k, np.zeros((3, 25)), y)
    assert plain.evidence == pytest.approx(exact.evidence, abs=1e-8)
    np.testing.assert_allclose(plain.mean, exact.mean, atol=1e-6)
    np.testing.assert_allclose(plain.cov, exact.cov, atol=1e-6)
