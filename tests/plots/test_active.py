"""Plots of active rows and of learning curves."""

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import pymc_gpep as gpep
from pymc_gpep.plots import input_grid, plot_active, plot_learning_curve, plot_probabilities
from tests import models

X, Y = models.data()


@pytest.fixture(scope="module")
def fit():
    model, _ = models.fixed()
    with model:
        return pm.fit(method="ivm", active=8, progressbar=False)


def test_active_rows_are_marked_by_rings(fit, given):
    ax = given()
    assert plot_active(fit, ax=ax, ring_kwargs={"s": 90}) is ax
    rings = ax.collections[-1]
    assert_allclose(rings.get_offsets(), X[fit.active.row])
    assert rings.get_sizes() == [90]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["0", "1", "2", "active"]


def test_rings_of_active_rows_surround_drawn_data_of_one_input(fit, given):
    ax = plot_active(fit, Xnew=input_grid(X, [0], points=9), ax=given(), legend=False)
    rings = np.asarray(ax.collections[-1].get_offsets())
    drawn = np.concatenate([np.asarray(each.get_offsets()) for each in ax.collections[:-1]])
    assert all((np.abs(drawn - ring).sum(axis=1) < 1e-12).any() for ring in rings)
    assert ax.get_legend() is None


def test_learning_curve_ends_at_the_fit(fit, given):
    curve = gpep.diagnostics.learning_curve(fit, X, Y, every=3)
    assert_array_equal(curve.active, [3, 6, 8])
    p = fit.predict(X)["p"].values
    assert_allclose(curve.mlpd[-1], np.log(p[np.arange(30), Y]).mean(), rtol=1e-4)
    assert_allclose(curve.accuracy[-1], (p.argmax(axis=1) == Y).mean())
    assert curve.mlpd[0] < curve.mlpd[-1]
    axes = plot_learning_curve({"one": curve, "two": curve}, axes=given(1, 2))
    for ax, score in zip(axes, ("mlpd", "accuracy"), strict=True):
        assert_allclose(ax.lines[0].get_xydata(), np.column_stack([curve.active, curve[score]]))
        assert ax.get_xlabel() == "active rows"
    assert [text.get_text() for text in axes[0].get_legend().get_texts()] == ["one", "two"]


def test_probabilities_are_drawn_around_the_data_of_the_fit(fit, given):
    ax = plot_probabilities(fit, ax=given())
    points = np.concatenate([np.asarray(each.get_offsets()) for each in ax.collections if len(each.get_offsets())])
    assert {tuple(each) for each in X} <= {tuple(each) for each in points}


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (plot_learning_curve, r"curves must be a result of gpep\.diagnostics\.learning_curve\(fit, .*is of type Fit"),
    ],
)
def test_fit_without_active_rows_is_refused(draw, message, fit):
    with pytest.raises(TypeError, match=message):
        draw(fit)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"every": 0}, ValueError, "every must be at least 1"),
        ({"every": 1.5}, TypeError, "every must be a whole number"),
        ({"ynew": Y + 1}, ValueError, "ynew"),
        ({"Xnew": X[:, :1]}, ValueError, "Xnew has 1 columns"),
    ],
)
def test_invalid_arguments_raise_errors(fit, options, error, message):
    with pytest.raises(error, match=message):
        gpep.diagnostics.learning_curve(fit, **{"Xnew": X, "ynew": Y} | options)
