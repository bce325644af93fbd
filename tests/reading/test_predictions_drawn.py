"""Unobserved outcomes of a model are drawn by a fit. Other results do not change."""

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.reading import read_classifier

_rng = np.random.default_rng(0)
ERRORS = _rng.uniform(0.1, 0.3, 9)
EFFECTS = _rng.normal(0.2, 0.5, 9)


def studies(predicts):
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 0.5), pm.HalfNormal("tau", 0.5)
        theta = pm.Normal("theta", mu, tau, shape=9)
        pm.Normal("y", theta, ERRORS, observed=EFFECTS)
        if predicts:
            new = pm.Normal("theta_new", mu, tau)
            pm.Normal("y_new", new, 0.2)
            pm.Normal("of_scale", 0, tau)
            pm.Deterministic("better", new > theta[0])
    return model


@pytest.fixture(scope="module")
def fit():
    return pm.fit(method="ep", model=studies(True), hyper="map", progressbar=False)


def test_unobserved_outcomes_do_not_change_the_evidence(fit):
    alone = pm.fit(method="ep", model=studies(False), hyper="map", progressbar=False)
    assert fit.log_evidence == alone.log_evidence
    assert [rv.name for rv in fit.classifier.hyperparameters] == ["tau"]


def test_draws_of_unobserved_outcomes_follow_the_prior_given_their_parameters(fit):
    drawn = fit.sample(4000, random_seed=1).posterior
    tau = float(drawn["tau"][0, 0])  # at its maximum
    assert_allclose((drawn["theta_new"] - drawn["mu"]).std(), tau, rtol=0.05)
    assert_allclose(drawn["of_scale"].std(), tau, rtol=0.05)
    assert_allclose((drawn["y_new"] - drawn["theta_new"]).std(), 0.2, rtol=0.05)
    assert (drawn["better"] == (drawn["theta_new"] > drawn["theta"][..., 0])).all()


def test_unobserved_variable_named_as_hyperparameter_stays_a_hyperparameter():
    found = read_classifier(studies(True), hyperparameters=["of_scale"], starts=True)
    assert [rv.name for rv in found.hyperparameters] == ["tau", "of_scale"]
