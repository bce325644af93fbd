"""A graph that is taken several times, against a loop."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.graphs.interpreted import INTERPRETED
from pymc_gpep.graphs.repeated import repeat


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("count", [1, 2])
def test_values_are_those_of_a_loop(times, count):
    def step(*values):
        *changing, constant = values
        return [np.sqrt(each + constant) + changing[0] for each in changing]

    start, constant = [np.array([1.0, 2.0]), np.array([5.0, 7.0])][:count], np.array([3.0, 4.0])
    inputs, given = [pt.dvector() for _ in start], pt.dvector()
    found = pytensor.function([*inputs, given], repeat(step, inputs, [given], times), mode=INTERPRETED)(
        *start, constant
    )
    expected = start
    for _ in range(times):
        expected = step(*expected, constant)
    for one, other in zip(found, expected, strict=True):
        assert_allclose(one, other, rtol=1e-14)
