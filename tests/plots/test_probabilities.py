"""Plots of class probabilities over inputs."""

import numpy as np
import pytest
import xarray as xr
from numpy.testing import assert_allclose

from pymc_gpep.plots import input_grid, plot_probabilities
from tests.models import SPECIES


def test_plot_has_a_line_for_each_class(shared, given):
    line = input_grid(shared.X, [0], points=11, at={1: 0.5})
    p = shared.fit.predict(shared.gp, line)["p"]
    ax = given()
    assert plot_probabilities(p, Xnew=line, X=shared.X, y=shared.y, ax=ax, line_kwargs={"linewidth": 3.5}) is ax
    classes = ax.lines[:3]
    assert [curve.get_label() for curve in classes] == list(SPECIES)
    for k, curve in enumerate(classes):
        assert_allclose(curve.get_xydata(), np.column_stack([line[:, 0], p[:, k]]))
        assert curve.get_linewidth() == 3.5
        assert_allclose(ax.collections[k].get_offsets()[:, 0], shared.X[shared.y == k, 0])
        assert (ax.collections[k].get_offsets()[:, 1] < 0).all()
    assert ax.get_xlabel() == "input 0"
    assert ax.get_ylabel() == "class probability"
    assert [text.get_text() for text in ax.get_legend().get_texts()] == list(SPECIES)
    assert ax.get_legend().get_title().get_text() == "species"


def test_new_inputs_may_come_in_any_order(shared):
    p = np.array([[0.2, 0.8], [0.5, 0.5], [0.9, 0.1]])
    ax = plot_probabilities(p[[2, 0, 1]], Xnew=np.array([[3.0], [1.0], [2.0]]))
    assert_allclose(ax.lines[0].get_xydata(), [[1, 0.2], [2, 0.5], [3, 0.9]])
    assert [curve.get_label() for curve in ax.lines] == ["0", "1"]


def test_plot_of_a_fit_shows_its_data_and_a_grid_around_them(shared):
    ax = plot_probabilities(shared.fit, shared.gp)
    scattered = {points.get_label(): points.get_offsets() for points in ax.collections if points.get_label() in SPECIES}
    for k, name in enumerate(SPECIES):
        assert_allclose(scattered[name], shared.X[shared.y == k])
    assert ax.get_xlim()[0] < shared.X[:, 0].min() < shared.X[:, 0].max() < ax.get_xlim()[1]
    assert ax.get_ylim()[0] < shared.X[:, 1].min() < shared.X[:, 1].max() < ax.get_ylim()[1]


def slope(x, k):
    """Three classes in bands along the first input, with probabilities near 1 far from the boundaries at −1 and 1."""
    edges = 1 / (1 + np.exp(-4 * (x[:, 0] + 1))), 1 / (1 + np.exp(-4 * (x[:, 0] - 1)))
    return (1 - edges[0], edges[0] - edges[1], edges[1])[k]


@pytest.fixture
def bands():
    grid = input_grid(np.array([[-3.0, 0.0], [3.0, 1.0]]), points=61, margin=0)
    p = xr.DataArray(
        np.stack([slope(grid.values, k) for k in range(3)], axis=1), dims=("new_point", "band"),
        coords={"band": ["left", "middle", "right"]},
    )  # fmt: skip
    return grid, p


def contours(ax, level):
    return [
        path.vertices
        for lines in ax.collections
        if hasattr(lines, "levels")
        for path, at in zip(lines.get_paths(), lines.levels, strict=True)
        if at == level and len(path.vertices)
    ]


def test_boundaries_are_where_two_classes_are_equally_probable(bands):
    grid, p = bands
    ax = plot_probabilities(p, Xnew=grid, levels=[0.9])
    boundaries = np.concatenate(contours(ax, 0.0))[:, 0]
    assert_allclose(np.abs(boundaries), 1, atol=0.01)
    assert {-1.0, 1.0} == set(np.round(boundaries))
    certain = np.sort(np.concatenate(contours(ax, 0.9))[:, 0])
    expected = 1 + np.log(9) / 4
    assert_allclose(np.abs(certain[[0, -1]]), expected, atol=0.02)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["left", "middle", "right"]


def test_regions_where_one_class_is_nearly_certain_have_its_colour(bands):
    grid, p = bands
    ax = plot_probabilities(p, Xnew=grid)
    image = ax.images[0].get_array()
    edge, centre, other = image[30, 0], image[30, 30], image[30, -1]
    blue, orange, green = edge[2] - edge[0], centre[0] - centre[2], other[1] - other[0]
    assert min(blue, orange, green) > 0.2
    even = plot_probabilities(xr.full_like(p, 1 / 3), Xnew=grid)
    assert_allclose(even.images[0].get_array(), 1.0)


def test_constant_inputs_are_not_drawn(bands):
    grid, p = bands
    wider = np.column_stack([np.full(len(grid), 7.0), grid])
    ax = plot_probabilities(p, Xnew=wider, legend=False)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("input 1", "input 2")
    assert ax.get_legend() is None


def test_invalid_arguments_raise_errors(shared, bands):
    grid, p = bands
    with pytest.raises(ValueError, match="Xnew="):
        plot_probabilities(p)
    with pytest.raises(ValueError, match="Xnew must be"):
        plot_probabilities(p, Xnew=grid[:-1])
    with pytest.raises(ValueError, match="X must have the 2 columns"):
        plot_probabilities(p, Xnew=grid, X=np.zeros((2, 3)), y=[0, 1])
    with pytest.raises(ValueError, match="Class probabilities must be"):
        plot_probabilities(p[:, 0], Xnew=grid)
