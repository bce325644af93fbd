"""Fits with missing responses, against fits of the rows with a response."""

import warnings
from contextlib import nullcontext

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr
from numpy.testing import assert_allclose, assert_array_equal

import pymc_gpep as gpep
from pymc_gpep.graphs.interpreted import evaluate
from pymc_gpep.reading import StructureError, read_classifier
from tests.graph_modes import rewritten
from tests.sum_models import BINARY, COUNTS, GROUP, HOURS, KINDS, XY, J, N, X

pytestmark = pytest.mark.filterwarnings("ignore:The fit learned next to nothing:UserWarning")

GONE = np.isin(np.arange(N), (2, 11, 25))
KEPT = ~GONE
ROWS = np.arange(N) + 100


def binary(rows, y):
    where, floor = pm.Data("where", GROUP[rows], dims="row"), pm.Data("floor", X[rows])
    s = pm.HalfNormal("s", 1)
    alpha, beta = pm.Normal("alpha", 0, s, dims="group"), pm.Normal("beta", 0, 1)
    pm.Bernoulli("y", logit_p=alpha[where] + beta * floor, observed=y, dims="row")


def zero_inflated(rows, y):
    """A mixture, for which PyMC uses another operation if some rows are missing."""
    where, hours = pm.Data("where", GROUP[rows]), pm.Data("hours", HOURS[rows])
    alpha = pm.Normal("alpha", 0, 0.8, dims="group")
    pm.ZeroInflatedPoisson("y", psi=0.8, mu=hours * pm.math.exp(alpha[where]), observed=y, dims="row")


def probit_classes(rows, y):
    xy, s = pm.Data("xy", XY[rows]), pm.HalfNormal("s", 1)
    b = pm.Normal("b", 0, s, dims=("input", "kind"))
    gpep.MultinomialProbit("y", xy @ b, observed=y, dims="row")


def process(rows, y):
    inputs, ls = pm.Data("inputs", XY[rows]), pm.InverseGamma("ls", 3, 3)
    f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(2, ls=ls)).prior("f", X=inputs)
    gpep.Probit("y", f, observed=y, dims="row")


CASES = {
    "binary": (binary, BINARY, "ep", {"where": GROUP, "floor": X}),
    "probit classes": (probit_classes, KINDS, "nested_ep", {"xy": XY}),
    "zero inflated": (zero_inflated, COUNTS, "ep", {"where": GROUP, "hours": HOURS}),
    "process": (process, BINARY, "ep", {"inputs": XY}),
}


def with_nan(y):
    return np.where(GONE, np.nan, y)


def declared(declare, rows, y):
    coords = {"group": range(J), "row": ROWS[rows], "input": ["p", "q"], "kind": list("abc")}
    with pm.Model(coords=coords) as model, warnings.catch_warnings():
        warnings.simplefilter("ignore", pm.exceptions.ImputationWarning)
        # from PyMC's cast of NaN
        warnings.filterwarnings("ignore", "invalid value encountered in cast", RuntimeWarning)
        declare(rows, y)
    return model


def fitted(model, method="ep"):
    with model:
        return pm.fit(method=method, hyper="map", progressbar=False, random_seed=1)


@pytest.fixture(scope="module")
def fits():
    """The model of binary responses with missing rows, its fit, and the fit of the rows with a response."""
    model = declared(binary, np.full(N, True), with_nan(BINARY))
    return model, fitted(model), fitted(declared(binary, KEPT, BINARY[KEPT]))


@pytest.mark.variation(but=["binary"])
@pytest.mark.parametrize("case", CASES)
def test_rows_without_a_response_are_left_out_and_predicted(case, fits):
    declare, y, method, data = CASES[case]
    if case == "binary":
        _, fit, without = fits
    else:
        # Averages over the density of a mixture evaluate its graph thousands of times.
        with rewritten() if case == "zero inflated" else nullcontext():
            fit = fitted(declared(declare, np.full(N, True), with_nan(y)), method)
            without = fitted(declared(declare, KEPT, y[KEPT]), method)
    assert fit.log_evidence == pytest.approx(without.log_evidence, abs=1e-8)
    for name, value in without.hyperparameters.items():
        assert fit.hyperparameters[name].item() == pytest.approx(value.item(), rel=1e-8)
    found = fit.predict(missing=True, progressbar=False)
    given = (XY[GONE],) if case == "process" else ()
    data = {} if given else {name: values[GONE] for name, values in data.items()}
    expected = without.predict(*given, data=data, progressbar=False)
    assert_array_equal(found.coords["row"], ROWS[GONE])
    atol = 1e-5 if case == "process" else 1e-8  # the model's values of a process include PyMC's jitter
    assert set(found.data_vars) == set(expected.data_vars)
    for name, values in expected.data_vars.items():
        assert_allclose(found[name], values.values, atol=atol)
    by_data = fit.predict(*given, data=data, progressbar=False)
    assert_allclose(by_data["mean"], expected["mean"], atol=1e-8)


def test_moments_match_a_fit_to_the_rows_with_a_response(fits):
    _, fit, without = fits
    for name in ("alpha", "beta"):
        assert_allclose(fit.effects(name)[name], without.effects(name)[name], atol=1e-8)
        assert_allclose(fit.std_data[name], without.std_data[name], atol=1e-8)
    assert set(fit.mean_data) == {"s_log__", "alpha", "beta"}
    assert_array_equal(fit.latent.coords["row"], ROWS[KEPT])
    left_out = fit.loo().elpd_i
    assert_array_equal(left_out.coords["row"], ROWS[KEPT])
    assert_allclose(left_out, without.loo().elpd_i, atol=1e-8)


@pytest.mark.variation
def test_process_has_posterior_values_at_rows_without_a_response():
    """At rows without a response, posterior means equal predictions."""
    fit = fitted(declared(process, np.full(N, True), with_nan(BINARY)))
    effect = fit.effects("f")["f"]
    assert effect.sizes["f_dim_0"] == N
    assert_allclose(effect.sel(moment="mean")[GONE], fit.predict(missing=True, progressbar=False)["mean"], atol=1e-8)


def test_draws_of_missing_responses_follow_predictions(fits):
    model, fit, _ = fits
    draws = fit.sample(3000, random_seed=2)["posterior"]
    p = fit.predict(missing=True, progressbar=False)["p"].values[:, 1]
    assert_allclose(draws["y_unobserved"].values[0].mean(axis=0), p, atol=0.04)
    assert_array_equal(draws["y"].values[0][:, KEPT], np.tile(BINARY[KEPT], (3000, 1)))
    assert_array_equal(draws["y"].values[0][:, GONE], draws["y_unobserved"].values[0])
    assert set(draws.data_vars) == {v.name for v in model.unobserved_RVs}


def test_draws_of_missing_responses_follow_the_latent_values_of_their_draw(fits):
    """In draws with a high latent value of a row, most responses are 1."""
    draws = fits[1].sample(3000, random_seed=2)["posterior"]
    row = np.flatnonzero(GONE)[0]
    f = draws["alpha"].values[0][:, GROUP[row]] + draws["beta"].values[0] * X[row]
    share = (1 / (1 + np.exp(-f)) - draws["y_unobserved"].values[0][:, 0])[f > np.median(f)].mean()
    assert share == pytest.approx(0.0, abs=0.05)


def test_draws_of_missing_responses_with_equal_seeds_are_equal(fits):
    one, other = (fits[1].sample(20, random_seed=5)["posterior"]["y_unobserved"] for _ in range(2))
    assert_array_equal(one, other)


@pytest.mark.variation
def test_loaded_fit_predicts_missing_responses(fits):
    model, fit, _ = fits
    again = gpep.from_datatree(fit.to_datatree(), model)
    assert again.log_evidence == pytest.approx(fit.log_evidence, abs=1e-9)
    found, expected = (each.predict(missing=True, progressbar=False)["p"] for each in (again, fit))
    assert_allclose(found, expected, atol=1e-8)


def test_recovered_draws_contain_missing_responses(fits):
    model, fit, _ = fits
    marginal = gpep.marginalize(model)
    assert [rv.name for rv in marginal.free_RVs] == ["s"]
    assert [each.name for each in marginal.potentials] == ["y_evidence"]
    s = np.full((1, 400), fit.hyperparameters["s"].item())
    idata = xr.DataTree.from_dict({"posterior": xr.Dataset({"s": (("chain", "draw"), s)})})
    draws = gpep.recover_latent(idata, marginal, random_seed=2, progressbar=False)["posterior"]
    p = fit.predict(missing=True, progressbar=False)["p"].values[:, 1]
    assert draws["y_unobserved"].dtype == np.int64
    assert_allclose(draws["y_unobserved"].values[0].mean(axis=0), p, atol=0.1)
    assert_array_equal(draws["y"].values[0][:, GONE], draws["y_unobserved"].values[0])


def test_importance_weights_use_only_rows_with_a_response(fits):
    found, expected = (each.importance(400, random_seed=1) for each in fits[1:])
    assert found.log_evidence == pytest.approx(expected.log_evidence, abs=1e-8)


def test_missing_rows_of_constant_probability_are_predicted():
    def declare(rows, y):
        pm.Bernoulli("y", logit_p=pm.Normal("level", 0, 2), observed=y)

    fit = fitted(declared(declare, np.full(N, True), with_nan(BINARY)), "laplace")
    p = fit.predict(missing=True, progressbar=False)["p"]
    assert p.shape == (GONE.sum(), 2)
    assert_allclose(p.values, p.values[:1].repeat(3, axis=0))


def test_error_names_the_potential_of_missing_responses():
    def declare(rows, y):
        binary(rows, y)
        pm.Potential("more", pt.sum(pm.modelcontext(None)["y"]) * 0.1)

    with pytest.raises(StructureError, match=r"Responses of 'y' are missing, and .*'more'.* depends on them"):
        read_classifier(declared(declare, np.full(N, True), with_nan(BINARY)))


def test_variable_that_depends_on_missing_responses_is_predicted():
    def declare(rows, y):
        binary(rows, y)
        pm.Normal("more", pt.sum(pm.modelcontext(None)["y"]), 1)

    found = read_classifier(declared(declare, np.full(N, True), with_nan(BINARY)), starts=True)
    assert "more" not in {rv.name for rv in found.hyperparameters}


def test_missing_values_of_another_variable_are_refused():
    def declare(rows, y):
        x = pm.Normal("x", 0, 1, observed=np.where(GONE, np.nan, X))
        pm.Bernoulli("y", logit_p=pm.Normal("beta", 0, 1) * x, observed=BINARY)

    with pytest.raises(StructureError, match="'x' has no value in rows 2, 11, 25, and PyMC would draw these values"):
        read_classifier(declared(declare, np.full(N, True), BINARY))


def test_argument_missing_raises_value_error_if_no_response_is_missing(fits):
    with pytest.raises(ValueError, match="All rows of 'y' have a response"):
        fits[2].predict(missing=True)
    with pytest.raises(TypeError, match="Leave out Xnew and data"):
        fits[1].predict(data={"where": [1], "floor": [0.0]}, missing=True)


def test_error_of_methods_with_inducing_inputs_advises_to_leave_out_rows():
    model = declared(process, np.full(N, True), with_nan(BINARY))
    with pytest.raises(StructureError, match=r"X\[keep\] and y\[keep\]"), model:
        pm.fit(method="sparse_ep", inducing=5, progressbar=False)


ONE = np.arange(N) == 5


def zero_inflated_alone(rows, y):
    pm.ZeroInflatedPoisson(
        "y", psi=0.8, mu=pm.math.exp(pm.Normal("alpha", 0, 0.8, dims="group")[GROUP[rows]]), observed=y
    )


def censored(rows, y):
    alpha = pm.Normal("alpha", 0, 0.8, dims="group")[GROUP[rows]]
    pm.Censored("y", pm.Normal.dist(alpha, 1.0), lower=None, upper=9.0, observed=y)


def test_single_missing_row_of_a_mixture_is_recognised():
    """PyMC uses another operation, with a known shape, if a single value is missing."""
    found = read_classifier(declared(zero_inflated_alone, np.full(N, True), np.where(ONE, np.nan, COUNTS)))
    assert_array_equal(found.missing.rows, [5])
    assert found.n_points == N - 1


def test_single_missing_row_is_left_out_and_predicted():
    y = np.where(ONE, np.nan, COUNTS)
    fit, without = (
        fitted(declared(censored, rows, values)) for rows, values in ((np.full(N, True), y), (~ONE, COUNTS[~ONE]))
    )
    assert fit.log_evidence == pytest.approx(without.log_evidence, abs=1e-8)
    assert fit.predict(missing=True, progressbar=False).sizes["y_dim_0"] == 1
    draws = fit.sample(3, random_seed=2)["posterior"]["y"].values[0]
    assert_array_equal(draws[:, ~ONE], np.tile(COUNTS[~ONE], (3, 1)))


OF_PANDAS = {"Int64": [1, None, 0, 1, 0, 1], "boolean": [True, None, False, True, False, True]}
CLASSES = {
    "probit": lambda b, y: gpep.Probit("y", XY[:6] @ b[:, 0], observed=y),
    "multinomial probit": lambda b, y: gpep.MultinomialProbit("y", XY[:6] @ b, observed=y),
    "robust max": lambda b, y: gpep.RobustMax("y", XY[:6] @ b, epsilon=0.05, observed=y),
}


@pytest.mark.parametrize("dtype", OF_PANDAS)
@pytest.mark.parametrize("name", CLASSES)
def test_missing_labels_of_pandas_arrays_are_missing_rows(name, dtype):
    for labels in (pd.array(OF_PANDAS[dtype], dtype=dtype), pd.Series(OF_PANDAS[dtype], dtype=dtype)):
        with pm.Model() as model, warnings.catch_warnings():
            warnings.simplefilter("ignore", pm.exceptions.ImputationWarning)
            CLASSES[name](pm.Normal("b", 0, 1, shape=(2, 2)), labels)
        found = read_classifier(model)
        assert_array_equal(found.missing.rows, [1])
        (observed,) = evaluate([found.labels])
        assert_array_equal(observed, [1, 0, 1, 0, 1])
