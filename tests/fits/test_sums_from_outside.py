"""Sums of effects from a user's view: wide priors, mistakes in models, and messages."""

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from numpy.testing import assert_allclose

import pymc_gpep as gpep
from pymc_gpep.graphs.errors import StructureError

rng = np.random.default_rng(4)
N = 40
X, Y = rng.normal(size=N), rng.integers(0, 2, size=N)
GROUP = rng.integers(0, 4, size=N)


def logistic_mode(prior_sd):
    """Mode and covariance of level and slope by Newton's method, in units of the coefficients."""
    design = np.column_stack([np.ones(N), X])
    at = np.zeros(2)
    for _ in range(50):
        p = 1 / (1 + np.exp(-design @ at))
        cov = np.linalg.inv(np.eye(2) / prior_sd**2 + (design.T * p * (1 - p)) @ design)
        at = at + cov @ (design.T @ (Y - p) - at / prior_sd**2)
    return at, cov


@pytest.mark.parametrize("prior_sd", [2.0, 1e4])
def test_effects_with_wide_priors_keep_digits(prior_sd):
    with pm.Model():
        level, slope = pm.Normal("level", 0, prior_sd), pm.Normal("slope", 0, prior_sd)
        pm.Bernoulli("y", logit_p=level + slope * X, observed=Y)
        fit = pm.fit(method="laplace", progressbar=False)
    mode, cov = logistic_mode(prior_sd)
    found = fit.effects(["level", "slope"])
    assert_allclose([found["level"][0], found["slope"][0]], mode, atol=1e-6)
    assert_allclose([found["level"][1], found["slope"][1]], np.sqrt(cov.diagonal()), rtol=1e-5)
    contrast = fit.contrast({"both": {"level": 1.0, "slope": 1.0}})
    assert_allclose(contrast["sd"], np.sqrt(cov.sum()), rtol=1e-5)
    draws = fit.sample(4000, random_seed=1).posterior
    assert_allclose(np.cov(draws["level"][0], draws["slope"][0]), cov, atol=0.1 * cov.diagonal().max())


@pytest.fixture(scope="module")
def fit():
    with pm.Model(coords={"group": list("abcd")}):
        u = pm.Normal("u", 0, 1, dims="group")
        x = pm.Data("x", X)
        pm.Bernoulli("y", logit_p=u[GROUP] * x, observed=Y)
        return pm.fit(method="laplace", progressbar=False)


@pytest.mark.parametrize("wanted", [{}, "u", {"a": 1.0}, {"a": "u"}])
def test_contrast_without_weights_raises_type_error(wanted, fit):
    with pytest.raises(TypeError, match="contrasts must be a dict of names to weights of variables, as in"):
        fit.contrast(wanted)


def test_unknown_names_are_refused(fit):
    with pytest.raises(ValueError, match=r"'u' has no entry 'e', only 'a', 'b', 'c', 'd'.$"):
        fit.contrast({"one": {"u": {"e": 1}}})
    with pytest.raises(ValueError, match="effects needs the name of a variable"):
        fit.effects([])
    with pytest.raises(ValueError, match="data names 'z', but 'y' depends on the data 'x'"):
        fit.predict(data={"x": 1.0, "z": 1.0}, progressbar=False)


def test_errors_for_models_without_data_advise_pm_data():
    with pm.Model():
        u = pm.Normal("u", 0, 1, shape=4)
        pm.Bernoulli("y", logit_p=u[GROUP] * X, observed=Y)
        fit = pm.fit(method="laplace", progressbar=False)
    declare = "the covariates of the rows (are declared )?as pm.Data"
    with pytest.raises(TypeError, match=f"not an argument of latent functions that are sums. Give .* {declare}"):
        fit.predict(X[:3, None], progressbar=False)
    with pytest.raises(ValueError, match=f"data names 'z', .* depends on no data .* Declare {declare}"):
        fit.predict(data={"z": 1.0}, progressbar=False)
    with pytest.raises(ValueError, match=f"'u' depend on no data 'z', nor on other data. Declare {declare}"):
        fit.effects("u", data={"z": [1.0]})


def of_missing_values():
    x = X.copy()
    x[3] = np.nan
    return pm.Normal("b", 0, 1) * x


MISTAKES = {
    "missing values": (of_missing_values, r"'y' is not finite in row 3 of 40\."),
    "standard deviation": (lambda: pm.Normal("u", 0, -1.0, shape=4)[GROUP], r"'u' \(Normal\) has the .* deviation -1"),
    "unknown deviation": (lambda: pm.Normal("u", 0, [1, 1, 1, np.nan])[GROUP], r"'u' \(Normal\) has the .* nan"),
    "squares": (lambda: pm.math.sum(pm.Normal("u", 0, 1, shape=4)[:2] ** 2) * X, r"of it\. The model as it is"),
    "truncated to integers": (lambda: pm.Normal("u", 0, 3, shape=4).astype("int64")[GROUP], "'y' is a Bernoulli, but"),
}


@pytest.mark.parametrize(("argument", "message"), MISTAKES.values(), ids=MISTAKES)
def test_misspelt_names_get_suggestions(argument, message):
    with pm.Model():
        pm.Bernoulli("y", logit_p=argument(), observed=Y)
        with pytest.raises(StructureError, match=message):
            pm.fit(method="laplace", progressbar=False)


def test_gaussian_variables_truncated_to_integers_are_refused_for_any_distribution():
    with pm.Model():
        u = pm.Normal("u", 0, 3, shape=4).astype("int64")[GROUP]
        pm.StudentT("y", nu=4, mu=u, sigma=1, observed=1.0 * Y)
        with pytest.raises(StructureError, match="no likelihood to read"):
            pm.fit(method="laplace", progressbar=False)


def test_data_in_single_precision_are_accepted():
    with pm.Model():
        u = pm.Normal("u", 0, 1, shape=4)
        pm.Bernoulli("y", logit_p=u.astype("float32")[GROUP], observed=Y)
        found = pm.fit(method="laplace", progressbar=False).effects("u")
    with pm.Model():
        u = pm.Normal("u", 0, 1, shape=4)
        pm.Bernoulli("y", logit_p=u[GROUP], observed=Y)
        expected = pm.fit(method="laplace", progressbar=False).effects("u")
    assert_allclose(found["u"], expected["u"], atol=1e-5)


def test_loaded_fit_keeps_named_hyperparameters():
    x = np.linspace(-1, 1, 10)
    with pm.Model() as model:
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0)).prior("f", X=x[:, None])
        slope = pm.Normal("slope", 0, 1)
        pm.Poisson("y", mu=pm.math.exp(f + slope * x), observed=np.arange(10) % 3)
        fit = pm.fit(method="ep", hyperparameters=["slope"], progressbar=False)
    read = gpep.from_datatree(fit.to_datatree(), model)
    assert [rv.name for rv in read.classifier.hyperparameters] == ["slope"]
    assert read.log_evidence == pytest.approx(fit.log_evidence, abs=1e-9)


@pytest.mark.variation
def test_recovered_draws_keep_their_digits_under_wide_priors():
    with pm.Model() as model:
        s = pm.HalfNormal("s", 1)
        a, u = pm.Normal("a", 0, 1e4), pm.Normal("u", 0, s, shape=4)
        pm.Bernoulli("y", logit_p=a + u[np.arange(24) % 4], observed=np.arange(24) % 5 < 3)
        fit = pm.fit(method="ep", hyper="map", progressbar=False)
    values = np.full((1, 400), float(fit.hyperparameters["s"]))
    draws = xr.Dataset({"s": (("chain", "draw"), values)}, {"chain": [0], "draw": np.arange(400)})
    marginal = gpep.marginalize(model, "ep")
    tree = xr.DataTree.from_dict({"posterior": draws})
    found = gpep.recover_latent(tree, marginal, random_seed=1, progressbar=False)["posterior"]["a"].values
    mean, sd = fit.effects("a")["a"].values
    assert abs(found.mean() - mean) < 4 * sd / 20
    assert_allclose(found.std(), sd, rtol=0.15)
