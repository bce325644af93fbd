"""Randomised rules for averages under normal distributions: exact for low degrees, unbiased for higher degrees."""

from itertools import product
from math import prod

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.likelihoods.factor_averages import fifth_degree, third_degree


def moment(powers):
    """E ∏ z_i^p_i of independent standard normal variables."""
    return prod(0 if p % 2 else prod(range(1, p, 2)) for p in powers)


@pytest.mark.parametrize(("rule", "degree"), [(third_degree, 3), (fifth_degree, 5)])
@pytest.mark.parametrize("dimension", [2, 4, 9])
def test_polynomials_up_to_the_degree_are_exact(rule, degree, dimension):
    points, weights = rule(dimension, 3, np.random.default_rng(0))
    assert points.shape == (*weights.shape, dimension)
    for powers in product(range(degree + 1), repeat=2):
        if sum(powers) <= degree:
            values = points[:, :, 0] ** powers[0] * points[:, :, 1] ** powers[1]
            assert_allclose((weights * values).sum(1), moment(powers), atol=1e-9)


@pytest.mark.parametrize(("rule", "power"), [(third_degree, 4), (fifth_degree, 6)])
def test_polynomials_of_the_next_degree_are_unbiased(rule, power):
    points, weights = rule(5, 4000, np.random.default_rng(1))
    values = (weights * points[:, :, 0] ** power).sum(1)
    assert abs(values.mean() - moment([power])) < 4 * values.std() / np.sqrt(4000)
    assert values.std() > 0.1
