"""Data of new rows: number of rows from parameters of the likelihood, and inputs of a process by name."""

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr
from numpy.testing import assert_allclose

import pymc_gpep as gpep

N = 20
RNG = np.random.default_rng(11)
X = RNG.uniform(0.0, 4.0, (N, 2))
HOURS, GROUP = RNG.uniform(0.5, 2.0, N), np.arange(N) % 3
COUNTS = RNG.poisson(HOURS)
Y = RNG.normal(size=N)
BINARY = (X[:, 0] > 2.0).astype(int)
NEW = X[:3] + 0.1


@pytest.fixture(scope="module")
def by_hours():
    with pm.Model():
        hours = pm.Data("hours", HOURS)
        pm.Poisson("y", pt.exp(pm.Normal("level", 0, 1)) * hours, observed=COUNTS)
        return pm.fit(method="ep", progressbar=False)


def test_prediction_has_a_row_for_each_entry_of_the_exposure(by_hours):
    hours = np.array([1.0, 2.0, 0.5])
    found = by_hours.predict(data={"hours": hours}, quantiles=[0.5], observed=[0, 1, 2], progressbar=False)
    # Posterior of the level by quadrature: N(0, 1) times the likelihood of a sum of counts.
    level = np.linspace(-4.0, 3.0, 20_001)
    density = np.exp(-0.5 * level**2 + COUNTS.sum() * level - HOURS.sum() * np.exp(level))
    density /= density.sum()
    assert_allclose(found["y_mean"], hours * (density @ np.exp(level)), rtol=1e-3)
    assert found.sizes["new_point"] == found["log_density"].size == found["y_quantile"].shape[0] == 3


def test_predictions_from_draws_have_a_row_for_each_exposure(by_hours):
    draws = by_hours.sample(40, random_seed=1)
    model = by_hours.classifier.model
    found = gpep.predict_draws(draws, data={"hours": [1.0, 2.0]}, model=model, progressbar=False)
    rate = np.exp(draws["posterior"]["level"].values).mean()
    assert_allclose(found["y_mean"], [rate, 2 * rate], rtol=1e-8)


def test_single_new_value_of_an_effect_is_repeated_for_all_trials():
    with pm.Model():
        x, trials = pm.Data("x", X[:, 0]), pm.Data("trials", np.full(N, 5))
        pm.Binomial("y", n=trials, logit_p=pm.Normal("slope", 0, 1) * x, observed=np.minimum(COUNTS, 5))
        fit = pm.fit(method="laplace", progressbar=False)
    found = fit.predict(data={"x": 0.5, "trials": [1, 4]}, progressbar=False)
    assert_allclose(found["y_mean"][1], 4 * found["y_mean"][0], rtol=1e-8)
    other = fit.predict(data={"x": [0.5, 0.7], "trials": [4]}, progressbar=False)
    assert_allclose(other["y_mean"][0], found["y_mean"][1], rtol=1e-8)
    with pytest.raises(TypeError, match=r"needs the data of the new rows: fit\.predict\(data=\{'x': \.\.\.\}\)"):
        fit.predict(data={"trials": [1, 4]}, progressbar=False)


def test_groups_of_the_noise_determine_new_rows_and_groups_outside_the_model_are_refused():
    sd = np.array([0.5, 1.0, 1.5])
    with pm.Model():
        group, table = pm.Data("group", GROUP), pm.Data("table", np.ones(3))
        pm.Normal("y", pm.Normal("level", 0, 1) + table.sum(), pt.constant(sd)[group], observed=Y)
        fit = pm.fit(method="laplace", progressbar=False)
    found = fit.predict(data={"group": [0, 1, 2, 1]}, progressbar=False)
    assert_allclose(found["y_variance"] - found["variance"], sd[[0, 1, 2, 1]] ** 2, rtol=1e-6)
    with pytest.raises(ValueError, match="It must contain positions, whole numbers from 0 to 2"):
        fit.predict(data={"group": ["a"]}, progressbar=False)
    for wrong in (-1, 3):
        with pytest.raises(
            ValueError, match=rf"'group'\] has {wrong}, but parameters of the likelihood of 'y' have values"
        ):
            fit.predict(data={"group": [0, wrong]}, progressbar=False)


def process(written, method="ep", **options):
    with pm.Model():
        gp = pm.gp.Latent(cov_func=9.0 * pm.gp.cov.ExpQuad(2, ls=1.0))
        f = gp.prior("f", X=written())
        pm.Bernoulli("y", logit_p=f, observed=BINARY)
        return pm.fit(method=method, progressbar=False, **options), gp


@pytest.mark.parametrize("method", ["ep", "sparse_ep"])
def test_inputs_of_a_process_are_accepted_by_name(method):
    fit, gp = process(lambda: pm.Data("X", X), method, **({"inducing": 4} if method == "sparse_ep" else {}))
    expected = fit.predict(NEW, progressbar=False)
    for found in (
        fit.predict(data={"X": NEW}, progressbar=False),
        fit.predict(gp, data={"X": NEW}, progressbar=False),
        fit.predict(data={"X": NEW[0]}, progressbar=False),
    ):
        assert_allclose(found["mean"], expected["mean"][: found.sizes["new_point"]], rtol=1e-12)
        assert_allclose(found["p"], expected["p"][: found.sizes["new_point"]], rtol=1e-12)
    with pytest.raises(TypeError, match=r"Xnew and data\['X'\] are the same inputs"):
        fit.predict(NEW, data={"X": NEW}, progressbar=False)


def test_inputs_with_one_column_are_accepted_as_a_vector():
    with pm.Model():
        f = pm.gp.Latent(cov_func=9.0 * pm.gp.cov.ExpQuad(1, ls=1.0)).prior("f", X=pm.Data("x", X[:, 0])[:, None])
        pm.Bernoulli("y", logit_p=f, observed=BINARY)
        fit = pm.fit(method="ep", progressbar=False)
    expected = fit.predict(NEW[:, :1], progressbar=False)
    assert_allclose(fit.predict(data={"x": NEW[:, 0]}, progressbar=False)["mean"], expected["mean"], rtol=1e-12)


def test_new_inputs_are_scaled_within_the_model():
    fit, _ = process(lambda: (pm.Data("X", X) - 1.0) / 2.0)
    plain, _ = process(lambda: pm.Data("X", (X - 1.0) / 2.0))
    found = fit.predict(data={"X": NEW}, progressbar=False)
    assert_allclose(found["mean"], plain.predict((NEW - 1.0) / 2.0, progressbar=False)["mean"], rtol=1e-8)


def test_distant_inputs_given_by_name_cause_a_warning():
    fit, _ = process(lambda: pm.Data("X", X))
    with pytest.warns(UserWarning, match="1 of 2 rows of Xnew is further"):
        fit.predict(data={"X": [[1.0, 1.0], [90.0, 90.0]]}, progressbar=False)


def test_exposure_determines_the_number_of_rows_for_a_single_input():
    with pm.Model():
        f = pm.gp.Latent(cov_func=9.0 * pm.gp.cov.ExpQuad(2, ls=1.0)).prior("f", X=pm.Data("X", X))
        pm.Poisson("y", pt.exp(f) * pm.Data("hours", HOURS), observed=COUNTS)
        fit = pm.fit(method="laplace", progressbar=False)
    found = fit.predict(data={"X": NEW[:1], "hours": [1.0, 3.0]}, progressbar=False)
    assert_allclose(found["y_mean"][1], 3 * found["y_mean"][0], rtol=1e-8)


def test_data_of_effects_and_data_of_noise_have_equal_checks():
    with pm.Model():
        x, width = pm.Data("x", X), pm.Data("width", X)
        mean = x @ pm.Normal("slope", 0, 1, shape=2)
        pm.Normal("y", mean, pt.exp(width[:, 1] - 2.0), observed=Y)
        fit = pm.fit(method="laplace", progressbar=False)
    whole = np.full((2, 2), 0.5)
    each = fit.predict(data={"x": whole, "width": whole}, progressbar=False)
    assert_allclose(each["y_variance"] - each["variance"], np.exp(2 * (0.5 - 2.0)), rtol=1e-6)
    for name in ("x", "width"):
        by_number = fit.predict(data={"x": whole, "width": whole} | {name: 0.5}, progressbar=False)
        assert_allclose(by_number["y_variance"], each["y_variance"], rtol=1e-12)
        wrong = {"x": whole, "width": whole} | {name: np.ones((2, 3))}
        with pytest.raises(ValueError, match=rf"'{name}'\] must be numbers of shape \(rows, 2\), .* shape \(2, 3\)"):
            fit.predict(data=wrong, progressbar=False)


def test_data_frame_may_have_columns_that_the_model_lacks():
    with pm.Model():
        x, group = pm.Data("x", np.arange(len(Y), dtype=float)), pm.Data("group", GROUP.astype("int8"))
        pm.Normal("y", pm.Normal("level", shape=3)[group] + pm.Normal("slope") * x, 1.0, observed=Y)
        fit = pm.fit(method="laplace", progressbar=False)
    expected = fit.predict(data={"x": [0.5, 1.0], "group": [0, 2]})
    frame = pd.DataFrame({"who": ["a", "b"], "group": pd.array([0, 2], dtype="Int64"), "x": [0.5, 1.0]})
    for data in (frame, frame[["x", "group"]].astype(float).to_xarray()):
        xr.testing.assert_equal(fit.predict(data=data), expected)
    with pytest.raises(ValueError, match="Columns of data are 'who', and data of the model are 'x', 'group'"):
        fit.predict(data=frame[["who"]])


def test_minibatches_are_refused_with_advice():
    with pm.Model():
        x, y = pm.Minibatch(np.arange(len(Y), dtype=float), Y, batch_size=2)
        pm.Normal("y", pm.Normal("slope") * x, 1.0, observed=y, total_size=len(Y))
        with pytest.raises(gpep.StructureError, match=r"'y' is scaled by total_size=.*Observe all rows without"):
            pm.fit(method="laplace", progressbar=False)
