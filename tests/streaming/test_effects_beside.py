"""Steps of a process and effects: against sweeps over all rows, against differences, and on arrays against graphs."""

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.approximations.sparse_ep import SparseEP
from pymc_gpep.approximations.sparse_vi import SparseVI
from pymc_gpep.solvers.whitened_posterior import whitened_posterior
from pymc_gpep.streaming.array_step import array_step
from pymc_gpep.streaming.memories.stateless import Stateless
from pymc_gpep.streaming.memories.stochastic import Stochastic
from pymc_gpep.streaming.memories.stored import StoredMemory
from pymc_gpep.streaming.memories.variational import Variational
from pymc_gpep.structure.effects_beside import by_inducing
from pymc_gpep.structure.inducing_blocks import InducingBlocks, PriorAt
from pymc_gpep.structure.interpreted import INTERPRETED
from pymc_gpep.structure.model_reading import read_classifier
from tests.streaming.problems import small

N, LEVELS = 40, 4


def build():
    """Levels, a column, and a process with a mean; coefficients depend on hyperparameters."""
    rng = np.random.default_rng(6)
    x, c = rng.uniform(-2, 2, size=(N, 1)), rng.normal(size=N)
    group = np.concatenate([np.arange(LEVELS), rng.integers(0, LEVELS, N - LEVELS)])
    y = (rng.random(N) < 1 / (1 + np.exp(-np.sin(2 * x[:, 0]) - c))).astype(int)
    with pm.Model() as model:
        cov = pm.HalfNormal("eta", 2) ** 2 * pm.gp.cov.ExpQuad(1, ls=pm.InverseGamma("ls", 3, 3))
        gp = pm.gp.Latent(mean_func=pm.gp.mean.Linear(coeffs=[0.5]), cov_func=cov)
        f = gp.prior("f", X=pm.Data("x", x))
        a = pm.Normal("a", pm.Normal("centre", 0, 3), pm.HalfNormal("s", 1), shape=LEVELS)
        pm.Bernoulli("y", logit_p=a[pm.Data("group", group)] + pm.Normal("b", 0, 2) * pm.Data("c", c) + f, observed=y)
    return model, gp


def test_steps_on_arrays_are_those_of_the_graph():
    found = []
    for on_arrays in (True, False):
        problem = small(build, Stochastic(), None, 13, together=True)
        optimiser = pm.adam(learning_rate=0.02)
        step = array_step(problem.problem, problem.state, optimiser) if on_arrays else problem.step(0.02)
        order = problem.batches.after(0)
        taken = [step(*next(order), 0.3, i >= 1) for i in range(4)]
        assert all(each.went_well for each in taken)
        found.append(problem.state.values() | {"log posterior": np.array([each.log_posterior for each in taken])})
    arrays, graph = found
    for name, expected in graph.items():
        assert_allclose(arrays[name], expected, rtol=1e-7, atol=1e-7 * np.abs(expected).max(), err_msg=name)


@pytest.mark.parametrize("memory", [Variational(), StoredMemory()], ids=lambda memory: memory.name)
def test_gradients_are_those_of_the_objective(memory):
    problem = small(build, memory, None, N)
    batch, estimates = problem.all_rows(), problem.estimates()
    _, of_theta, of_inducing, *_ = estimates(*batch)
    for variable, slope in ((problem.state.theta, of_theta), (problem.state.inducing, of_inducing)):
        at = variable.get_value()
        for place in np.ndindex(at.shape):
            values = []
            for sign in (1.0, -1.0):
                moved = at.copy()
                moved[place] += sign * 1e-5
                variable.set_value(moved)
                values.append(float(estimates(*batch)[0]))
            variable.set_value(at)
            assert_allclose(slope[place], (values[0] - values[1]) / 2e-5, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("memory", "whole"),
    [
        (Stateless(local_iterations=15), SparseEP(tolerance=1e-11)),
        (StoredMemory(), SparseEP(tolerance=1e-11)),
        (Variational(), SparseVI(tolerance=1e-11)),
    ],
    ids=["stateless", "sites", "variational"],
)
def test_the_fixed_point_is_that_of_all_rows(memory, whole):
    """Its gradient as well, where the objective is the number that all rows give."""
    problem = small(build, memory, None, N, together=True)
    step = array_step(problem.problem, problem.state, pm.adam(learning_rate=0.02)) or problem.step(mode=INTERPRETED)
    state, batch = problem.state, problem.all_rows()
    for each in (state.precision, state.location):
        each.set_value(np.zeros_like(each.get_value()))
    for _ in range(60):
        assert step(*batch, 0.5, False).went_well
    value, of_theta, of_inducing, *_ = problem.estimates()(*batch)

    space, total = problem.problem.space, [0.0, 0.0]
    blocks = InducingBlocks(by_inducing(read_classifier(space.classifier.model)), None, space.data)
    theta = state.theta.get_value()
    prior = PriorAt(blocks, space.point(theta), state.inducing_inputs())

    def pull(rows, bars):
        total[:] = [sums + slopes for sums, slopes in zip(total, prior.slopes(rows, bars), strict=True)]

    solution = whole.solve(prior, batch.labels, likelihood=space.classifier.likelihood_model, pull=pull)
    by_inducing_values = prior.inducing_slopes(solution.inducing_slope)
    log_prior, of_prior = space.log_prior_and_slope(theta)
    assert_allclose(value - log_prior, solution.evidence, rtol=1e-6)
    assert_allclose(of_theta, total[0] + by_inducing_values[0] + of_prior, rtol=1e-5, atol=1e-6)
    assert_allclose(of_inducing, (total[1] + by_inducing_values[1]) * state.units, rtol=1e-5, atol=1e-6)
    own = whitened_posterior(state.precision.get_value(), state.location.get_value())
    assert own.mean.shape == (1, 5 + 1 + LEVELS + 1)
    assert_allclose(own.mean, solution.posterior.whitened.mean, atol=1e-5)
    assert_allclose(own.root, solution.posterior.whitened.root, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("memory", [Stateless(local_iterations=2), Variational()], ids=lambda memory: memory.name)
def test_jax_takes_the_same_steps(memory):
    pytest.importorskip("jax")

    def taken(mode):
        problem = small(build, memory, None, 10)
        step, order = problem.step(mode=mode), problem.batches.after(0)
        values = [float(step(*next(order), 0.5, True)[0]) for _ in range(10)]
        return values, problem.state.values()

    (values, state), (others, other) = taken(INTERPRETED), taken("JAX")
    assert_allclose(others, values, rtol=1e-8)
    for name, each in state.items():
        assert_allclose(np.asarray(other[name]), each, rtol=1e-8, atol=1e-8 * np.abs(each).max(), err_msg=name)
