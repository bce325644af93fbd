"""Predictions from draws, against predictions of the Gaussian that the draws come from."""

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from numpy.testing import assert_allclose

import pymc_gpep as gpep
from tests import models

XNEW = np.array([[-1.2, -1.0], [-0.4, 0.1], [0.5, 0.6], [2.5, -2.0]])


@pytest.mark.parametrize(
    ("name", "n"),
    [
        *((name, 200) for name in ("shared", "per_class")),
        pytest.param("shared", 3000, marks=pytest.mark.slow),
    ],
)
def test_predictions_from_draws_match_the_gaussian_posterior(name, n, request):
    fitted = request.getfixturevalue(name)
    draws = fitted.fit.sample(n // 2, chains=2, random_seed=1)
    found = gpep.predict_draws(draws, fitted.gp, XNEW, model=fitted.model, draws=n, progressbar=False)
    expected = fitted.fit.predict(fitted.gp, XNEW)
    assert found["p"].dims == expected["p"].dims
    assert_allclose(found["p"].sum(found["p"].dims[1]), 1)
    assert_allclose(found["p"], expected["p"], atol=5 * 0.5 / np.sqrt(n))
    spread = np.sqrt(np.einsum("maa->ma", expected["cov"].values))
    assert_allclose((found["mean"] - expected["mean"]) / spread, 0, atol=5 / np.sqrt(n))
    scaled = (found["cov"] - expected["cov"]) / (spread[:, :, None] * spread[:, None, :])
    assert_allclose(scaled, 0, atol=6 * np.sqrt(2 / n))


@pytest.mark.variation
def test_predictions_from_draws_of_a_softmax_match_its_average():
    model, gp = models.softmax()
    with model:
        fit = pm.fit(method="laplace", progressbar=False)
        draws = fit.sample(200, random_seed=1)
        found = gpep.predict_draws(draws, gp, XNEW, draws=200, progressbar=False)
        without = gpep.predict_draws(draws, None, XNEW, draws=200, progressbar=False)
    assert_allclose(without["p"], found["p"], rtol=1e-6)
    assert_allclose(found["p"], fit.predict(gp, XNEW)["p"], atol=5 * 0.5 / np.sqrt(200))


def test_each_draw_predicts_with_its_own_hyperparameters(shared):
    """The prediction is the average of the predictions from each of two draws."""
    draws = shared.fit.sample(2, random_seed=1)
    posterior = draws["posterior"].to_dataset()
    posterior["ls"] = posterior["ls"] * xr.DataArray([1.0, 3.0], dims="draw")
    both, first, second = (
        gpep.predict_draws(
            xr.DataTree.from_dict({"posterior": posterior.isel(draw=chosen)}), shared.gp, XNEW, model=shared.model,
            progressbar=False,
        )
        for chosen in ([0, 1], [0], [1])
    )  # fmt: skip
    assert_allclose(both["p"], (first["p"] + second["p"]) / 2)
    assert np.abs(first["p"] - second["p"]).max() > 0.02


def test_predictions_have_the_dims_of_the_model_and_of_the_inputs(shared):
    x = xr.DataArray(XNEW, dims=("plant", "petal"), coords={"plant": list("abcd")})
    found = gpep.predict_draws(
        shared.fit.sample(3, random_seed=1), shared.gp, x, model=shared.model, progressbar=False
    )  # fmt: skip
    assert found["p"].dims == ("plant", "species")
    assert list(found["plant"].values) == list("abcd")
    assert list(found["species"].values) == list(models.SPECIES)


def test_invalid_draws_raise_errors(shared):
    draws = shared.fit.sample(3, random_seed=1)
    options = {"gp": shared.gp, "Xnew": XNEW, "model": shared.model, "progressbar": False}
    with pytest.raises(ValueError, match="draws must be at least 1"):
        gpep.predict_draws(draws, draws=0, **options)
    with pytest.raises(ValueError, match="Xnew has 1 columns"):
        gpep.predict_draws(draws, **options | {"Xnew": XNEW[:, :1]})
    for name, message in (("eta", "lacks draws of 'eta'"), ("f", "have no latent values 'f'")):
        part = xr.DataTree.from_dict({"posterior": draws["posterior"].to_dataset().drop_vars(name)})
        with pytest.raises(ValueError, match=message):
            gpep.predict_draws(part, **options)
    with pytest.raises(ValueError, match="'idata' has no posterior draws"):
        gpep.predict_draws(xr.DataTree(), **options)
