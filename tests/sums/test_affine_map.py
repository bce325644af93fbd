"""Coefficients of an affine map, against the coefficients in the model."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.testing import assert_allclose, assert_array_equal

from pymc_gpep.prior_moments.prior_functions import frozen_data
from pymc_gpep.reading import read_classifier
from pymc_gpep.sums.affine_map import AffineMap

N, PLACES, GROUPS = 24, 5, 3
RNG = np.random.default_rng(7)
X, GROUP, PLACE = RNG.normal(size=N), RNG.integers(0, GROUPS, N), RNG.integers(0, PLACES, N)


def made():
    with pm.Model() as model:
        x, group, place = pm.Data("x", X), pm.Data("group", GROUP), pm.Data("place", PLACE)
        s, beta = pm.HalfNormal("s", 1), pm.Normal("beta", 0.5, 2.0)
        u = pm.Normal("u", 0.0, s, shape=GROUPS)
        f = pm.gp.Latent(cov_func=pm.gp.cov.Matern52(1, ls=0.7)).prior("f", X=np.linspace(0, 1, PLACES)[:, None])
        pm.Bernoulli("y", logit_p=beta * x + u[group] - 2.0 * f[place], observed=GROUP > 0)
    return model, read_classifier(model).prior


def test_affine_map_at_new_data_equals_written_coefficients():
    model, prior = made()
    (latent,) = prior.processes
    new = {"x": [1.5, -2.0], "group": [2, 0], "place": [4, 1]}
    there = {model[name]: pt.tensor(name, dtype=model[name].dtype, shape=(None,)) for name in new}
    data = {**frozen_data(model), **there}
    affine = AffineMap(prior, {"sum": prior.argument}, data, [latent], list(there.values()))
    s = 0.8
    found = affine({"s_log__": np.array(np.log(s))}, list(new.values()), [PLACES])
    expected = np.zeros((prior.n_normals, 2))
    expected[prior.places[model["beta"]]] = 2.0 * np.array(new["x"])
    expected[prior.places[model["u"]]] = s * (np.arange(GROUPS)[:, None] == new["group"])
    assert_allclose(found.centres["sum"], 0.5 * np.array(new["x"]), atol=1e-12)
    assert_allclose(found.slopes["sum"], expected, atol=1e-12)
    (((coefficients, cells, alone),),) = found.taken["sum"]
    assert_allclose(coefficients, [-2.0, -2.0], atol=1e-12)
    assert_array_equal(cells, new["place"])
    assert alone


def test_affine_map_along_directions_equals_products_with_all_slopes():
    model, prior = made()
    affine = AffineMap(prior, {"sum": prior.argument}, frozen_data(model))
    point, units = {"s_log__": np.array(0.3)}, RNG.normal(size=(4, prior.n_normals))
    every, along = affine(point), affine(point, units=units)
    assert_allclose(along.slopes["sum"], units @ every.slopes["sum"], atol=1e-12)


def test_mean_of_a_process_is_marked_as_a_function_of_several_coefficients():
    model, prior = made()
    (latent,) = prior.processes
    affine = AffineMap(prior, {"mean": latent.f.mean()}, frozen_data(model), [latent])
    assert not affine({"s_log__": np.array(0.3)}, lengths=[PLACES]).taken["mean"][0][0].alone
