"""Batch fits that store the sites of all rows reach the fixed point of EP. q is always the sum of the sites.

The reference sums sites row by row, and runs EP on all rows at once.
"""

import os
import signal

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.approximations.sparse_ep import SparseEP
from pymc_gpep.prior_moments.inducing_blocks import InducingBlocks, PriorAt
from pymc_gpep.solvers.whitened_posterior import whitened_posterior
from pymc_gpep.streaming.memories import ReplacingSchedule, RowSites, StoredMemory
from pymc_gpep.streaming.run import Run
from pymc_gpep.streaming.state import StoredSites
from pymc_gpep.streaming.step import Taken
from tests import models
from tests.streaming.problems import small


def begun(build, sites, batch_size, warmup=0, **options):
    """Return a fit without sites, and its run. Hyperparameters and inducing inputs move after `warmup` steps."""
    problem = small(build, StoredMemory(), sites, batch_size)
    state = problem.state
    step = problem.step(**options)
    state.settle()
    return problem, Run(step, state, problem.batches, ReplacingSchedule(problem.batches.per_epoch, 0.0), warmup)


def summed(values, c):
    """S and h as sums over the stored sites."""
    features = np.broadcast_to(values["site_features"].astype(float), (30, c, values["site_features"].shape[2]))
    precision, location = np.zeros((c, 5, 5)), np.zeros((c, 5))
    for w, *sites in zip(
        features, values["site_functions"], values["site_precision"], values["site_location"], strict=True
    ):
        for k, t, nu in zip(*sites, strict=True):
            precision[k] += t * np.outer(w[k], w[k])
            location[k] += nu * w[k]
    return precision, location


@pytest.mark.variation(but=["one function"])
@pytest.mark.parametrize(
    ("build", "sites", "batch_size"),
    [
        pytest.param(models.shared, "pairwise", 8, id="pairwise"),
        pytest.param(models.bernoulli_probit, None, 7, id="one function"),
        pytest.param(models.per_class, "quadrature", 10, id="own covariances", marks=pytest.mark.slow),
    ],
)
def test_epochs_of_batches_reach_the_fixed_point_of_ep(build, sites, batch_size):
    problem, run = begun(build, sites, batch_size, warmup=10_000)
    space, state = problem.problem.space, problem.state
    for _ in range(14 * problem.batches.per_epoch):
        run.advance()
    last = [run.advance().log_posterior for _ in range(problem.batches.per_epoch)]
    blocks = InducingBlocks(space.classifier, problem.problem.gps, space.data)
    prior = PriorAt(blocks, space.point(state.theta.get_value()), state.inducing_inputs())
    solution = SparseEP(sites=sites, tolerance=1e-10, max_iterations=2000).solve(
        prior, problem.all_rows().labels, likelihood=space.classifier.likelihood_model
    )
    # Steps integrate several functions with an error of at most 1e-5 a row. Sweeps use a finer rule.
    error = 30 * 1e-5 if sites == "quadrature" else 1e-5
    assert_allclose(np.mean(last) - space.log_prior(state.theta.get_value()), solution.evidence, atol=error)
    values, c = state.values(), space.classifier.n_functions
    own, ep = whitened_posterior(values["precision"], values["location"]), solution.posterior.whitened
    deviation = np.sqrt((ep.root**2).sum(axis=1))
    assert_allclose(own.mean / deviation, ep.mean / deviation, atol=1e-4)
    assert_allclose(own.root, ep.root, atol=1e-4)
    for found, expected in zip((values["precision"], values["location"]), summed(values, c), strict=True):
        assert_allclose(found, expected, atol=1e-9 * np.abs(expected).max())


def test_stored_site_is_subtracted_with_the_features_that_it_was_added_with():
    """Features change with the hyperparameters, so the features at the addition of a site must be stored."""
    problem, run = begun(models.shared, "pairwise", 8, learning_rate=0.2)
    apart = 0.0
    for _ in range(30):
        before = problem.state.values()
        assert run.advance().went_well
        after = problem.state.values()
        precision, location = summed(after, 3)
        assert_allclose(after["precision"], precision, atol=1e-9 * np.abs(precision).max())
        assert_allclose(after["location"], location, atol=1e-9 * np.abs(location).max())
        assert np.linalg.eigvalsh(after["precision"]).min() > -1e-9 * np.abs(precision).max()
        came = (before["site_features"] != 0).any(axis=(1, 2))
        apart = max(apart, np.abs(after["site_features"] - before["site_features"])[came].max(initial=0.0))
    assert apart > 0.3


@pytest.mark.variation
def test_failed_step_does_not_store_sites():
    problem, run = begun(models.shared, "pairwise", 30)
    run.advance()
    before, after = problem.refused(problem.step())
    assert all(np.array_equal(after[name], before[name]) for name in before if not name.startswith("optimiser"))


def test_interrupt_while_sites_are_stored_waits_for_the_end_of_the_step(monkeypatch):
    problem, run = begun(models.shared, "pairwise", 8)
    run.advance()
    put = problem.state.sites.put
    monkeypatch.setattr(problem.state.sites, "put", lambda *given: (os.kill(os.getpid(), signal.SIGINT), put(*given)))
    with pytest.raises(KeyboardInterrupt):
        run.advance()
    values = problem.state.values()
    assert_allclose(values["precision"], summed(values, 3)[0], atol=1e-12)


def test_interrupt_of_a_repeated_step_restores_the_jitter():
    problem, run = begun(models.shared, "pairwise", 8)
    before, seen = problem.state.jitter.get_value(), []

    def failing(*_):
        seen.append(float(problem.state.jitter.get_value()))
        if len(seen) == 3:
            raise KeyboardInterrupt
        return Taken(np.nan, 0.0, went_well=False)

    run._step = failing
    with pytest.raises(KeyboardInterrupt):
        run.advance()
    assert_allclose(seen, before * 100.0 ** np.arange(3))
    assert problem.state.jitter.get_value() == before


@pytest.mark.parametrize("sets", [1, 3])
def test_converged_sites_satisfy_the_equation_of_the_common_function(sets):
    """Forces ν − t m of each row sum to zero. With features for each function, test functions suffice for any shift."""
    rng = np.random.default_rng(0)
    n = 6 if sets == 3 else 20
    stored = StoredSites(n, 3, 3, sets, 4, differences=True)
    t, forces = rng.exponential(size=(n, 3)), rng.normal(size=(n, 3))
    functions = np.array([rng.permutation(3) for _ in range(n)])
    nu = t * rng.normal(size=(n, 1)) + forces - forces.mean(axis=1, keepdims=True)
    stored.put(np.arange(n), RowSites(t, nu, rng.normal(size=(n, sets, 4))), functions)
    posterior = whitened_posterior(*stored.settled())
    if sets == 1:
        assert_allclose(posterior.mean.sum(axis=0), 0.0, atol=1e-8)
    else:
        w = np.broadcast_to(stored.arrays["site_features"], (n, sets, 4))
        means = np.take_along_axis(np.einsum("nkm,km->nk", w, posterior.mean), functions, axis=1)
        assert_allclose((stored.arrays["site_location"] - t * means).sum(axis=1), 0.0, atol=1e-6)
    again = stored.arrays["site_location"].copy()
    stored.settled()
    assert_allclose(stored.arrays["site_location"], again, atol=1e-6)
