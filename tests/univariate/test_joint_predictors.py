"""Several observed variables that share effects. Some have several linear predictors."""

from functools import cache

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose
from scipy import stats

import pymc_gpep as gpep
from pymc_gpep.approximations import EPPredictors, KLPredictors, LaplacePredictors
from pymc_gpep.gaussians.row_prior import RowPrior
from pymc_gpep.reading import read_classifier
from pymc_gpep.univariate.predictors import ANY_PREDICTORS, StackedPredictors, of_common_functions
from tests.reference.laplace_of_model import laplace_of_model

J, EACH = 5, 6
GROUP, COUNTED = np.repeat(np.arange(J), EACH), np.repeat(np.arange(J), 2)
RNG = np.random.default_rng(3)
U, V = 0.6 * RNG.normal(size=J), 0.4 * RNG.normal(size=J)
SEEN = 1.0 + U[GROUP] + np.exp(-0.3 + V[GROUP]) * RNG.normal(size=J * EACH)
COUNTS = RNG.poisson(np.exp(0.5 + 0.8 * U[COUNTED]))
LATENT = ("a", "s", "d", "u", "v")


def build(near=None):
    """Return a model of a normal variable with groups in location and scale, and of counts with the same groups."""
    with pm.Model() as model:
        group, counted = pm.Data("group", GROUP), pm.Data("counted", COUNTED)
        sd = pm.HalfNormal("sd", 1.0, shape=2)
        a, s, d = pm.Normal("a", 0.0, 2.0), pm.Normal("s", 0.0, 1.0), pm.Normal("d", 0.0, 1.0)
        u, v = pm.Normal("u", 0.0, sd[0], shape=J), pm.Normal("v", 0.0, sd[1], shape=J)
        pm.Normal("y", a + u[group], pm.math.exp(s + v[group]), observed=SEEN)
        pm.Poisson("c", pm.math.exp(d + 0.8 * u[counted]), observed=COUNTS)
        if near == "potential":
            pm.Potential("near", -0.5 * pm.math.sum((u / 0.5) ** 2))
        elif near == "observed":
            pm.Normal("near", u, 0.5, observed=np.zeros(J))
    return model


@cache
def fit_of(method, near=None, *steps):
    with (model := build(near)):
        return model, pm.fit(*steps, method=method, hyper="map", progressbar=False)


def laplace_of(fit, near=None):
    """Laplace's approximation near the mode of a fit, at its hyperparameters, and the fit's mode."""
    found = fit.effects(list(LATENT))
    mean = np.concatenate([np.ravel(found[v].sel(moment="mean")) for v in LATENT])
    return laplace_of_model(build(near), LATENT, fit.hyperparameters, mean), mean


def test_evidence_matches_the_log_density_of_the_model():
    _, fit = fit_of("laplace")
    exact, mean = laplace_of(fit)
    assert_allclose(fit.solution.evidence, exact.evidence, rtol=0.0, atol=1e-5)
    assert_allclose(mean, exact.mode, rtol=0.0, atol=1e-5)


@pytest.mark.variation
def test_potential_is_a_term_of_the_evidence():
    _, fit = fit_of("laplace", "potential")
    exact, mean = laplace_of(fit, "observed")
    constant = J * stats.norm.logpdf(0.0, 0.0, 0.5)
    assert_allclose(fit.solution.evidence, exact.evidence - constant, rtol=0.0, atol=1e-5)
    assert_allclose(mean, exact.mode, rtol=0.0, atol=1e-5)


@pytest.mark.variation(but=["laplace"])
@pytest.mark.filterwarnings("ignore:.*did not converge:RuntimeWarning")
@pytest.mark.parametrize("method", ["laplace", "ep", "kl"])
def test_gradient_matches_differences(method):
    _, fit = fit_of("laplace") if method == "laplace" else fit_of(method, None, 1)
    direction = np.random.default_rng(1).normal(size=fit.theta.size)
    log_posterior, theta, step = fit.log_posterior, fit.theta + 0.2 * direction, 1e-4 if method == "laplace" else 1e-3
    low, high = (log_posterior(log_posterior.theta(theta + h * direction)).log_posterior for h in (-step, step))
    found = log_posterior(log_posterior.theta(theta)).gradient @ direction
    assert_allclose(found, (high - low) / (2.0 * step), rtol=1e-5, atol=1e-6 if method == "laplace" else 5e-5)


def test_predictions_name_a_response():
    _, fit = fit_of("laplace")
    assert isinstance(fit.solution.likelihood, StackedPredictors)
    effects = fit.effects(["a", "d", "u"]).sel(moment="mean")
    found = fit.predict(data={"counted": [1, 4]}, response="c")
    expected = float(effects["d"]) + 0.8 * effects["u"].values[[1, 4]]
    assert_allclose(found["mean"].values[:, 0], expected, atol=1e-8)
    assert_allclose(found["c_mean"], np.exp(expected + 0.5 * found["cov"].values[:, 0, 0]), rtol=1e-6)
    found = fit.predict(data={"group": [1, 4]}, response="y")
    assert_allclose(found["y_mean"], float(effects["a"]) + effects["u"].values[[1, 4]], atol=1e-6)
    assert list(found["predictor"].values) == ["a + u", "s + v"]


@pytest.mark.variation
def test_loo_draws_importance_and_files_work():
    model, fit = fit_of("laplace")
    assert np.isfinite(fit.loo(progressbar=False).elpd_i).all()
    assert fit.sample(20, random_seed=1)["posterior"]["u"].shape == (1, 20, J)
    error = fit.importance(300, random_seed=1)
    assert error.log_evidence == pytest.approx(fit.log_evidence, abs=1.5)
    again = gpep.from_datatree(fit.to_datatree(), model)
    assert_allclose(again.effects().to_array(), fit.effects().to_array(), atol=1e-8)


@pytest.mark.parametrize("method", [EPPredictors(tolerance=1e-8), KLPredictors(tolerance=1e-8), LaplacePredictors()])
def test_evidence_of_unrelated_variables_is_the_sum_of_their_log_evidences(method):
    seen = np.array([0.3, 2.2, -1.0]), np.array([2, 0])
    with pm.Model() as model:
        f, g, h = (pm.Normal(name, shape=n) for name, n in (("f", 3), ("g", 3), ("h", 2)))
        pm.Normal("y", f, pm.math.exp(g), observed=seen[0])
        pm.Poisson("c", pm.math.exp(h), observed=seen[1])
    apart = [ANY_PREDICTORS.read(model[name], {f, g, h}) for name in ("y", "c")]
    readings = of_common_functions(apart)
    assert [each.likelihood.predictors for each in readings] == [("f", "g"), ("h", "(2, unused)")]
    stack = StackedPredictors(parts=tuple(each.likelihood for each in readings), counts=(1, 1))
    parameters = np.array([[0.0, 0.0, 0.0, 1.0, 1.0], np.zeros(5)])
    roots = np.zeros((2, 5, 8))
    roots[0, :3, :3], roots[1, :3, 3:6] = np.eye(3) + 0.3, 0.5 * np.eye(3) + 0.1
    roots[0, 3:, 6:] = [[0.8, 0.0], [0.4, 0.7]]
    mean = np.zeros((2, 5))
    whole = method.solve(roots, mean, np.concatenate(seen), likelihood=stack.given(parameters), prior_type=RowPrior)
    assert whole.convergence.converged
    normal = apart[0].likelihood.given(np.zeros((1, 3)))
    location = method.solve(roots[:, :3, :6].copy(), mean[:, :3], seen[0], likelihood=normal, prior_type=RowPrior)
    counts = readings[1].likelihood.given(np.zeros((1, 2)))
    rate = method.solve(roots[:, 3:, 6:].copy(), mean[:, 3:], seen[1], likelihood=counts, prior_type=RowPrior)
    assert whole.evidence == pytest.approx(location.evidence + rate.evidence, abs=1e-6)
    assert_allclose(whole.mean, np.concatenate([location.mean, rate.mean], axis=1), atol=1e-6)
    assert_allclose(whole.cov, np.concatenate([location.cov, rate.cov]), atol=1e-6)
    assert_allclose(rate.mean[1], 0.0, atol=1e-12)


def test_variables_of_one_predictor_each_have_one_function():
    with pm.Model() as model:
        a, u = pm.Normal("a", 0.0, 2.0), pm.Normal("u", shape=J)
        pm.Normal("y", a + u[GROUP], 0.5, observed=SEEN)
        pm.Poisson("c", pm.math.exp(u[COUNTED]), observed=COUNTS)
    assert not isinstance(read_classifier(model, predictors=True).likelihood_model, StackedPredictors)
