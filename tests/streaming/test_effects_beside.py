"""Fixed point of batch steps for a process plus effects, against sweeps over all rows."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.approximations.sparse_ep import SparseEP
from pymc_gpep.approximations.sparse_vi import SparseVI
from pymc_gpep.prior_moments.effects_beside import by_inducing
from pymc_gpep.prior_moments.inducing_blocks import InducingBlocks, PriorAt
from pymc_gpep.reading.model_reading import read_classifier
from pymc_gpep.solvers.whitened_posterior import whitened_posterior
from pymc_gpep.streaming.memories import Stateless, StoredMemory, Variational
from tests import models
from tests.streaming.problems import small

N, LEVELS = 40, 4


@pytest.mark.variation(but=["stateless"])
@pytest.mark.parametrize(
    ("memory", "whole"),
    [
        (Stateless(local_iterations=15), SparseEP(tolerance=1e-11)),
        pytest.param(StoredMemory(), SparseEP(tolerance=1e-11), marks=pytest.mark.slow),
        (Variational(), SparseVI(tolerance=1e-11)),
    ],
    ids=["stateless", "sites", "variational"],
)
def test_batches_with_effects_reach_the_fixed_point_of_all_rows(memory, whole):
    """The gradient also agrees where the objective is the evidence or the bound."""
    problem = small(models.effects_beside, memory, None, N, together=True)
    step = problem.step(0.02)
    state, batch = problem.state, problem.all_rows()
    for each in (state.precision, state.location):
        each.set_value(np.zeros_like(each.get_value()))
    for _ in range(60):
        assert step(*batch, 0.5, False).went_well
    value, of_theta, of_inducing, *_ = problem.estimates()(*batch)

    space = problem.problem.space
    blocks = InducingBlocks(by_inducing(read_classifier(space.classifier.model)), None, space.data)
    theta = state.theta.get_value()
    prior = PriorAt(blocks, space.point(theta), state.inducing_inputs())

    found = whole.solved(prior, batch.labels, likelihood=space.classifier.likelihood_model)
    solution, (*total, product) = found.solution, prior.row_slopes(found.bars())
    by_inducing_values = prior.inducing_slopes(solution.posterior.whitening.pull_factor(product))
    log_prior, of_prior = space.log_prior_and_slope(theta)
    assert_allclose(value - log_prior, solution.evidence, rtol=1e-6)
    assert_allclose(of_theta, total[0] + by_inducing_values[0] + of_prior, rtol=1e-5, atol=1e-6)
    assert_allclose(of_inducing, (total[1] + by_inducing_values[1]) * state.units, rtol=1e-5, atol=1e-6)
    own = whitened_posterior(state.precision.get_value(), state.location.get_value())
    assert own.mean.shape == (1, 5 + 1 + LEVELS + 1)
    assert_allclose(own.mean, solution.posterior.whitened.mean, atol=1e-5)
    assert_allclose(own.root, solution.posterior.whitened.root, atol=1e-5)
