"""Levels of groups that a model does not have: their prior given what levels have in common, or a message."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.structure.levels import levels_of, own_normals

J, N, SD = 4, 12, 0.7
GROUP = np.arange(N) % J


@pytest.fixture(scope="module")
def fit():
    with pm.Model(coords={"group": range(J)}):
        where, x = pm.Data("where", GROUP), pm.Data("x", np.linspace(-1, 1, N))
        level, beta = pm.Normal("level", 0, 1), pm.Normal("beta", 0, 1)
        u = pm.Normal("u", level, SD, dims="group")
        v = pm.Normal("v", np.arange(J), 1.0, dims="group")
        pm.Deterministic("other", v)
        pm.Bernoulli("y", logit_p=u[where] + beta * x, observed=np.arange(N) % 3 == 0)
        return pm.fit(method="ep", progressbar=False)


def test_a_new_level_has_the_prior_of_all_levels_given_the_others(fit):
    found = fit.predict(data={"where": [0, J, -1], "x": 0.0}, new_levels=True, progressbar=False)
    effects = fit.effects(["level", "u"])
    level, u = effects["level"].values, effects["u"].values
    assert_allclose(found["mean"], [u[0, 0], level[0], level[0]], atol=1e-10)
    assert_allclose(found["variance"], [u[1, 0] ** 2, *[level[1] ** 2 + SD**2] * 2], atol=1e-10)


@pytest.mark.parametrize("value", [J, -1])
def test_a_level_that_is_not_there_is_refused(fit, value):
    with pytest.raises(ValueError, match=rf"'where'\] has {value}, but its levels are 0 to {J - 1}.*new_levels=True"):
        fit.predict(data={"where": value, "x": 0.0}, progressbar=False)


def test_a_new_level_of_levels_that_differ_is_refused():
    with pm.Model():
        where = pm.Data("where", GROUP)
        walk = pm.GaussianRandomWalk("walk", sigma=1.0, init_dist=pm.Normal.dist(0, 1), shape=J)
        pm.Bernoulli("y", logit_p=walk[where], observed=np.arange(N) % 3 == 0)
        fit = pm.fit(method="ep", progressbar=False)
    with pytest.raises(ValueError, match="differ a priori"):
        fit.predict(data={"where": J}, new_levels=True, progressbar=False)


def test_levels_are_counted_where_data_select_by_their_values():
    where, scale, u = pt.lvector("where"), pt.lvector("scale"), pt.constant(np.zeros((5, 3)))
    assert levels_of(where, [u[where, 0] * scale]) == 5
    assert levels_of(scale, [u[where, 0] * scale]) is None
    assert levels_of(where, [u[:, where]]) == 3
    assert levels_of(where, [u[where + 1]]) is None


def test_normals_of_one_level_alone():
    roots = np.array([[[0.5, 2.0, 0.0, 0.3]]])
    other = np.array([[[0.5, 0.0, 2.0, 0.3]]])
    mean = np.zeros((1, 1))
    assert own_normals("g", (mean, roots), (mean, other)).tolist() == [[[False, True, False, False]]]
    for wrong in ((mean + 1, other), (mean, other * [1, 1, 2, 1]), (mean, other * [2, 1, 1, 1])):
        with pytest.raises(ValueError, match="differ a priori"):
            own_normals("g", (mean, roots), wrong)


@pytest.mark.parametrize("mixed", [lambda x: x - x.mean(), lambda x: pt.cumsum(x), lambda x: x / x.std()])
def test_rows_that_depend_on_other_rows_are_refused(mixed):
    with pm.Model():
        x = pm.Data("x", np.linspace(-1, 2, N))
        pm.Bernoulli("y", logit_p=pm.Normal("u", 0, 1) * mixed(x), observed=np.arange(N) % 3 == 0)
        fit = pm.fit(method="ep", progressbar=False)
    for _ in range(2):
        with pytest.raises(ValueError, match="depend on other rows of 'x'"):
            fit.predict(data={"x": [5.0]}, progressbar=False)
