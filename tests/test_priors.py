"""Default priors that depend on the user's inputs."""

import numpy as np
import pandas as pd
import pymc as pm
import pytest
from numpy.testing import assert_allclose
from scipy.spatial.distance import pdist

import pymc_gpep as gpep
from tests import models

X = np.random.default_rng(0).normal(size=(400, 3)) * [1.0, 10.0, 0.1]


def median_of(variable):
    return np.exp(variable.owner.op.dist_params(variable.owner)[0].eval())


def test_single_length_scale_follows_distances():
    with pm.Model() as model:
        ls, eta = gpep.default_priors(X)
    assert [rv.name for rv in model.free_RVs] == ["ls", "eta"]
    assert ls.ndim == eta.ndim == 0
    assert_allclose(median_of(ls), np.sqrt((pdist(X) ** 2).mean() / 2), rtol=2e-3)
    standardised = (X - X.mean(axis=0)) / X.std(axis=0)
    with pm.Model():
        assert_allclose(median_of(gpep.default_priors(standardised)[0]), np.sqrt(3))


@pytest.mark.parametrize("kwargs", [{}, {"dims": "input"}])
def test_length_scale_of_each_input_is_in_its_unit(kwargs):
    with pm.Model(coords={"input": ["a", "b", "c"]}) as model:
        ls, _ = gpep.default_priors(pd.DataFrame(X), ard=True, names=("scale", "size"), **kwargs)
    assert [rv.name for rv in model.free_RVs] == ["scale", "size"]
    assert_allclose(median_of(ls), X.std(axis=0) * np.sqrt(3))
    assert model.named_vars_to_dims.get("scale") == (("input",) if kwargs else None)
    assert ls.eval().shape == (3,)


def test_constant_input_has_a_finite_length_scale():
    with pm.Model():
        ls, _ = gpep.default_priors(np.column_stack([X, np.ones(len(X))]), ard=True)
    assert np.isfinite(median_of(ls)).all()


@pytest.mark.parametrize(
    ("inputs", "message"),
    [(X[:, 0], r"X must be \(points, inputs\)"), (np.full((3, 2), np.nan), "X must be finite, but has 6"),
     (np.ones((3, 2)), "All rows of X are equal")],
)  # fmt: skip
def test_inputs_without_a_scale_raise_value_error(inputs, message):
    with pm.Model(), pytest.raises(ValueError, match=message):
        gpep.default_priors(inputs)


def test_default_priors_can_be_fitted():
    inputs, y = models.data()
    with pm.Model():
        ls, eta = gpep.default_priors(inputs, ard=True)
        f = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(2, ls=ls)).prior("f", X=inputs, n_outputs=3)
        gpep.MultinomialProbit("y", f.T, observed=y)
        fit = pm.fit(method="nested_ep", starts=2, progressbar=False)
    assert fit.converged
    assert fit.log_evidence > -12
