"""Anderson acceleration of fixed-point iterations with known solutions."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.kernels.acceleration import accelerated_step, weighted_norm


def iterate(residual, x, weight, memory, mixing, steps):
    """Accelerate x ← x + residual(x), starting at its first step. Return the norms of the residuals."""
    dx, df = np.full((2, memory, x.size), np.nan)
    f = residual(x)
    norms = [weighted_norm(weight, f)]
    step = np.empty(x.size)
    for stored in range(steps):
        accelerated_step(weight, f, dx, df, min(stored, memory), mixing, step)
        x = x + step
        new = residual(x)
        dx[stored % memory], df[stored % memory] = step, new - f
        f = new
        norms.append(weighted_norm(weight, f))
    return np.sqrt(norms)


def test_weighted_norm_of_a_vector_matches_its_definition():
    assert weighted_norm(np.array([1.0, 2.0, 0.5]), np.array([3.0, -1.0, 4.0])) == 19.0


@pytest.mark.parametrize("dimension", [1, 2, 5])
@pytest.mark.parametrize("mixing", [1.0, 0.3])
def test_acceleration_of_a_linear_iteration_takes_one_step_more_than_its_dimension(dimension, mixing):
    # The plain iteration diverges: some eigenvalues of I − A are far outside of the unit circle.
    rng = np.random.default_rng(dimension)
    matrix = np.diag(np.linspace(3.0, 6.0, dimension)) + 0.5 * rng.standard_normal((dimension, dimension))
    target = rng.standard_normal(dimension)
    norms = iterate(
        lambda x: target - matrix @ x, np.zeros(dimension), np.ones(dimension), dimension, mixing, dimension + 1
    )
    assert norms[:-1].min() > 1e-3
    assert norms[-1] < 1e-8 * norms[0]


def test_acceleration_with_a_short_memory_converges_where_the_plain_iteration_diverges():
    rng = np.random.default_rng(0)
    matrix = np.diag(np.linspace(1.0, 3.0, 30))
    target = rng.standard_normal(30)
    norms = iterate(lambda x: target - matrix @ x, np.zeros(30), np.ones(30), 3, 0.5, 60)
    assert norms[-1] < 1e-6 * norms[0]


@pytest.mark.parametrize("used", range(5))
def test_accelerated_step_starts_from_the_combination_of_steps_with_the_least_residual(used):
    """Only the first `used` rows count. All other rows are NaN."""
    memory, dimension, mixing = 4, 9, 0.7
    rng = np.random.default_rng(used)
    weight = rng.uniform(0.1, 10.0, dimension)
    f = rng.standard_normal(dimension)
    dx, df = np.full((2, memory, dimension), np.nan)
    dx[:used], df[:used] = rng.standard_normal((2, min(used, memory), dimension))
    used = min(used, memory)
    step = np.full(dimension, np.nan)
    accelerated_step(weight, f, dx, df, used, mixing, step)
    root = np.sqrt(weight)
    gamma = np.linalg.lstsq((df[:used] * root).T, f * root)[0]
    assert_allclose(step, mixing * f - gamma @ (dx[:used] + mixing * df[:used]), rtol=1e-9, atol=1e-9)


def test_repeated_change_of_sites_counts_once_in_acceleration():
    rng = np.random.default_rng(1)
    weight, f = np.ones(6), rng.standard_normal(6)
    dx, df = rng.standard_normal((2, 1, 6))
    once, twice = np.empty((2, 6))
    accelerated_step(weight, f, dx, df, 1, 0.8, once)
    accelerated_step(weight, f, np.repeat(dx, 3, 0), np.repeat(df, 3, 0), 3, 0.8, twice)
    assert_allclose(twice, once, rtol=1e-3)


def test_accelerated_step_is_a_plain_step_if_the_residual_does_not_change():
    f = np.array([1.0, -2.0])
    step = np.empty(2)
    accelerated_step(np.ones(2), f, np.ones((2, 2)), np.zeros((2, 2)), 2, 0.8, step)
    assert_allclose(step, 0.8 * f)
