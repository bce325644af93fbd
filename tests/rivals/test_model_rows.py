"""The prior of a model at its rows, block by block, against the model's whole matrix."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose

import pymc_gpep as gpep
from pymc_gpep.log_posteriors.hyperparameters import Hyperparameters
from pymc_gpep.prior_moments.inducing_blocks import InducingBlocks
from pymc_gpep.prior_moments.prior_functions import prior_moments
from pymc_gpep.reading import StructureError, read_classifier
from pymc_gpep.rivals.active_log_posterior import ModelRows, RowInputs
from tests import models

X, Y = models.data()


def noisy():
    with pm.Model() as model:
        ls = pm.LogNormal("ls", 0, 0.5)
        cov = 4 * pm.gp.cov.Matern32(2, ls=ls) + pm.gp.cov.WhiteNoise(0.3)
        gp = pm.gp.Latent(mean_func=pm.gp.mean.Linear(np.array([0.3, -0.2])), cov_func=cov)
        f = gp.prior("f", X=X, n_outputs=3, jitter=1e-3)
        gpep.MultinomialProbit("y", f.T, observed=Y)
    return model, None


def made(make):
    model, _ = make()
    space = Hyperparameters(read_classifier(model))
    rows = RowInputs.of(space.classifier, InducingBlocks(space.classifier, None, space.data))
    point = space.point(space.initial_point() + 0.1)
    return ModelRows(rows, point), prior_moments(space.classifier)(point)


@pytest.mark.parametrize("make", [noisy, models.per_class, models.bernoulli_logit])
def test_blocks_match_the_whole_matrix(make):
    rows, whole = made(make)
    some, others = np.array([4, 0, 17]), np.array([17, 3, 4, 29, 8])
    every = np.arange(30)
    assert_allclose(rows.block(every, every).cross, whole.k, rtol=1e-11, atol=1e-12)
    for columns in (some, some[:0]):
        found = rows.block(columns, others)
        assert_allclose(found.cross, whole.k[:, columns[:, None], others], rtol=1e-11, atol=1e-12)
        assert_allclose(found.variance, whole.k[:, others, others], rtol=1e-12)
        assert_allclose(found.mean, np.broadcast_to(whole.mean, (rows.n_functions, 30))[:, others], atol=1e-12)


def test_variable_as_jitter_raises_structure_error():
    with pm.Model() as model:
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(2, ls=1.0))
        f = gp.prior("f", X=X, n_outputs=3, jitter=pt.exp(pm.Normal("jitter")))
        gpep.MultinomialProbit("y", f.T, observed=Y)
    space = Hyperparameters(read_classifier(model))
    with pytest.raises(StructureError, match="The jitter of 'f' is not a number"):
        RowInputs.of(space.classifier, InducingBlocks(space.classifier, None, space.data))
