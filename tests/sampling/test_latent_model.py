"""A model as samplers see it."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose
from scipy.special import log_ndtr

import pymc_gpep as gpep
from pymc_gpep.sampling.latent_model import LatentModel
from pymc_gpep.structure import read_processes

Y = np.array([0, 1, 0, 1])


@pytest.mark.parametrize("own", [True, False], ids=["Probit", "Bernoulli"])
def test_a_probit_keeps_its_digits_in_either_spelling(own):
    with pm.Model() as model:
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0)).prior("f", X=np.arange(4.0)[:, None])
        if own:
            gpep.Probit("y", f, observed=Y)
        else:
            pm.Bernoulli("y", p=pm.math.invprobit(f), observed=Y)
    latent_model, values = LatentModel(read_processes(model)), pt.dmatrix("values")
    log_likelihood = latent_model.log_likelihood(values)
    function = latent_model.function([log_likelihood, pytensor.grad(log_likelihood, values)], values)
    far = np.array([[50.0, -50.0, 0.3, 12.0]])
    value, slope = function({}, far)
    assert_allclose(value, log_ndtr((2 * Y - 1) * far).sum(), rtol=1e-12)
    assert_allclose(slope[0, :2], [-50.02, 50.02], rtol=1e-4)
    assert np.isfinite(slope).all()
