"""Searches of fits: they end at the maximum for any units of covariates, and continue from a higher node."""

import warnings

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import minimize

from tests import models

RNG = np.random.default_rng(11)
N, LEVELS = 240, (12, 7)
ONE, OTHER = (RNG.integers(size, size=N) for size in LEVELS)
X = RNG.normal(size=N)
EFFECTS = 0.8 * RNG.normal(size=LEVELS[0])[ONE] + 0.7 * RNG.normal(size=LEVELS[1])[OTHER]
RESPONSES = {
    "poisson": RNG.poisson(np.exp(1.2 + 0.5 * X + EFFECTS)),
    "bernoulli": (RNG.random(N) < 1.0 / (1.0 + np.exp(-0.3 - X - EFFECTS))).astype(int),
    "normal": 2.0 + 0.5 * X + EFFECTS + 0.7 * RNG.normal(size=N),
}


def crossed(kind, scale=1.0, offset=0.0):
    """Two crossed factors and flat priors of coefficients, with a covariate in other units."""
    with pm.Model() as model:
        a, b = pm.Flat("a"), pm.Flat("b")
        log_s, log_t = pm.Flat("log_s"), pm.Flat("log_t")
        u = pm.Normal("u", 0, pm.math.exp(log_s), shape=LEVELS[0])
        v = pm.Normal("v", 0, pm.math.exp(log_t), shape=LEVELS[1])
        f = a + b * (X * scale + offset) + u[ONE] + v[OTHER]
        if kind == "poisson":
            pm.Poisson("y", pm.math.exp(f), observed=RESPONSES[kind])
        elif kind == "bernoulli":
            pm.Bernoulli("y", logit_p=f, observed=RESPONSES[kind])
        else:
            pm.Normal("y", f, pm.math.exp(pm.Flat("log_noise")), observed=RESPONSES[kind])
    return model


FLAT = {"hyperparameters": ["a", "b"]}


def fitted(model, method="laplace", **options):
    with model, warnings.catch_warnings():
        warnings.simplefilter("error")
        return pm.fit(method=method, hyper="map", progressbar=False, random_seed=1, **options)


@pytest.mark.parametrize(("kind", "method"), [("poisson", "laplace"), ("bernoulli", "ep"), ("normal", "laplace")])
def test_flat_slope_of_a_raw_covariate_causes_no_warning(kind, method):
    scale, offset = 1e4, 2000.0
    plain, raw = (fitted(crossed(kind, *units), method, **FLAT) for units in ((), (scale, offset)))
    assert plain.converged
    assert raw.converged
    here, there = plain.hyperparameters, raw.hyperparameters
    assert_allclose(raw.log_evidence, plain.log_evidence, atol=1e-6)
    assert_allclose(there["b"] * scale, here["b"], rtol=1e-6)
    assert_allclose(there["a"] + there["b"] * offset, here["a"], rtol=1e-6, atol=1e-6)
    for name in ("log_s", "log_t"):
        assert_allclose(there[name], here[name], rtol=1e-6, atol=1e-6)


def test_maximum_of_a_normal_model_matches_its_closed_form():
    """The marginal likelihood of a linear mixed model is a normal density, maximised here by SciPy."""
    fit = fitted(crossed("normal", 50.0, 8000.0), **FLAT)
    y = RESPONSES["normal"]
    one, other = np.eye(LEVELS[0])[ONE], np.eye(LEVELS[1])[OTHER]

    def negative(theta):
        a, b, log_s, log_t, log_noise = theta
        covariance = (
            np.exp(2 * log_noise) * np.eye(N) + np.exp(2 * log_s) * one @ one.T + np.exp(2 * log_t) * other @ other.T
        )
        root = np.linalg.cholesky(covariance)
        half = np.linalg.solve(root, y - a - b * X)
        return 0.5 * half @ half + np.log(root.diagonal()).sum() + 0.5 * N * np.log(2 * np.pi)

    expected = minimize(negative, [2.0, 0.5, -0.7, -0.9, -0.4], method="BFGS", options={"gtol": 1e-6})
    found = fit.hyperparameters
    assert fit.log_evidence == pytest.approx(-expected.fun, abs=1e-6)
    b = float(found["b"]) * 50.0
    theta = [
        float(found["a"]) + float(found["b"]) * 8000.0,
        b,
        *(float(found[k]) for k in ("log_s", "log_t", "log_noise")),
    ]
    assert_allclose(theta, expected.x, atol=2e-4)


def test_search_continues_from_a_higher_node():
    """The log density of a hyperparameter has a hill of height 0 at the start, and a hill of height 3 at distance 4."""
    with models.fixed()[0]:
        t = pm.Flat("t", initval=0.0)
        pm.Potential("hills", pm.math.logaddexp(-0.5 * t**2, 3.0 - 0.5 * (t - 4.0) ** 2))
        alone = pm.fit(method="laplace", hyper="map", progressbar=False)
        fit = pm.fit(method="laplace", hyper="grid", progressbar=False)
    assert abs(float(alone.hyperparameters["t"])) < 0.1
    assert float(fit.hyperparameters["t"]) == pytest.approx(4.0, abs=0.01)
    assert fit.trace.best.log_posterior == pytest.approx(alone.trace.best.log_posterior + 3.0, abs=0.01)
    assert fit.converged
    assert "having started again at a higher node" in str(fit)
    assert len(fit.hist) == len(fit.trace.history)


def test_steep_hyperparameters_of_many_rows_converge_without_a_warning():
    """For 3000 rows, slopes in cutpoints of some hundredths do not change the log posterior noticeably."""
    rng = np.random.default_rng(3)
    group, x = rng.integers(20, size=3000), rng.normal(size=3000)
    y = np.digitize(x + rng.normal(size=20)[group] + rng.logistic(size=3000), [-1.0, 0.2, 1.5])
    with pm.Model() as model:
        cut = pm.Normal("cut", 0, 3, shape=3, transform=pm.distributions.transforms.ordered, initval=[-1, 0, 1])
        u = pm.Normal("u", 0, pm.HalfNormal("s", 1), shape=20)
        b = pm.Normal("b", 0, 2)
        pm.OrderedLogistic("y", eta=b * x + u[group], cutpoints=cut, observed=y, compute_p=False)
    fit = fitted(model)
    assert fit.converged
    assert fit.trace.decrement < 1e-5
    for i, deviation in enumerate(fit.trace.deviations):
        beside = fit.trace.best.theta + 0.3 * deviation * np.eye(len(fit.trace.deviations))[i]
        assert fit.log_posterior(beside).log_posterior < fit.trace.best.log_posterior
