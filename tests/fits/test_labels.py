"""Dims with coordinates of another length than the axis of the variable."""

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from numpy.testing import assert_allclose

import pymc_gpep as gpep
from pymc_gpep.fits.datasets import dims_that_fit, plain_dims

LABELS = list("abcd")


def model():
    with pm.Model(coords={"group": LABELS}) as made:
        s = pm.HalfNormal("s", 1)
        u = pm.Normal("u", 0, s, dims="group")
        pm.Deterministic("steps", u[1:] - u[:-1], dims="group")
        pm.Bernoulli("y", logit_p=u[np.arange(8) % 4], observed=[0, 1, 0, 1, 0, 1, 1, 0])
    return made


@pytest.fixture(scope="module")
def fit():
    return pm.fit(model=model(), method="ep", hyper="map", progressbar=False)


def test_dims_with_labels_of_wrong_length_get_default_names():
    made = model()
    coords = made.coords
    assert dims_that_fit(made, "u", (4,), coords) == ["group"]
    assert dims_that_fit(made, "steps", (3,), coords) == ["steps_dim_0"]
    assert dims_that_fit(made, "s", (), coords) == []
    assert plain_dims(made, {"u": (4,), "s": (), "steps": (3,)}, coords) == {"steps": ["steps_dim_0"]}


def test_draws_keep_labels_of_matching_length(fit):
    draws = fit.sample(6, random_seed=1)["posterior"]
    assert draws["u"].dims[2:] == ("group",)
    assert list(draws["group"].values) == LABELS
    assert draws["steps"].dims[2:] == ("steps_dim_0",)
    assert_allclose(draws["steps"].values, np.diff(draws["u"].values, axis=2), atol=1e-12)


def test_dims_given_by_the_caller_take_precedence(fit):
    draws = fit.sample(2, random_seed=1, dims={"steps": ["step"]})["posterior"]
    assert draws["steps"].dims[2:] == ("step",)


def test_effects_without_matching_labels_have_a_default_dim(fit):
    found = fit.effects(["u", "steps"])
    assert found["steps"].dims == ("moment", "steps_dim_0")
    assert_allclose(found["steps"].sel(moment="mean"), np.diff(found["u"].sel(moment="mean")), atol=1e-10)


def test_recovered_steps_of_a_walk_without_matching_labels_are_differences_of_its_values():
    marginal = gpep.marginalize(model(), method="laplace")
    draws = pm.draw(marginal["s"], 3, random_seed=1)
    sampled = xr.DataTree.from_dict(
        {"posterior": xr.Dataset({"s": (("chain", "draw"), draws[None])}, {"chain": [0], "draw": range(3)})}
    )
    posterior = gpep.recover_latent(sampled, marginal, random_seed=1, progressbar=False)["posterior"]
    assert_allclose(posterior["steps"].values, np.diff(posterior["u"].values, axis=2), atol=1e-12)


def test_set_data_does_not_change_rows_and_labels_of_a_fit():
    x, counts = np.linspace(-1.0, 1.0, 9), np.arange(9) % 4
    with pm.Model(coords={"row": np.arange(9)}) as made:
        at = pm.Data("x", x, dims="row")
        pm.Poisson("y", mu=pm.math.exp(pm.Normal("b") * at), observed=counts, dims="row")
        fit = pm.fit(method="ep", progressbar=False)
        looks = [
            lambda: fit.latent,
            lambda: fit.loo().elpd_i.to_dataset(),
            lambda: fit.sample(4, random_seed=1)["posterior"].to_dataset(),
            lambda: fit.sample(4, random_seed=1)["constant_data"].to_dataset(),
            lambda: fit.to_datatree()["latent"].to_dataset(),
        ]
        before = [look() for look in looks]
        pm.set_data({"x": [0.0, 0.5]}, coords={"row": ["left", "right"]})
        for look, was in zip(looks, before, strict=True):
            xr.testing.assert_identical(look().drop_attrs(), was.drop_attrs())
    assert_allclose(made["x"].get_value(), [0.0, 0.5])
    assert made.coords["row"] == ("left", "right")
