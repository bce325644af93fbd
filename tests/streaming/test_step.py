"""Batch steps against all rows at once, against fixed points of EP, and against differences."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose

import pymc_gpep as gpep
from pymc_gpep.approximations.sparse_ep import SparseEP
from pymc_gpep.approximations.sparse_vi import SparseVI
from pymc_gpep.prior_moments.inducing_blocks import InducingBlocks, PriorAt
from pymc_gpep.solvers.whitened_posterior import whitened_posterior
from pymc_gpep.streaming.memories import RowSites, Stateless, Stochastic, StoredMemory, Variational
from tests import models
from tests.streaming.problems import small

MEMORIES = [Stateless(), Stochastic(), Variational()]


@pytest.mark.variation(but=["variational"])
@pytest.mark.parametrize(
    ("build", "sites", "memory", "batch_size"),
    [
        (models.shared, "pairwise", Stateless(), 13),
        (models.bernoulli_probit, None, Stochastic(), 10),
        (models.bernoulli_probit, None, Variational(), 8),
        (models.shared, "pairwise", StoredMemory(), 8),
    ],
    ids=["stateless", "stochastic", "variational", "sites"],
)
def test_mean_of_estimates_over_an_epoch_equals_the_value_for_all_rows(build, sites, memory, batch_size):
    of_all = small(build, memory, sites, 30)
    parts = small(build, memory, sites, batch_size)
    functions = [each.estimates() for each in (of_all, parts)]
    for each in (of_all, parts):
        keep_sites(each)
    order = parts.batches.after(0)
    found = [functions[1](*next(order)) for _ in range(parts.batches.per_epoch)]
    whole = functions[0](*of_all.all_rows())
    # Stored sites are replaced, not averaged: the change of S and h by all rows is a sum over batches.
    compared = 3 if of_all.state.sites else None
    for one, each in zip(whole[:compared], list(zip(*found, strict=True))[:compared], strict=True):
        assert_allclose(np.mean(each, axis=0), one, rtol=1e-10, atol=1e-10 * np.abs(one).max())


def keep_sites(problem):
    """Store small sites for all rows, so that no site is zero."""
    if problem.state.sites:
        rng = np.random.default_rng(4)
        before = problem.state.sites.of(np.arange(30))
        functions = rng.integers(3, size=before.precision.shape)
        sites = RowSites(
            rng.uniform(0.0, 0.05, functions.shape),
            rng.normal(size=functions.shape),
            rng.normal(size=before.features.shape),
        )
        problem.state.sites.put(np.arange(30), sites, functions)


@pytest.mark.slow
def test_random_batches_are_unbiased():
    """Use one random batch of each epoch: batches of one epoch are not independent, and the last batch is smaller."""
    of_all = small(models.shared, Stochastic(), "pairwise", 30).estimates()
    parts = small(models.shared, Stochastic(), "pairwise", 8)
    estimates, per_epoch, draws = parts.estimates(), parts.batches.per_epoch, 700
    places = np.arange(draws) * per_epoch + np.random.default_rng(0).integers(per_epoch, size=draws)
    drawn = [estimates(*next(parts.batches.after(int(place)))) for place in places]
    found = [np.array(each) for each in zip(*drawn, strict=True)]
    for one, each in zip(of_all(*parts.all_rows()), found, strict=True):
        error = each.std(axis=0, ddof=1) / np.sqrt(draws)
        assert (np.abs(each.mean(axis=0) - one) <= 4.0 * error + 1e-10 * np.abs(one).max()).all()


@pytest.mark.variation(but=["memory2-bernoulli_logit-30", "memory3-effects_beside-40"])
@pytest.mark.parametrize(
    ("memory", "build", "rows"),
    [
        (Stochastic(), models.per_class, 30),
        (StoredMemory(), models.per_class, 30),
        (Variational(), models.bernoulli_logit, 30),
        (Stochastic(), models.effects_beside, 40),
    ],
)
def test_gradients_match_differences_of_the_objective(memory, build, rows):
    """The posterior q and the weights of the batch are constants of the gradient with respect to θ and Z."""
    problem = small(build, memory, None, rows)
    batch, estimates = problem.all_rows(), problem.estimates()
    _, of_theta, of_inducing, *_ = estimates(*batch)
    for variable, slope in ((problem.state.theta, of_theta), (problem.state.inducing, of_inducing)):
        at = variable.get_value()
        direction, values = np.random.default_rng(7).normal(size=at.shape), []
        for sign in (1.0, -1.0):
            variable.set_value(at + sign * 1e-5 * direction)
            values.append(float(estimates(*batch)[0]))
        variable.set_value(at)
        assert_allclose((slope * direction).sum(), (values[0] - values[1]) / 2e-5, rtol=1e-5, atol=1e-5)


def step_likelihood():
    """Step likelihood whose classes each have a variance and noise of their own."""
    X, y = models.data()
    with pm.Model() as model:
        magnitude, noise = pm.HalfNormal("magnitude", 3, shape=3), pm.HalfNormal("noise", 1, shape=3)
        gps = [
            pm.gp.Latent(cov_func=magnitude[k] ** 2 * pm.gp.cov.ExpQuad(2, ls=1.0) + pm.gp.cov.WhiteNoise(noise[k]))
            for k in range(3)
        ]
        f = pt.stack([gp.prior(f"f_{k}", X=X) for k, gp in enumerate(gps)])
        gpep.RobustMax("y", f.T, epsilon=0.02, observed=y)
    return model, tuple(gps)


@pytest.mark.variation
def test_gradient_and_maximum_of_the_bound_with_label_noise_match_references():
    """Step likelihood with noise for each class. The maximum equals the maximum over all rows at once."""
    problem = small(step_likelihood, Variational(), None, 30, inducing=3)
    state, batch, estimates = problem.state, problem.all_rows(), problem.estimates()
    _, of_theta, *_ = estimates(*batch)
    theta = state.theta.get_value()
    direction, values = np.random.default_rng(7).normal(size=theta.shape), []
    for sign in (1.0, -1.0):
        state.theta.set_value(theta + sign * 1e-5 * direction)
        values.append(float(estimates(*batch)[0]))
    assert_allclose(of_theta @ direction, (values[0] - values[1]) / 2e-5, rtol=1e-5, atol=1e-5)
    state.theta.set_value(theta)
    state.precision.set_value(np.zeros_like(state.precision.get_value()))
    state.location.set_value(np.zeros_like(state.location.get_value()))
    step, lowest = problem.step(), []
    for _ in range(50):
        taken = step(*batch, 0.4, False)
        assert taken.went_well
        lowest.append(np.linalg.eigvalsh(state.precision.get_value()).min())
    assert min(lowest) > -1.0  # I + S has a Cholesky factor at each step
    assert taken.floored == 0.0
    space = problem.problem.space
    blocks = InducingBlocks(space.classifier, problem.problem.gps, space.data)
    prior = PriorAt(blocks, space.point(theta), state.inducing_inputs())
    likelihood = space.classifier.likelihood_model.given(np.full((1, 30), 0.02))
    start = np.zeros(2 * 30 * 3)
    whole = SparseVI(tolerance=1e-8).solve(prior, batch.labels, start, likelihood=likelihood)
    # Without noise of utilities the rule of a step has an error of about 2e-4 a row. Sweeps use a finer rule.
    assert_allclose(taken.log_posterior - space.log_prior(theta), whole.evidence, atol=30 * 2e-4)


@pytest.fixture(scope="module")
def at_fixed_point():
    """Repeat steps with all rows at once until the state is constant."""
    problem = small(models.per_class, Stateless(local_iterations=15), "pairwise", 30)
    state, step, batch = problem.state, problem.step(), problem.all_rows()
    state.precision.set_value(np.zeros_like(state.precision.get_value()))
    state.location.set_value(np.zeros_like(state.location.get_value()))
    for _ in range(60):
        step(*batch, 0.4, False)
    return problem, problem.estimates()(*batch)


def batch_solution(problem):
    space, state = problem.problem.space, problem.state
    blocks = InducingBlocks(space.classifier, problem.problem.gps, space.data)
    prior = PriorAt(blocks, space.point(state.theta.get_value()), state.inducing_inputs())
    return prior, SparseEP(sites="pairwise", tolerance=1e-10, max_iterations=2000).solved(
        prior, problem.all_rows()[1], likelihood=space.classifier.likelihood_model
    )


@pytest.mark.variation
def test_step_without_memory_has_the_fixed_point_of_ep(at_fixed_point):
    problem, (log_posterior, *_) = at_fixed_point
    solution = batch_solution(problem)[1].solution
    space, state = problem.problem.space, problem.state
    assert_allclose(log_posterior - space.log_prior(state.theta.get_value()), solution.evidence, rtol=1e-5)
    own = whitened_posterior(state.precision.get_value(), state.location.get_value())
    ep = solution.posterior.whitened
    deviation = np.sqrt((ep.root**2).sum(axis=1))
    assert_allclose(own.mean / deviation, ep.mean / deviation, atol=1e-4)
    assert_allclose(own.root, ep.root, atol=1e-4)


@pytest.mark.variation
def test_gradient_at_the_fixed_point_equals_the_gradient_of_the_evidence(at_fixed_point):
    problem, (_, of_theta, of_inducing, *_) = at_fixed_point
    prior, found = batch_solution(problem)
    *total, product = prior.row_slopes(found.bars())
    own = prior.inducing_slopes(found.solution.posterior.whitening.pull_factor(product))
    total = [a + b for a, b in zip(total, own, strict=True)]
    space, theta = problem.problem.space, problem.state.theta.get_value()
    of_prior = []
    for k in range(theta.size):
        h = 1e-5 * (np.arange(theta.size) == k)
        of_prior.append((space.log_prior(theta + h) - space.log_prior(theta - h)) / 2e-5)
    assert_allclose(of_theta, total[0] + of_prior, rtol=1e-4, atol=1e-5)
    assert_allclose(of_inducing, total[1] * problem.state.units, rtol=1e-4, atol=1e-5)


def test_failed_step_does_not_change_the_state():
    problem = small(models.shared, Stochastic(), "pairwise", 30)
    step, batch = problem.step(), problem.all_rows()
    before, after = problem.refused(step)
    assert all(np.array_equal(after[name], before[name]) for name in before)
    assert step(*batch, 0.5, True).went_well
    assert not np.array_equal(problem.state.values()["theta"], before["theta"])
    frozen = problem.state.values()
    step(*batch, 0.5, False)
    found = problem.state.values()
    same = {name for name in found if np.array_equal(found[name], frozen[name])}
    assert set(found) - same == {
        "precision",
        "location",
        "common_location",
        "common_cross",
        "common_precision",
    }
