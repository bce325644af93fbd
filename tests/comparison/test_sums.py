"""Comparisons of fits and draws of sums of effects, and predictions from draws."""

import numpy as np
import pandas as pd
import pymc as pm
import pytest
from numpy.testing import assert_allclose
from scipy.stats import norm

import pymc_gpep as gpep

RNG = np.random.default_rng(3)
N = 20
X, GROUP = RNG.uniform(-1, 1, N), np.arange(N) % 4
Y = X + 0.4 * RNG.normal(size=N)
NEW = {"x": [0.5, -0.2, 0.1], "group": [0, 3, 1]}
NOISE = 0.5


@pytest.fixture(scope="module")
def results():
    with pm.Model() as model:
        x, group = pm.Data("x", X), pm.Data("group", GROUP)
        s = pm.HalfNormal("s", 1.0)
        slope, u = pm.Normal("slope", 0, 1), pm.Normal("u", 0, s, shape=4)
        pm.Normal("y", slope * x + u[group], NOISE, observed=Y)
        fits = {method: pm.fit(method=method, hyper="map", progressbar=False) for method in ("ep", "laplace")}
        draws = fits["ep"].sample(2000, random_seed=1)
    return model, fits | {"draws": draws}


@pytest.mark.filterwarnings("ignore:Hyperparameters stay at their maximum")
def test_draws_and_fits_of_sums_are_compared(results):
    _, named = results
    table = gpep.compare_methods(named, "ep", data=pd.DataFrame(NEW), ynew=[0.4, 0.0, 0.1], random_seed=1)
    assert_allclose(table["mlpd"]["laplace"], table["mlpd"]["ep"], atol=1e-6)
    assert_allclose(table["mlpd"]["draws"], table["mlpd"]["ep"], atol=0.01)
    assert_allclose(table["squared_error"]["draws"], table["squared_error"]["ep"], atol=0.01)
    assert table["latent_mean_difference"]["draws"] < 0.02
    assert table["outcome_difference"]["draws"] < 0.02


def test_predictions_from_draws_average_the_linear_predictor(results):
    model, named = results
    observed = np.array([0.4, 0.0, 0.1])
    frame, options = pd.DataFrame(NEW), {"model": model, "draws": 100, "progressbar": False}
    found = gpep.predict_draws(named["draws"], data=frame, observed=observed, **options)
    posterior = named["draws"]["posterior"].isel(chain=0)
    chosen = np.unique(np.linspace(0, 1999, 100).astype(int))
    f = posterior["slope"].values[chosen, None] * NEW["x"] + posterior["u"].values[chosen][:, NEW["group"]]
    assert_allclose(found["y_mean"], f.mean(axis=0), atol=1e-10)
    assert_allclose(found["y_variance"], f.var(axis=0) + NOISE**2, atol=1e-10)
    assert_allclose(found["log_density"], np.log(norm.pdf(observed, f, NOISE).mean(axis=0)), atol=1e-10)


def test_evidence_grids_score_sums(results):
    model, named = results
    at = named["ep"].hyperparameters["s"]
    scored = {"data": pd.DataFrame(NEW), "ynew": [0.4, 0.0, 0.1]}
    found = gpep.diagnostics.evidence_grid(model, {"s": [float(at)]}, **scored, progressbar=False)
    with model:
        expected = named["ep"].predict(data=NEW, observed=[0.4, 0.0, 0.1])["log_density"].mean()
    assert_allclose(found["mlpd"], float(expected), atol=1e-6)


def test_missing_arguments_are_named(results):
    model, named = results
    with pytest.raises(ValueError, match=r"give Xnew=\.\.\., or data=\{\.\.\.\} for a sum of effects"):
        gpep.compare_methods(named, "ep", ynew=[0.4])
    with pytest.raises(TypeError, match=r"not a Fit\. Give results by name: compare_methods\(\{'ep': fit"):
        gpep.compare_methods(named["ep"], named["laplace"])
    with pytest.raises(TypeError, match=r"not a list\. Give several results by name, such as \{'EP': fit\}"):
        gpep.compare_methods([named["ep"]], "ep")
    with pytest.raises(TypeError, match=r"needs new data: data=\{\.\.\.\} in place of Xnew"):
        gpep.predict_draws(named["draws"], [[0.5]], model=model)
    with pytest.raises(ValueError, match="Give 'group' as well"):
        gpep.predict_draws(named["draws"], data={"x": NEW["x"]}, model=model)
    without = named["draws"].copy()
    without["posterior"] = without["posterior"].to_dataset().drop_vars("u")
    with pytest.raises(ValueError, match=r"lacks draws of 'u'\. If .* add these draws by gpep\.recover_latent"):
        gpep.predict_draws(without, data=NEW, model=model)
