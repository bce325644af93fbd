"""Probabilities of the largest of independent utilities by tables, against finer rules and dense grids."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.kernels.special.largest_of_independent import (
    FINE,
    FROM,
    MOST_NODES,
    ROOM,
    largest_of_tabulated,
    node_step,
    probabilities_of_independent,
    tabulate,
)
from pymc_gpep.likelihoods.factor_averages import UtilityNoise
from pymc_gpep.likelihoods.softmax import gumbel_noise
from tests.reference.softmax_average import softmax_average

NORMAL = UtilityNoise(1.0, np.ones(1), np.zeros(1), np.zeros(1), 0.0)


def by_tables(mean, variance, noise):
    """Probabilities by tables of normal variables with these moments, plus noise."""
    c = len(mean)
    total = variance + noise.common
    width = np.sqrt(total + noise.weights @ (noise.variances + noise.means**2) - (noise.weights @ noise.means) ** 2)
    tables, shapes, p, step = np.full((c, ROOM), np.nan), np.empty((c, 2), np.uint64), np.empty(c), node_step(width)
    mixture = noise.weights, noise.means, noise.variances
    high = np.array([tabulate(total[k], *mixture, width[k], step, shapes[k], tables[k]) for k in range(c)])
    room = np.full(MOST_NODES + 16, np.nan)
    largest_of_tabulated(mean, FROM * width, high, step, shapes, tables.ravel(), p, room)
    return p


# tables have from one cell between nodes to the largest allowed number
@pytest.mark.parametrize("spread", [0.0, 1.0, 2.5])
def test_tabulated_normal_utilities_match_exact_probabilities(spread):
    rng = np.random.default_rng(0)
    (nodes, weights), reach, width = FINE
    for c in (2, 5, 20):
        variance = 3.0 * np.exp(spread * rng.standard_normal((10, c)))
        mean = 2.0 * rng.standard_normal((10, c))
        expected, error = np.empty((10, c)), np.empty(10)
        probabilities_of_independent(mean, variance + 1.0, nodes, weights, reach, width, expected, error)
        found = [by_tables(*point, NORMAL) for point in zip(mean, variance, strict=True)]
        assert_allclose(found, expected, rtol=0, atol=8e-6)


@pytest.mark.parametrize("spread", [0.0, 0.5])
@pytest.mark.parametrize("scale", [0.0, 0.5, 5.0])
def test_tabulated_gumbel_utilities_match_the_softmax(spread, scale):
    rng = np.random.default_rng(1)
    variance = scale**2 * np.exp(spread * rng.standard_normal(6))
    mean = (1.0 + scale) * rng.standard_normal(6)
    expected = softmax_average(mean, variance, np.zeros((6, 1)), nodes=1)
    assert_allclose(by_tables(mean, variance, gumbel_noise()), expected, rtol=0, atol=8e-6)


def test_probabilities_of_utilities_with_very_different_scales_do_not_sum_to_one():
    """Callers of the tables detect inaccurate probabilities by the distance of the sum from 1."""
    p = by_tables(np.array([0.0, 500.0]), np.array([1e8, 0.0]), NORMAL)
    assert abs(p.sum() - 1.0) > 1e-3
