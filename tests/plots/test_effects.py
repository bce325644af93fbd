"""Plots of effects."""

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose
from scipy.stats import norm

import pymc_gpep as gpep

LABELS = list("abcd")


@pytest.fixture(scope="module")
def fit():
    with pm.Model(coords={"group": LABELS, "side": [0.5, 1.5]}):
        u = pm.Normal("u", 0, 1, dims="group")
        pm.Deterministic("both", u[:, None] * np.array([1.0, -2.0]), dims=("group", "side"))
        pm.Deterministic("long", u[0] * np.ones((11, 12)))
        pm.Deterministic("three", u[:, None, None] * np.ones((2, 2)))
        pm.Bernoulli("y", logit_p=u[np.arange(8) % 4], observed=[0, 1, 0, 1, 0, 1, 1, 0])
        return pm.fit(method="ep", progressbar=False)


def test_intervals_are_ordered_by_their_means(fit):
    ax = gpep.plots.plot_effects(fit, "u", order=True, prob=0.5)
    mean, sd = fit.effects("u")["u"].values
    places = np.argsort(mean, kind="stable")
    assert [label.get_text() for label in ax.get_yticklabels()] == [LABELS[i] for i in places]
    segments = np.array(ax.collections[0].get_segments())
    assert_allclose(segments[:, 0, 0], (mean - norm.ppf(0.75) * sd)[places])
    assert_allclose(segments[:, 1, 0], (mean + norm.ppf(0.75) * sd)[places])


def test_curve_is_drawn_along_its_input(fit):
    x = np.array([3.0, 1.0, 2.0, 0.0])
    ax = gpep.plots.plot_effects(fit, "u", x=x)
    mean = fit.effects("u")["u"].sel(moment="mean").values
    assert_allclose(ax.lines[0].get_xydata(), np.column_stack([np.sort(x), mean[np.argsort(x)]]))


def test_term_is_drawn_at_new_inputs():
    inputs, grid = np.linspace(-1, 1, 8)[:, None], np.array([[0.5], [-0.5], [2.0]])
    with pm.Model():
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0)).prior("f", X=inputs)
        pm.Bernoulli("y", logit_p=f + pm.Normal("a"), observed=[0, 0, 1, 0, 1, 0, 1, 1])
        fit = pm.fit(method="ep", progressbar=False)
    ax = gpep.plots.plot_effects(fit, "f", Xnew=grid)
    mean = fit.effects("f", Xnew=grid)["f"].sel(moment="mean").values
    assert_allclose(ax.lines[0].get_xydata(), np.column_stack([grid[:, 0], mean])[[1, 0, 2]])


def test_map_shows_posterior_means(fit):
    ax = gpep.plots.plot_effects(fit, "u", x=np.eye(4)[:, :2])
    assert_allclose(ax.collections[0].get_array(), fit.effects("u")["u"].sel(moment="mean"))


@pytest.mark.parametrize("order", [False, True])
def test_effect_with_two_axes_is_drawn_as_series(order, fit):
    """The mean of the second row is −2 times the first. The shorter axis has one colour for each entry."""
    ax = gpep.plots.plot_effects(fit, "both", order=order, prob=0.5)
    mean, sd = fit.effects("u")["u"].values
    places = np.argsort(-mean, kind="stable") if order else np.arange(4)[::-1]
    assert [label.get_text() for label in ax.get_yticklabels()] == [LABELS[i] for i in places]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["0.5", "1.5"]
    for k, by in enumerate([1.0, -2.0]):
        drawn = ax.lines[k].get_xydata()
        assert_allclose(drawn[:, 0], by * mean[places], atol=1e-12)
        assert_allclose(np.round(drawn[:, 1]), np.arange(4))
        segments = np.array(ax.collections[k].get_segments())
        assert_allclose(segments[:, 1, 0], (by * mean + abs(by) * norm.ppf(0.75) * sd)[places])


def test_effect_with_two_axes_along_an_input_is_drawn_as_curves(fit):
    x = np.array([3.0, 1.0, 2.0, 0.0])
    ax = gpep.plots.plot_effects(fit, "both", x=x)
    mean = fit.effects("u")["u"].sel(moment="mean").values[np.argsort(x)]
    for line, by in zip(ax.lines, [1.0, -2.0], strict=True):
        assert_allclose(line.get_xydata(), np.column_stack([np.sort(x), by * mean]), atol=1e-12)
    narrow = gpep.plots.plot_effects(fit, "both", x=[1.0, 2.0])  # the axis with as many entries as x is drawn along x
    assert_allclose([line.get_ydata()[0] for line in narrow.lines], fit.effects("u")["u"].sel(moment="mean"))


def test_several_names_are_drawn_as_panels(fit):
    axes = gpep.plots.plot_effects(fit, ["u", "both"])
    assert [ax.get_xlabel() for ax in axes] == ["u", "both"]
    mean = fit.effects("u")["u"].sel(moment="mean").values
    assert_allclose(axes[0].lines[0].get_xdata(), mean[::-1])
    with pytest.raises(ValueError, match="1 × 2 axes, but contains 1"):
        gpep.plots.plot_effects(fit, ["u", "both"], ax=axes[0])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"name": "u", "prob": 1.0}, "prob must be between 0 and 1"),
        (
            {"name": "three"},
            r"has 3 axes.* two are drawn. fit.effects\('three'\)\['three'\] has the numbers",
        ),
        ({"name": "long"}, "has 11 by 12 entries, and at most 10 series are drawn"),
        ({"name": "both", "x": np.eye(4)[:, :2]}, "A map is drawn of a variable of one axis"),
        ({"name": "u", "x": np.zeros(3)}, "a row for each of the 4 entries"),
        ({"name": "u", "x": np.zeros((4, 3))}, "has shape"),
    ],
)
def test_invalid_effects_raise_value_error(fit, given, message):
    with pytest.raises(ValueError, match=message):
        gpep.plots.plot_effects(fit, **given)
