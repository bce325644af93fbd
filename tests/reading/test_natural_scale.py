"""Hyperparameters on their natural scale."""

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose

import pymc_gpep as gpep
from pymc_gpep.log_posteriors.hyperparameters import unconstrain
from pymc_gpep.reading import read_classifier
from tests import models


@pytest.mark.parametrize("name", ["shared", "centred", "per_class", "fixed"])
def test_initial_point_is_the_inverse_of_reported_hyperparameters(name, request):
    fit = request.getfixturevalue(name).fit
    point = unconstrain(fit.classifier)(fit.hyperparameters)
    expected = fit.log_posterior.point(fit.trace.best.theta)
    assert set(point) == set(expected)
    for key, value in expected.items():
        assert_allclose(point[key], value, rtol=1e-10, atol=1e-12)


def test_transform_may_depend_on_another_hyperparameter():
    X, y = models.data()
    with pm.Model() as model:
        top = pm.LogNormal("top", 0, 1)
        ls = pm.Uniform("ls", 0, top)
        gp = pm.gp.Latent(cov_func=9 * pm.gp.cov.ExpQuad(2, ls=ls))
        f = gp.prior("f", X=X, n_outputs=3)
        gpep.MultinomialProbit("y", f.T, observed=y)
    point = unconstrain(read_classifier(model).prior)({"top": 4.0, "ls": 1.0})
    assert_allclose(point["ls_interval__"], np.log(1 / 3))
    assert_allclose(point["top_log__"], np.log(4))
