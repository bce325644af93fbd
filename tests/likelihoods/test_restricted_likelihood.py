"""Normal responses with nearly flat priors of the coefficients: the evidence is the restricted likelihood, scaled."""

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose

RNG = np.random.default_rng(2)
GROUP = np.repeat(np.arange(6), 4)
DAYS = np.tile(np.arange(4.0), 6)
Y = 5.0 + 2.0 * DAYS + (3.0 * RNG.normal(size=6))[GROUP] + RNG.normal(size=24)
SPREAD, NOISE, FLAT = 2.5, 1.2, 2e3


@pytest.mark.parametrize("method", ["ep", "laplace", "kl"])
def test_restricted_likelihood_and_standard_errors_match_formulas(method):
    with pm.Model():
        b = pm.Normal("b", 0, FLAT, shape=2)
        u = pm.Normal("u", 0, SPREAD, shape=6)
        pm.Normal("y", b[0] + b[1] * DAYS + u[GROUP], NOISE, observed=Y)
        fit = pm.fit(method=method, progressbar=False)
    x = np.column_stack([np.ones(24), DAYS])
    v = NOISE**2 * np.eye(24) + SPREAD**2 * (GROUP[:, None] == GROUP)
    information = x.T @ np.linalg.solve(v, x)
    best = np.linalg.solve(information, x.T @ np.linalg.solve(v, Y))
    rest = Y - x @ best
    terms = 22 * np.log(2 * np.pi) + np.linalg.slogdet(v)[1] + np.linalg.slogdet(information)[1]
    restricted = -0.5 * (terms + rest @ np.linalg.solve(v, rest))
    constant = 2 * np.log(FLAT) + np.log(2 * np.pi)
    assert fit.log_evidence + constant == pytest.approx(restricted, abs=1e-5)
    assert_allclose(fit.mean_data["b"], best, rtol=1e-5)
    assert_allclose(fit.std_data["b"], np.sqrt(np.linalg.inv(information).diagonal()), rtol=1e-5)
