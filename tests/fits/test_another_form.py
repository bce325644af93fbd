"""A form of prior that is registered by tests: fits, predictions, draws, samplers and files use only its interface."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose

import pymc_gpep as gpep
from pymc_gpep.approximations import EP, KL, ScalarLaplace
from pymc_gpep.log_posteriors.dense_log_posterior import DenseLogPosterior
from pymc_gpep.processes.processes import GPModel
from pymc_gpep.reading import read_classifier
from pymc_gpep.rivals.naive_tap import NaiveTAP
from tests import models
from tests.reference.rank_one import RANK_ONE, RankOnePrior
from tests.registered import restore_tables

RNG = np.random.default_rng(8)
N, JITTER, NEW = 24, 1e-6, np.array([[-1.5], [0.2], [3.0]])
X = RNG.normal(size=(N, 1))
Y = (X[:, 0] + RNG.normal(size=N) > 0).astype(int)
INTEGRATED = {"hyper": "laplace", "hyper_options": {"nodes": 4}}
METHODS = (EP(), ScalarLaplace(), KL(), NaiveTAP())


def make():
    with pm.Model() as model:
        s, t = pm.HalfNormal("s", 2.0), pm.HalfNormal("t", 1.0)
        gp = pm.gp.Latent(
            mean_func=pm.gp.mean.Constant(0.3), cov_func=pm.gp.cov.WhiteNoise(t) + s**2 * pm.gp.cov.Linear(1, c=0.0)
        )
        f = gp.prior("f", X=X, reparameterize=False, jitter=JITTER)
        pm.Bernoulli("y", logit_p=f, observed=Y)
    return model, gp


def array(prior):
    s, t = prior.model["s"], prior.model["t"]
    return pt.stack([t**2 + JITTER + pt.zeros(N), s * X[:, 0]])[None]


@pytest.fixture
def known(monkeypatch):
    """Register the form of prior of this file for processes."""
    restore_tables(monkeypatch)
    gpep.register("posterior", RANK_ONE)
    monkeypatch.setattr(GPModel, "arrays", property(lambda own: {RankOnePrior: lambda: array(own)}))


def fitted(method="ep", **options):
    model, gp = make()
    with model:
        return pm.fit(method=method, progressbar=False, random_seed=1, **options), gp


@pytest.fixture(scope="module")
def dense():
    return fitted(**INTEGRATED)


@pytest.mark.variation(but=["ep", "tap_naive", "kl"])
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_evidence_and_gradient_of_a_registered_form_equal_the_dense_form(method, request):
    theta = np.array([0.4, -0.2])
    expected = DenseLogPosterior(read_classifier(make()[0]), method)(theta)
    request.getfixturevalue("known")
    log_posterior = DenseLogPosterior(read_classifier(make()[0]), method)
    found = log_posterior(theta)
    assert log_posterior.algebra
    assert found.log_posterior == pytest.approx(expected.log_posterior, abs=1e-7)
    assert_allclose(found.gradient, expected.gradient, atol=1e-6)


@pytest.mark.variation
@pytest.mark.usefixtures("known")
def test_fit_draws_and_file_work_with_a_registered_form(dense):
    (expected, gp), (fit, own) = dense, fitted(**INTEGRATED)
    assert "one column" in str(fit)
    assert fit.log_evidence == pytest.approx(expected.log_evidence, abs=1e-6)
    p = fit.predict(own, NEW)["p"]
    assert_allclose(p, expected.predict(gp, NEW)["p"], atol=1e-6)
    assert_allclose(fit.loo()["elpd"], expected.loo()["elpd"], atol=1e-5)
    at_rows, rows = fit.joint_latent_moments([1, 5]), expected.joint_latent_moments([1, 5])
    for found, moment in zip(at_rows, rows, strict=True):
        assert_allclose(found, moment, atol=1e-5)
    read = gpep.from_datatree(fit.to_datatree(), fit.model)
    assert_allclose(read.predict(own, NEW)["p"], p, atol=1e-8)

    for where in ({}, {"Xnew": NEW}):
        drawn, others = (
            each.sample(4000, gp=made, random_seed=3, **where)["posterior"]["f"][0]
            for each, made in ((fit, own), (expected, gp))
        )
        # A few large draws change standard deviations, and not quartiles.
        quartiles = [each.quantile([0.25, 0.5, 0.75], "draw") for each in (drawn, others)]
        spread = quartiles[1][2] - quartiles[1][0]
        assert_allclose((quartiles[0] - quartiles[1]) / spread, 0, atol=0.1)


@pytest.mark.variation
@models.interpreted_sampler
@pytest.mark.usefixtures("known")
def test_samplers_work_with_a_registered_form():
    marginal = gpep.marginalize(make()[0])
    with marginal:
        sampled = pm.sample(25, tune=25, chains=1, cores=1, step=pm.DEMetropolisZ(), progressbar=False, random_seed=1)
    f = gpep.recover_latent(sampled, marginal, random_seed=2, progressbar=False)["posterior"]["f"]
    assert ((f.mean(("chain", "draw")) > 0) == (X[:, 0] > 0)).mean() > 0.8
    with make()[0]:
        step = gpep.samplers.EllipticalSlice(guide="ep")
        g = pm.sample(20, tune=10, chains=1, cores=1, step=step, progressbar=False, random_seed=1)["posterior"]["f"]
    assert_allclose(g.mean(("chain", "draw")), f.mean(("chain", "draw")), atol=1.5)
