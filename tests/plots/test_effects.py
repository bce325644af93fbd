"""Pictures of effects."""

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose
from scipy.stats import norm

import pymc_gpep as gpep

LABELS = list("abcd")


@pytest.fixture(scope="module")
def fit():
    with pm.Model(coords={"group": LABELS}):
        u = pm.Normal("u", 0, 1, dims="group")
        pm.Deterministic("both", u[:, None] * np.ones(2))
        pm.Bernoulli("y", logit_p=u[np.arange(8) % 4], observed=[0, 1, 0, 1, 0, 1, 1, 0])
        return pm.fit(method="ep", progressbar=False)


def test_lines_are_intervals_in_the_order_of_means(fit):
    ax = gpep.plots.plot_effects(fit, "u", order=True, prob=0.5)
    mean, sd = fit.effects("u")["u"].values
    places = np.argsort(mean, kind="stable")
    assert [label.get_text() for label in ax.get_yticklabels()] == [LABELS[i] for i in places]
    segments = np.array(ax.collections[0].get_segments())
    assert_allclose(segments[:, 0, 0], (mean - norm.ppf(0.75) * sd)[places])
    assert_allclose(segments[:, 1, 0], (mean + norm.ppf(0.75) * sd)[places])


def test_a_curve_runs_along_its_input(fit):
    x = np.array([3.0, 1.0, 2.0, 0.0])
    ax = gpep.plots.plot_effects(fit, "u", x=x)
    mean = fit.effects("u")["u"].sel(moment="mean").values
    assert_allclose(ax.lines[0].get_xydata(), np.column_stack([np.sort(x), mean[np.argsort(x)]]))


def test_a_term_at_other_inputs():
    inputs, grid = np.linspace(-1, 1, 8)[:, None], np.array([[0.5], [-0.5], [2.0]])
    with pm.Model():
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0)).prior("f", X=inputs)
        pm.Bernoulli("y", logit_p=f + pm.Normal("a"), observed=[0, 0, 1, 0, 1, 0, 1, 1])
        fit = pm.fit(method="ep", progressbar=False)
    ax = gpep.plots.plot_effects(fit, "f", Xnew=grid)
    mean = fit.effects("f", Xnew=grid)["f"].sel(moment="mean").values
    assert_allclose(ax.lines[0].get_xydata(), np.column_stack([grid[:, 0], mean])[[1, 0, 2]])


def test_a_map_has_the_means(fit):
    ax = gpep.plots.plot_effects(fit, "u", x=np.eye(4)[:, :2])
    assert_allclose(ax.collections[0].get_array(), fit.effects("u")["u"].sel(moment="mean"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"name": "u", "prob": 1.0}, "prob must be between 0 and 1"),
        ({"name": "both"}, "has 2 axes"),
        ({"name": "u", "x": np.zeros(3)}, "an entry for each of the 4"),
        ({"name": "u", "x": np.zeros((4, 3))}, "has shape"),
    ],
)
def test_what_cannot_be_drawn(fit, given, message):
    with pytest.raises(ValueError, match=message):
        gpep.plots.plot_effects(fit, **given)
