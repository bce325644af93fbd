"""Steps on arrays against the graph of the same steps, and what they are for."""

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose

import pymc_gpep as gpep
from pymc_gpep.streaming.array_step import array_step
from pymc_gpep.streaming.memories.stateless import Stateless
from pymc_gpep.streaming.memories.stochastic import Stochastic
from pymc_gpep.streaming.memories.stored import StoredMemory
from pymc_gpep.streaming.memories.variational import Variational
from pymc_gpep.streaming.run import step_of
from pymc_gpep.structure.interpreted import INTERPRETED
from tests import models
from tests.streaming.problems import small


def classes(covariance, **options):
    """A model of flowers whose classes share a covariance."""

    def build():
        X, y = models.data()
        with pm.Model() as model:
            ls = pm.InverseGamma("ls", 3, 3, shape=2)
            eta = pm.HalfNormal("eta", 3)
            gp = pm.gp.Latent(cov_func=eta**2 * covariance(2, ls))
            gpep.MultinomialProbit("y", gp.prior("f", X=X, n_outputs=3).T, observed=y, **options)
        return model, gp

    return build


def matern(d, ls):
    return pm.gp.cov.Matern32(d, ls=ls)


def quadratic(d, ls):
    """Not one of those that are written down."""
    return pm.gp.cov.RatQuad(d, ls=ls, alpha=2.0)


STEPS = {
    "whole points": (models.shared, Stateless(), "quadrature", 1e-4),
    "pairs": (classes(matern), Stateless(local_iterations=3), "pairwise", 1e-7),
    "one function with a mean": (models.bernoulli_probit, Stateless(), None, 1e-7),
    "effects beside a process": (models.effects_beside, Stochastic(), None, 1e-7),
    "label noise": (classes(matern, epsilon=0.05), Stateless(), None, 1e-4),
}


@pytest.mark.variation(but=["pairs", "one function with a mean"])
@pytest.mark.parametrize(("build", "memory", "sites", "tolerance"), STEPS.values(), ids=STEPS)
def test_steps_are_those_of_the_graph(build, memory, sites, tolerance):
    """Batches of unlike sizes, of which two are before anything is learned."""
    found = []
    for on_arrays in (True, False):
        problem = small(build, memory, sites, 13, together=True)
        optimiser = pm.adam(learning_rate=0.02)
        step = array_step(problem.problem, problem.state, optimiser) if on_arrays else problem.step(0.02)
        batches = problem.batches.after(0)
        taken = [step(*next(batches), 0.3, i >= 2) for i in range(5)]
        assert all(each.went_well for each in taken)
        found.append(problem.state.values() | {"log posterior": np.array([each.log_posterior for each in taken])})
    arrays, graph = found
    assert set(arrays) == set(graph)
    for name, expected in graph.items():
        assert_allclose(arrays[name], expected, rtol=tolerance, atol=tolerance * np.abs(expected).max(), err_msg=name)


def test_a_step_that_cannot_be_taken_changes_nothing():
    problem = small(models.shared, Stateless(), "pairwise", 30, together=True)
    step = array_step(problem.problem, problem.state, pm.adam(learning_rate=0.02))
    before, after = problem.refused(step)
    assert all(np.array_equal(after[name], before[name]) for name in before)
    batch = problem.all_rows()
    assert step(*batch, 0.5, True).went_well
    assert not np.array_equal(problem.state.values()["theta"], before["theta"])


def test_numbers_of_32_bits_lead_to_the_same():
    found = []
    for single in (False, True):
        problem = small(models.shared, Stateless(), "pairwise", 13, together=True)
        step = array_step(problem.problem, problem.state, pm.adam(learning_rate=0.02), single)
        batches = problem.batches.after(0)
        values = [step(*next(batches), 0.3, True).log_posterior for _ in range(6)]
        found.append(problem.state.values() | {"log posterior": np.array(values)})
    double, narrow = found
    assert not np.array_equal(double["precision"], narrow["precision"])
    for name, expected in double.items():
        assert_allclose(narrow[name], expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max(), err_msg=name)


@pytest.mark.parametrize(
    ("build", "memory", "together"),
    [
        (models.per_class, Stateless(), False),
        (models.shared, StoredMemory(), True),
        (models.shared, Variational(), True),
    ],
    ids=["own covariances", "sites kept", "a bound"],
)
def test_other_steps_are_graphs(build, memory, together):
    problem = small(build, memory, "pairwise", 30, together=together)
    assert array_step(problem.problem, problem.state, pm.adam(learning_rate=0.02)) is None


def test_only_jax_has_steps_by_graphs(monkeypatch):
    """Numba takes minutes to compile such a graph, and its steps are no faster."""
    monkeypatch.setattr("pymc_gpep.streaming.run.make_step", lambda *_: "graph")
    problem = small(models.fixed, Stochastic(), "pairwise", 30, together=True)
    optimiser = pm.adam(learning_rate=0.02)
    steps = [
        step_of(problem.problem, problem.state, optimiser, {"mode": mode}) for mode in (INTERPRETED, "NUMBA", "JAX")
    ]
    assert [type(each).__name__ for each in steps] == ["_ArrayStep", "_ArrayStep", "str"]
