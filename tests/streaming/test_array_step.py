"""Steps on arrays against the graph of the same steps, and what they are for."""

import os
import signal
from contextlib import nullcontext

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose

import pymc_gpep as gpep
from pymc_gpep.graphs.interpreted import INTERPRETED
from pymc_gpep.solvers.step_algebra import average_sites
from pymc_gpep.streaming.memories import Stateless, Stochastic, StoredMemory, Variational
from pymc_gpep.streaming.run import step_of
from pymc_gpep.streaming.step import array_step
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


def own_covariances(*kinds, shared=0, level=False, **options):
    """A model whose classes have covariances of their own, after some that share the first one, with a level."""

    def build():
        X, y = models.data()
        with pm.Model() as model:
            ls = pm.LogNormal("ls", 0, 0.5, shape=(len(kinds), 2))
            eta = pm.HalfNormal("eta", 3, shape=len(kinds))
            gps, rows = [], []
            for k, covariance in enumerate(kinds):
                mean = pm.gp.mean.Constant(pm.Normal("level", 0, 1)) if level and not k else pm.gp.mean.Zero()
                gps.append(pm.gp.Latent(mean_func=mean, cov_func=eta[k] ** 2 * covariance(2, ls[k])))
                f = gps[-1].prior(f"f_{k}", X=X, **({"n_outputs": shared} if shared and not k else {}))
                rows.append(pt.atleast_2d(f))
            gpep.MultinomialProbit("y", pt.concatenate(rows).T, observed=y, **options)
        return model, gps

    return build


def matern(d, ls):
    return pm.gp.cov.Matern32(d, ls=ls)


def exponential(d, ls):
    return pm.gp.cov.ExpQuad(d, ls=ls)


def noisy(d, ls):
    return pm.gp.cov.Matern52(d, ls=ls) + pm.gp.cov.WhiteNoise(0.3 * ls[0])


def quadratic(d, ls):
    """Not one of those that are written down."""
    return pm.gp.cov.RatQuad(d, ls=ls, alpha=2.0)


STEPS = {
    "whole points": (models.shared, Stateless(), "quadrature", 1e-4, True),
    "pairs": (classes(matern), Stateless(local_iterations=3), "pairwise", 1e-7, True),
    "one function with a mean": (models.bernoulli_probit, Stateless(), None, 1e-7, True),
    "effects beside a process": (models.effects_beside, Stochastic(), None, 1e-7, True),
    "label noise": (classes(matern, epsilon=0.05), Stateless(), None, 1e-4, True),
    "own covariances with means": (models.per_class, Stateless(), "pairwise", 1e-9, False),
    "own covariances, the same inducing inputs": (
        own_covariances(matern, exponential, matern),
        Stochastic(),
        "pairwise",
        1e-9,
        True,
    ),
    "own covariances and inducing inputs": (
        own_covariances(matern, matern, matern),
        Stateless(),
        "quadrature",
        1e-4,
        False,
    ),
    "own covariances with noise": (own_covariances(noisy, matern, noisy), Stateless(), "pairwise", 1e-9, False),
    "a bound of pairs": (classes(matern), Variational(), "pairwise", 1e-7, True),
    "a bound of pairs, own covariances": (
        own_covariances(matern, exponential, noisy),
        Variational(),
        "pairwise",
        1e-7,
        False,
    ),
    "a bound of one probit": (models.bernoulli_probit, Variational(), None, 1e-7, True),
    "a bound of one logit": (models.bernoulli_logit, Variational(), None, 1e-9, True),
    "a bound with label noise": (classes(matern, epsilon=0.05), Variational(), None, 1e-4, True),
    "a bound with label noise, own covariances": (
        own_covariances(noisy, matern, noisy, epsilon=0.05),
        Variational(),
        None,
        1e-3,  # integrals have four digits
        False,
    ),
    "own inducing inputs": (classes(matern), Stochastic(), "pairwise", 1e-9, False),
    "two that share a covariance": (
        own_covariances(matern, exponential, shared=2),
        Stateless(),
        "pairwise",
        1e-9,
        True,
    ),
    "two that share another covariance": (
        own_covariances(quadratic, matern, shared=2, level=True),
        Stateless(),
        "pairwise",
        1e-9,
        True,
    ),
}


@pytest.mark.variation(
    but=["pairs", "one function with a mean", "two that share another covariance", "own covariances with noise"]
)
@pytest.mark.parametrize(("build", "memory", "sites", "tolerance", "together"), STEPS.values(), ids=STEPS)
def test_steps_are_those_of_the_graph(build, memory, sites, tolerance, together):
    """Batches of unlike sizes, of which two are before anything is learned."""
    found = []
    for on_arrays in (True, False):
        problem = small(build, memory, sites, 13, together=together, arrays=on_arrays)
        optimiser = pm.adam(learning_rate=0.02)
        step = array_step(problem.problem, problem.state, optimiser) if on_arrays else problem.step(0.02)
        batches = problem.batches.after(0)
        problem.state.set_values(problem.state.values())  # as a fit does that goes on from another one
        taken = [step(*next(batches), 0.3, i >= 2) for i in range(5)]
        assert all(each.went_well for each in taken)
        found.append(problem.state.values() | {"log posterior": np.array([each.log_posterior for each in taken])})
    arrays, graph = found
    assert set(arrays) == set(graph)
    for name, expected in graph.items():
        assert_allclose(arrays[name], expected, rtol=tolerance, atol=tolerance * np.abs(expected).max(), err_msg=name)


def test_a_step_that_cannot_be_taken_changes_nothing():
    problem = small(models.shared, Stateless(), "pairwise", 30, together=True, arrays=True)
    step = array_step(problem.problem, problem.state, pm.adam(learning_rate=0.02))
    before, after = problem.refused(step)
    assert all(np.array_equal(after[name], before[name]) for name in before)
    batch = problem.all_rows()
    assert step(*batch, 0.5, True).went_well
    assert not np.array_equal(problem.state.values()["theta"], before["theta"])


def test_an_interrupt_waits_for_the_end_of_a_step(monkeypatch):
    states = []
    for interrupts in (False, True):
        problem = small(models.fixed, Stateless(), "pairwise", 30, together=True, arrays=True)
        step = array_step(problem.problem, problem.state, pm.adam(learning_rate=0.02))
        if interrupts:
            monkeypatch.setattr(
                "pymc_gpep.streaming.step.average_sites",
                lambda *given: (os.kill(os.getpid(), signal.SIGINT), average_sites(*given)),
            )
        with pytest.raises(KeyboardInterrupt) if interrupts else nullcontext():
            step(*problem.all_rows(), 0.5, True)
        states.append(problem.state.values())
    whole, interrupted = states
    assert all(np.array_equal(whole[name], interrupted[name]) for name in whole)


@pytest.mark.parametrize("build", [models.shared, own_covariances(matern, matern, matern)], ids=["shared", "own"])
def test_numbers_of_32_bits_lead_to_the_same(build):
    found = []
    for single in (False, True):
        problem = small(build, Stateless(), "pairwise", 13, together=build is models.shared, arrays=True)
        step = array_step(problem.problem, problem.state, pm.adam(learning_rate=0.02), single)
        batches = problem.batches.after(0)
        values = [step(*next(batches), 0.3, True).log_posterior for _ in range(6)]
        found.append(problem.state.values() | {"log posterior": np.array(values)})
    double, narrow = found
    assert not np.array_equal(double["precision"], narrow["precision"])
    for name, expected in double.items():
        assert_allclose(narrow[name], expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max(), err_msg=name)


def test_steps_of_a_bound_have_64_bits(monkeypatch):
    """Their rounding grows from step to step where magnitudes are large."""
    monkeypatch.setattr("pymc_gpep.streaming.step._MANY", 1)
    bits = []
    for memory in (Stateless(), Variational()):
        problem = small(models.fixed, memory, "pairwise", 30, together=True, arrays=True)
        step = array_step(problem.problem, problem.state, pm.adam(learning_rate=0.02))
        bits.append(step._single)
    assert bits == [True, False]


def test_steps_that_keep_sites_are_graphs():
    problem = small(models.shared, StoredMemory(), "pairwise", 30, together=True, arrays=True)
    assert array_step(problem.problem, problem.state, pm.adam(learning_rate=0.02)) is None


BY_ARRAYS = {
    "one covariance": (models.fixed, ["_ArrayStep", "_ArrayStep", "str"]),
    "own covariances": (own_covariances(matern, matern, matern), ["_ArrayStep", "_ArrayStep", "str"]),
    "others of their own": (own_covariances(quadratic, quadratic, quadratic), ["str", "_ArrayStep", "str"]),
}


@pytest.mark.parametrize(("build", "kinds"), BY_ARRAYS.values(), ids=BY_ARRAYS)
def test_which_steps_are_graphs(build, kinds, monkeypatch):
    """Numba takes minutes to compile such a graph, and its steps are no faster."""
    monkeypatch.setattr("pymc_gpep.streaming.run.make_step", lambda *_: "graph")
    problem = small(build, Stochastic(), "pairwise", 30, together=build is models.fixed, arrays=True)
    optimiser = pm.adam(learning_rate=0.02)
    steps = [
        step_of(problem.problem, problem.state, optimiser, {"mode": mode}) for mode in (INTERPRETED, "NUMBA", "JAX")
    ]
    assert [type(each).__name__ for each in steps] == kinds
