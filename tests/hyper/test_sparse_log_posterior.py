"""The log posterior of hyperparameters and inducing inputs, against differences and against the dense log posterior."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.approximations import NestedEP, SparseEP, SparseVI
from pymc_gpep.hyper.inducing_inputs import initial_inducing
from pymc_gpep.kernels.status import NOT_POSITIVE_DEFINITE
from pymc_gpep.latent.gp_latent import as_gps
from pymc_gpep.log_posteriors.dense_log_posterior import DenseLogPosterior
from pymc_gpep.log_posteriors.hyperparameters import Hyperparameters
from pymc_gpep.log_posteriors.sparse_log_posterior import SparseLogPosterior
from pymc_gpep.prior_moments.inducing_blocks import InducingBlocks
from pymc_gpep.reading import read_classifier
from pymc_gpep.rivals.class_independent_ep import QIEP
from tests import models


def log_posterior(build, learn=True, inducing=4, shared=False, method=SparseEP, **options):
    model, gp = build()
    space = Hyperparameters(read_classifier(model))
    blocks = InducingBlocks(space.classifier, as_gps(gp), space.data)
    z = initial_inducing(inducing, blocks.rows, blocks.n_functions, shared, 1)
    return SparseLogPosterior(space, method(**{"tolerance": 1e-11} | options), blocks, z, learn)


@pytest.mark.variation(but=["bernoulli_probit-True-quadrature"])
@pytest.mark.parametrize(
    ("build", "shared", "sites"),
    [
        (models.per_class, False, "quadrature"),
        (models.shared, True, "pairwise"),
        (models.shared, False, "nested"),
        (models.bernoulli_probit, True, "quadrature"),
    ],
)
def test_gradient_matches_differences(build, shared, sites):
    posterior = log_posterior(build, shared=shared, sites=sites)
    flat = posterior.flat(posterior.space.initial_point())
    here = posterior(flat)
    assert here.usable
    count = len(posterior.space.parameters)
    assert here.gradient.size == count + posterior.anchors(flat).size
    direction = np.random.default_rng(2).normal(size=flat.size)
    for part in (np.arange(flat.size) < count, np.arange(flat.size) >= count):
        h = 1e-5 * direction * part
        slope = (posterior(flat + h, here.start).log_posterior - posterior(flat - h, here.start).log_posterior) / 2
        assert_allclose(here.gradient @ h, slope, rtol=1e-6, atol=1e-11)


@pytest.mark.variation(but=["nested-NestedEP"])
@pytest.mark.parametrize(("sites", "dense"), [("quadrature", QIEP), ("nested", NestedEP)])
def test_log_posterior_with_data_as_inducing_inputs_equals_the_dense_log_posterior(sites, dense):
    X, _ = models.data()
    sparse = log_posterior(models.shared, learn=False, inducing=X, shared=True, jitter=1e-10, sites=sites)
    dense = DenseLogPosterior(read_classifier(models.shared()[0]), dense(tolerance=1e-11))
    theta = dense.space.initial_point()
    ours, theirs = sparse(theta), dense(theta)
    assert_allclose(ours.log_posterior, theirs.log_posterior, rtol=1e-5)
    assert_allclose(ours.gradient, theirs.gradient, rtol=1e-4)
    assert_allclose(ours.log_posterior - ours.evidence, theirs.log_posterior - theirs.evidence)


def test_unconverged_bound_is_not_solved_again_from_a_cold_start():
    posterior = log_posterior(models.shared, method=SparseVI, max_iterations=3)
    theta = posterior.flat(posterior.space.initial_point())
    begun = posterior.solve(theta)
    further = posterior.solve(theta, begun.start)
    assert not further.convergence.converged
    assert further.evidence > begun.evidence


def test_indefinite_covariance_returns_a_status():
    posterior = log_posterior(models.shared, learn=False)
    theta = posterior.space.initial_point()
    evaluation = posterior(theta * np.nan)
    assert evaluation.status == NOT_POSITIVE_DEFINITE
    assert np.isnan(evaluation.log_posterior)
    with pytest.raises(ValueError, match="covariance of the inducing values must be finite, but has 48 values"):
        posterior.check_moments(theta * np.nan)


def test_hyperparameters_may_have_flat_priors():
    function = log_posterior(models.flat_prior, learn=False)
    at = np.array([0.3])
    found = function(at)
    assert_allclose(found.log_posterior, found.evidence)
    difference = (function(at + 1e-4).evidence - function(at - 1e-4).evidence) / 2e-4
    assert_allclose(found.gradient, difference, rtol=1e-5)
