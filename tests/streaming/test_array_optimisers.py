"""Optimisers on arrays, against PyMC's optimisers."""

import numpy as np
import pymc as pm
import pytensor
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.streaming.state import State
from pymc_gpep.streaming.step import FallingAdam, array_optimiser


def state(hyperparameters=2):
    rng = np.random.default_rng(3)
    theta = rng.normal(size=hyperparameters)
    return State(theta, rng.normal(size=(1, 4, 3)), np.ones(3), 2, 1e-6, True)


@pytest.mark.parametrize("hyperparameters", [0, 2])
@pytest.mark.parametrize(
    "optimiser",
    [
        pm.adam(learning_rate=0.1, beta1=0.8),
        FallingAdam(4, 0.1, rise=2),
        pm.sgd(learning_rate=0.1),
        pm.adam(learning_rate=pytensor.shared(0.1)),
    ],
    ids=["Adam", "falling", "another", "shared rate"],
)
def test_steps_equal_graph_updates(optimiser, hyperparameters):
    rng = np.random.default_rng(4)
    on_arrays, in_graph = state(hyperparameters), state(hyperparameters)
    move = array_optimiser(optimiser, on_arrays)
    downhill = [each.type() for each in in_graph.learned]
    updates = optimiser(downhill, in_graph.learned)
    in_graph.hold([shared for shared in updates if shared not in in_graph.learned])
    step = pytensor.function(downhill, [], updates=updates, mode="FAST_COMPILE")
    for _ in range(5):
        slopes = [rng.normal(size=each.get_value().shape) for each in on_arrays.learned]
        move(slopes)
        step(*(-each for each in slopes))
    expected = in_graph.values()
    for name, found in on_arrays.values().items():
        assert_allclose(found, expected[name], rtol=1e-12, atol=1e-14, err_msg=name)


def test_optimiser_without_parameters_does_nothing():
    rng = np.random.default_rng(3)
    nothing = State(np.empty(0), rng.normal(size=(1, 4, 3)), np.ones(3), 2, 1e-6, False)
    before = nothing.values()
    array_optimiser(pm.adam(learning_rate=0.1), nothing)([])
    assert all(np.array_equal(before[name], each) for name, each in nothing.values().items())
