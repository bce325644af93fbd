"""New levels of groups: their prior given the common parameters, or a refusal."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.solvers.coefficients import Entries
from pymc_gpep.sums.new_data import levels_of, of_each_level, owners_of

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


def test_new_level_has_the_mean_and_variance_of_its_prior_given_fitted_levels(fit):
    found = fit.predict(data={"where": [0, J, -1], "x": 0.0}, new_levels=True, progressbar=False)
    effects = fit.effects(["level", "u"])
    level, u = effects["level"].values, effects["u"].values
    assert_allclose(found["mean"], [u[0, 0], level[0], level[0]], atol=1e-10)
    assert_allclose(found["variance"], [u[1, 0] ** 2, *[level[1] ** 2 + SD**2] * 2], atol=1e-10)


@pytest.mark.parametrize("value", [J, -1])
def test_unseen_level_is_refused_by_default(fit, value):
    with pytest.raises(ValueError, match=rf"'where'\] has {value}, but its levels are 0 to {J - 1}.*new_levels=True"):
        fit.predict(data={"where": value, "x": 0.0}, progressbar=False)


def walk():
    return pm.GaussianRandomWalk("u", sigma=1.0, init_dist=pm.Normal.dist(0, 1), shape=J)


def series():
    return pm.AR("u", [0.6, 0.2], sigma=1.0, init_dist=pm.Normal.dist(0, 1), shape=J)


def covariate():
    return pm.Normal("u", pm.Normal("b", 0, 1) * (np.arange(J) > 1), SD, shape=J)


def scales():
    return pm.Normal("u", 0, np.repeat([1.0, 2.0], J // 2), shape=J)


def in_districts():
    return pm.Normal("u", pm.Normal("d", 0, 1, shape=2)[np.arange(J) // 2], SD, shape=J)


@pytest.mark.parametrize("effects", [walk, series, covariate, scales, in_districts])
def test_new_level_is_refused_if_levels_have_different_priors(effects):
    with pm.Model():
        where = pm.Data("where", GROUP)
        pm.Normal("y", effects()[where], 1.0, observed=np.arange(N) % 3)
        fit = pm.fit(method="ep", progressbar=False)
    for _ in range(2):
        with pytest.raises(ValueError, match="have different priors"):
            fit.predict(data={"where": J}, new_levels=True, progressbar=False)


def test_new_level_of_a_single_effect_has_the_prior_given_the_remaining_effects():
    with pm.Model():
        level = pm.Normal("level", 0, 1)
        u = pm.Normal("u", level, SD, shape=1)
        pm.Normal("y", u[pm.Data("where", np.zeros(N, int))], 1.0, observed=np.arange(N) % 3)
        fit = pm.fit(method="ep", progressbar=False)
    found = fit.predict(data={"where": [0, 5]}, new_levels=True, progressbar=False)
    # Given the level, the mean of N observations has variance SD² + 1/N and average 1.
    kept = 1.0 / (1.0 + SD**2 + 1.0 / N)
    assert_allclose(found["mean"], [(1.0 + SD**2) * kept, kept], atol=1e-8)
    assert_allclose(found["variance"], [(1.0 + SD**2) * (1 - (1.0 + SD**2) * kept), 1.0 - kept + SD**2], atol=1e-8)


def test_new_player_can_meet_any_player():
    home, away = np.divmod(np.arange(J * J), J)
    with pm.Model():
        skill = pm.Normal("skill", 0.5, SD, shape=J)
        mean = skill[pm.Data("home", home)] - skill[pm.Data("away", away)]
        pm.Normal("y", mean, 1.0, observed=home - away)
        fit = pm.fit(method="ep", progressbar=False)
    found = fit.predict(data={"home": [9, 9, 1, 9], "away": [0, 1, 9, 8]}, new_levels=True, progressbar=False)
    mean, sd = fit.effects("skill")["skill"].values
    assert_allclose(found["mean"], [0.5 - mean[0], 0.5 - mean[1], mean[1] - 0.5, 0.0], atol=1e-8)
    assert_allclose(found["variance"], SD**2 + np.array([*sd[[0, 1, 1]], SD]) ** 2, atol=1e-8)


def test_number_of_levels_is_used_if_data_are_an_index():
    where, scale, u = pt.lvector("where"), pt.lvector("scale"), pt.constant(np.zeros((5, 3)))
    assert levels_of(where, [u[where, 0] * scale]) == 5
    assert levels_of(scale, [u[where, 0] * scale]) is None
    assert levels_of(where, [u[:, where]]) == 3
    assert levels_of(where, [u[where + 1]]) is None


def entries(roots):
    return Entries(np.tile(np.arange(roots.shape[1]), (len(roots), 1)), roots, roots.shape[1])


def test_standard_normals_are_assigned_to_the_only_level_that_they_change():
    roots = np.array([[0.5, 2.0, 0.0, 0.0, 0.0], [0.5, 0.0, 1.2, 1.6, 0.0], [0.5, 0.0, 0.0, 0.0, -2.0]])
    found = owners_of("g", np.ones(3), entries(roots))
    assert found.tolist() == [-1, 0, 1, 1, 2]


@pytest.mark.parametrize("wrong", [(2, 4, 1.0), (2, 0, 0.1), (2, 1, 0.3)], ids=["own", "shared", "of two"])
def test_last_level_with_another_prior_is_detected(wrong):
    roots = np.array([[0.5, 2.0, 0.0, 0.0, 0.0], [0.5, 0.0, 1.2, 1.6, 0.0], [0.5, 0.0, 0.0, 0.0, -2.0]])
    roots[wrong[:2]] = wrong[2]
    with pytest.raises(ValueError, match="have different priors"):
        owners_of("g", np.ones(3), entries(roots))
    with pytest.raises(ValueError, match="have different priors"):
        owners_of("g", np.array([1.0, 1.0, 1.5]), entries(np.eye(3)))


def test_data_used_as_numbers_and_as_an_index_have_no_levels():
    where, u = pt.lvector("where"), pt.constant(np.zeros((5, 3)))
    selected = u[where, 0] * u[where + pt.zeros_like(where)].shape[0]
    assert of_each_level(where, [selected]).eval().shape == (5,)
    assert of_each_level(where, [u[where, 0] + pt.zeros_like(where) + where.shape[0]]).eval().shape == (5,)
    assert of_each_level(where, [u[where, 0] + where]) is None


@pytest.mark.parametrize("mixed", [lambda x: x - x.mean(), lambda x: pt.cumsum(x), lambda x: x / x.std()])
def test_rows_that_depend_on_other_rows_are_refused(mixed):
    with pm.Model():
        x = pm.Data("x", np.linspace(-1, 2, N))
        pm.Bernoulli("y", logit_p=pm.Normal("u", 0, 1) * mixed(x), observed=np.arange(N) % 3 == 0)
        fit = pm.fit(method="ep", progressbar=False)
    for _ in range(2):
        with pytest.raises(ValueError, match="depend on other rows of 'x'"):
            fit.predict(data={"x": [5.0]}, progressbar=False)
