"""Predictions at new inputs."""

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from numpy.testing import assert_allclose

import pymc_gpep.fits.prediction
from pymc_gpep.processes.processes import new_inputs
from tests import models
from tests.reference.dense_nested_ep import nested_ep as dense_nested_ep
from tests.reference.dense_nested_ep import predict as dense_predict

fits = pytest.mark.parametrize("name", ["shared", "centred", "per_class", "fixed"])


@pytest.fixture
def fitted(name, request):
    return request.getfixturevalue(name)


def dense(fitted, x):
    """Latent mean (m, c) and covariance (m, c, c), from PyMC's prior moments and the dense reference."""
    classifier = fitted.fit.classifier
    k, mean = (models.at_hyperparameters(fitted, m) for m in (classifier.prior.covariance(), classifier.prior.mean()))
    gps = fitted.gp if isinstance(fitted.gp, list) else [fitted.gp] * 3
    cross, new, new_mean = (
        np.stack([models.at_hyperparameters(fitted, moment(gp)) for gp in gps])
        for moment in (lambda gp: gp.cov_func(x, fitted.X), lambda gp: gp.cov_func(x), lambda gp: gp.mean_func(x))
    )
    # Started at the end of the fit, the reference needs few sweeps to its own fixed point.
    start = fitted.fit.solution.start.reshape(2, len(fitted.y), 2)
    solution = dense_nested_ep(k, fitted.y, mean, c=3, start=tuple(start), tolerance=1e-9)
    mean, cov = dense_predict(solution, cross, new, new_mean)
    m = len(x)
    return mean.T, np.einsum("aibi->iab", cov.reshape(3, m, 3, m))


@pytest.mark.parametrize("name", ["shared", "per_class"])
def test_prediction_matches_the_moments_of_latent_functions(fitted):
    x = np.random.default_rng(0).normal(size=(7, 2))
    mean, cov = dense(fitted, x)
    predicted = fitted.fit.predict(fitted.gp, x)
    assert_allclose(predicted["mean"], mean, atol=1e-5)
    assert_allclose(predicted["cov"], cov, atol=1e-5)


@fits
@pytest.mark.parametrize("probabilities", ["orthant", "inner_ep"])
def test_predicted_probabilities_match_draws(fitted, probabilities):
    """References are frequencies of the largest f + noise, for draws of the latent functions."""
    x = np.random.default_rng(1).normal(size=(6, 2))
    predicted = fitted.fit.predict(fitted.gp, x, probabilities=probabilities)
    assert_allclose(predicted["p"].sum(predicted["p"].dims[1]), 1, atol=1e-12)
    rng = np.random.default_rng(2)
    draws = 200_000
    for i in range(6):
        v = rng.multivariate_normal(predicted["mean"][i], predicted["cov"][i] + np.eye(3), size=draws)
        frequency = np.bincount(v.argmax(1), minlength=3) / draws
        slack = 5 * np.sqrt(0.25 / draws) + (0.01 if probabilities == "inner_ep" else 0)
        assert_allclose(predicted["p"][i], frequency, atol=slack)


def test_prediction_at_training_inputs_is_the_posterior(fixed):
    """The results differ by the jitter. The model adds the jitter to fitted latent values, not to new latent values."""
    predicted = fixed.fit.predict(fixed.gp, fixed.X)
    assert_allclose(predicted["mean"], fixed.fit.latent["mean"], atol=1e-4)
    assert_allclose(predicted["cov"], fixed.fit.latent["cov"], atol=1e-4)


def test_predictions_do_not_depend_on_chunk_size(shared, monkeypatch):
    x = np.random.default_rng(0).normal(size=(50, 2))
    whole = shared.fit.predict(shared.gp, x)
    monkeypatch.setattr(pymc_gpep.fits.prediction, "_ENTRIES", 3 * 30 * 7)
    xr.testing.assert_allclose(shared.fit.predict(shared.gp, x), whole)


@pytest.mark.variation
def test_intervals_contain_the_probabilities_and_widen_with_their_level(shared_ccd):
    X = shared_ccd.fitted_inputs()[:4] + 0.1
    half, most = (shared_ccd.predict(X, intervals=level, covariances=False, progressbar=False) for level in (0.5, 0.95))
    lower, upper = most["p_interval"].sel(ci_bound="lower"), most["p_interval"].sel(ci_bound="upper")
    assert ((lower < most["p"]) & (most["p"] < upper)).all()
    assert (lower < half["p_interval"].sel(ci_bound="lower")).all()
    assert (half["p_interval"].sel(ci_bound="upper") < upper).all()
    assert "cov" not in most


def test_prediction_without_covariance_equals_prediction_with_it(shared, shared_ccd):
    x = np.random.default_rng(0).normal(size=(5, 2))
    for fit in (shared.fit, shared_ccd):
        whole = fit.predict(shared.gp, x)
        xr.testing.assert_allclose(fit.predict(shared.gp, x, covariances=False), whole.drop_vars("cov"), rtol=1e-12)


def test_predictions_have_the_labels_of_the_model(shared, per_class):
    x = xr.DataArray(np.zeros((2, 2)), dims=("site", "petal"), coords={"site": ["here", "there"]})
    predicted = shared.fit.predict(shared.gp, x)
    assert predicted["p"].dims == ("site", "species")
    assert list(predicted["site"].values) == ["here", "there"]
    assert predicted["cov"].dims == ("site", "species", "species_other")
    assert predicted["p"].sel(species="setosa", site="here").shape == ()
    unnamed = per_class.fit.predict(per_class.gp, x.values, dim="place")
    assert unnamed["p"].dims == ("place", "class")


def test_order_of_processes_in_gp_does_not_change_predictions(per_class):
    x = np.random.default_rng(0).normal(size=(3, 2))
    xr.testing.assert_equal(per_class.fit.predict(per_class.gp[::-1], x), per_class.fit.predict(per_class.gp, x))


def test_prediction_at_zero_points_is_empty(shared):
    assert shared.fit.predict(shared.gp, np.empty((0, 2)))["p"].shape == (0, 3)


def test_error_names_wrong_processes(shared, per_class):
    other = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(2, ls=1.0))
    with pytest.raises(ValueError, match="none of the 1 processes made the latent values 'f'"):
        shared.fit.predict(other, np.zeros((1, 2)))
    with pytest.raises(ValueError, match=r"made the latent values 'f_virginica'.*'f_setosa', 'f_versicolor'"):
        per_class.fit.predict(per_class.gp[:2], np.zeros((1, 2)))
    with pytest.raises(ValueError, match="gp has 2 processes, but the latent values of the likelihood have 1"):
        shared.fit.predict([shared.gp, other], np.zeros((1, 2)))
    with pytest.raises(ValueError, match="'f' was given 2 times"):
        shared.fit.predict([shared.gp, shared.gp], np.zeros((1, 2)))
    with pytest.raises(ValueError, match=r"\(points, inputs\), .* but has shape \(2,\)"):
        shared.fit.predict(shared.gp, np.zeros(2))
    with pytest.raises(ValueError, match="Xnew has 3 columns, but the model's inputs have 2"):
        shared.fit.predict(shared.gp, np.zeros((1, 3)))
    with pytest.raises(ValueError, match=r"Xnew must be numbers, as the model's inputs are: .*'red'"):
        shared.fit.predict(shared.gp, np.array([["red", 1.0]], dtype=object))
    with pytest.raises(ValueError, match="1 values that are not"):
        shared.fit.predict(shared.gp, np.array([[0.0, np.nan]]))
    with pytest.raises(ValueError, match="guess"):
        shared.fit.predict(shared.gp, np.zeros((1, 2)), probabilities="guess")


@pytest.mark.parametrize(
    ("columns", "shape", "advice"),
    [
        (1, (5,), "Xnew[:, None]"),
        (1, (1,), "Xnew[:, None]"),
        (3, (3,), "Xnew[None]"),
        (3, (4,), None),
        (3, (), None),
        (1, (), None),
        (2, (2, 2, 2), None),
    ],
)
def test_inputs_with_wrong_number_of_axes_raise_value_error(columns, shape, advice):
    """The test also runs the call that the error advises."""
    x = np.zeros(shape)
    with pytest.raises(ValueError, match=rf"\(points, inputs\), here \(points, {columns}\), but has shape") as raised:
        new_inputs(x, columns)
    assert ("one " in str(raised.value)) == (advice is not None)
    if advice is not None:
        assert advice in str(raised.value)
        assert new_inputs(eval(advice, {"Xnew": x, "None": None}), columns).shape[1] == columns


def test_predictions_without_gp_equal_predictions_with_gp(shared, per_class):
    for fitted in (shared, per_class):
        new = fitted.X[:4] + 0.3
        xr.testing.assert_allclose(fitted.fit.predict(new), fitted.fit.predict(fitted.gp, new), rtol=1e-6)
        assert_allclose(fitted.fit.fitted_inputs(), fitted.X)


def test_predict_with_an_array_as_gp_raises_type_error(shared):
    for missing in (shared.gp, [shared.gp], None):
        with pytest.raises(TypeError, match=r"predict needs new inputs: predict\(Xnew\), or predict\(gp, Xnew\)"):
            shared.fit.predict(missing)
    with pytest.raises(TypeError, match=r"gp must be the pm\.gp\.Latent .*, not a ndarray"):
        shared.fit.predict(shared.X, shared.gp)
