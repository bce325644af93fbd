"""The model with free latent values that samplers use."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose
from scipy.special import log_ndtr

import pymc_gpep as gpep
from pymc_gpep.evidence.latent_model import LatentModel
from pymc_gpep.reading import read_classifier, read_processes
from tests.reading.test_refused_labels import DECLARED, VOTES, declared
from tests.reading.test_refused_labels import labels as legal

Y = np.array([0, 1, 0, 1])


@pytest.mark.parametrize("own", [True, False], ids=["Probit", "Bernoulli"])
def test_log_likelihood_of_both_probit_spellings_keeps_its_digits_in_the_tail(own):
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


@pytest.mark.parametrize("likelihood", [*DECLARED, *VOTES])
def test_log_likelihood_equals_the_log_likelihood_of_the_model(likelihood):
    """Kernels compute most likelihoods. All have the normalising constants of PyMC's density."""
    model = declared(likelihood, legal(likelihood))
    latent_model = LatentModel(read_classifier(model))
    point = model.initial_point()
    prior, function = latent_model.prior_function()(point), latent_model.likelihood()
    x = np.random.default_rng(3).standard_normal(prior.shape)
    there = point | latent_model.values.to_point(point, x, prior)
    value, slope = function(point, x, prior)
    # pm.math.invprobit stores √2 in single precision.
    digits = 1e-7 if likelihood in ("stopping_probit", "binomial_probit") else 1e-8
    assert value == pytest.approx(float(model.compile_logp(vars=model.observed_RVs)(there)), rel=digits)
    direction = np.cos(np.arange(x.size)).reshape(x.shape)
    higher, lower = (function(point, x + h * direction, prior)[0] for h in (1e-5, -1e-5))
    assert np.vdot(slope, direction) == pytest.approx((higher - lower) / 2e-5, rel=1e-5, abs=1e-5)


def test_likelihood_after_set_data_uses_the_new_labels():
    with pm.Model() as model:
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0)).prior("f", X=np.arange(4.0)[:, None])
        gpep.Probit("y", f, observed=pm.Data("labels", Y))
    latent_model, point = LatentModel(read_classifier(model)), {}
    prior, function = latent_model.prior_function()(point), latent_model.likelihood()
    x = np.array([[0.3, 1.0, -2.0, 0.1]])
    for labels in (Y, 1 - Y):
        model.set_data("labels", labels)
        assert function(point, x, prior)[0] == pytest.approx(log_ndtr((2 * labels - 1) * x).sum(), rel=1e-10)
