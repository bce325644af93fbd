"""Class probabilities of fits with inducing inputs and independent functions, against orthants and draws."""

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose

import pymc_gpep as gpep
from tests import models
from tests.reference.orthant import orthant_probabilities

X, Y = models.data()
NEW = np.random.default_rng(0).uniform(-2, 2, size=(4, 2))
EPSILON = 0.03
LIKELIHOODS = {
    "probit": lambda f: gpep.MultinomialProbit("y", f, observed=Y),
    "probit with label noise": lambda f: gpep.MultinomialProbit("y", f, epsilon=EPSILON, observed=Y),
    "step": lambda f: gpep.RobustMax("y", f, EPSILON, observed=Y),
}
WAYS = [
    ("sparse_ep", "probit", {"sites": "quadrature"}),
    ("sparse_ep", "probit with label noise", {}),
    ("sparse_ep", "step", {}),
    ("sparse_vi", "step", {}),
    ("gfitc", "step", {}),
]


@pytest.fixture(scope="module", params=WAYS, ids=lambda way: f"{way[0]} of the {way[1]}")
def predicted(request):
    """At new inputs: moments of the utilities, and probabilities without and with label noise."""
    method, likelihood, options = request.param
    with pm.Model():
        gp = pm.gp.Latent(cov_func=9 * pm.gp.cov.ExpQuad(2, ls=0.7) + pm.gp.cov.WhiteNoise(0.5))
        LIKELIHOODS[likelihood](gp.prior("f", X=X, n_outputs=3).T)
        fit = pm.fit(
            method=method, gp=gp, inducing=6, learn_inducing=False, random_seed=1, progressbar=False, **options
        )
    found = fit.predict(gp, NEW)
    mean, cov, p = (found[name].values for name in ("mean", "cov", "p"))
    assert not cov[:, ~np.eye(3, dtype=bool)].any()
    epsilon = 0.0 if likelihood == "probit" else EPSILON
    noise = 0.0 if likelihood == "step" else 1.0
    return mean, cov + noise * np.eye(3), (p - epsilon / 3) / (1 - epsilon), p


def test_probabilities_sum_to_one(predicted):
    assert_allclose(predicted[-1].sum(axis=1), 1.0, rtol=0, atol=1e-9)


def test_probabilities_equal_orthant_probabilities(predicted):
    """A one-dimensional rule computes the probabilities. References are orthants of differences of functions."""
    for mean, cov, p, _ in zip(*predicted, strict=True):
        assert_allclose(p, orthant_probabilities(mean, cov, 1e-12), rtol=0, atol=1e-6)


@pytest.mark.variation(but=["sparse_vi of the step"])
def test_probabilities_match_frequencies_of_draws(predicted):
    rng, draws = np.random.default_rng(5), 1_000_000
    for mean, cov, p, _ in zip(*predicted, strict=True):
        utilities = mean + np.sqrt(np.diag(cov)) * rng.standard_normal((draws, 3))
        shares = np.bincount(utilities.argmax(axis=1), minlength=3) / draws
        assert (np.abs(shares - p) < 4.0 * np.sqrt(p * (1.0 - p) / draws) + 1e-6).all()
