"""Plots of grids of hyperparameters."""

import numpy as np
import pytest
import xarray as xr
from numpy.testing import assert_allclose

from pymc_gpep.plots import plot_evidence_grid

LS, ETA = np.geomspace(0.1, 10, 21), np.linspace(1, 3, 11)


@pytest.fixture
def grid():
    """A parabola in the logarithm of the first hyperparameter and in the second, with its maximum at (1, 2)."""
    ls, eta = xr.DataArray(LS, dims="ls"), xr.DataArray(ETA, dims="eta")
    evidence = -(np.log(ls) ** 2) - 4 * (eta - 2) ** 2
    return xr.Dataset(
        {"evidence": evidence, "mlpd": evidence / 10, "accuracy": evidence.round(), "converged": evidence > -100},
        coords={"ls": LS, "eta": ETA},
    )


def contour_lines(ax):
    """Vertices of each level, for lines only."""
    (lines,) = [each for each in ax.collections if hasattr(each, "levels") and not each.filled]
    return dict(zip(lines.levels, (path.vertices for path in lines.get_paths()), strict=True))


def test_contours_match_the_values(grid, given):
    axes = given(1, 1)
    ((ax,),) = plot_evidence_grid(grid, ["evidence"], levels=[-3.0, -1.0], axes=axes)
    assert ax is axes
    for level, vertices in contour_lines(ax).items():
        assert_allclose(-(np.log(vertices[:, 0]) ** 2) - 4 * (vertices[:, 1] - 2) ** 2, level, atol=0.12)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("ls", "eta")
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "linear")
    assert_allclose(ax.lines[0].get_xydata(), [[1, 2]])
    assert ax.yaxis.get_tick_params()["labelleft"]


def test_levels_are_dense_near_the_maximum(grid):
    ((ax,),) = plot_evidence_grid(grid, ["evidence"], levels=8)
    levels = np.sort(list(contour_lines(ax)))
    assert len(levels) == 8
    assert (np.diff(levels, 2) < 0).all()
    assert_allclose(levels, levels.round(1))


def test_plot_has_a_row_for_each_quantity_and_a_column_for_each_method(grid):
    axes = plot_evidence_grid({"EP": grid, "VB": grid - 1}, contour_kwargs={"cmap": "magma"})
    assert axes.shape == (3, 2)
    assert [ax.get_title() for ax in axes[:, 1]] == [
        "VB: log evidence", "VB: mean log predictive density", "VB: accuracy",
    ]  # fmt: skip
    assert axes[0, 0].collections[0].get_cmap().name == "magma"
    assert_allclose(axes[2, 0].collections[0].get_array(), grid["accuracy"].T)


def test_grid_points_without_convergence_are_left_out(grid):
    best = {"ls": 10, "eta": 5}
    grid["converged"][best] = False
    ((ax,),) = plot_evidence_grid(grid, ["evidence"])
    assert ax.lines[0].get_xdata() != 1
    grid["converged"][:] = False
    ((ax,),) = plot_evidence_grid(grid, ["accuracy"])
    assert len(ax.collections) == len(ax.lines) == 0


def test_grid_of_one_hyperparameter_is_drawn_as_lines(grid):
    along = grid.isel(eta=5, drop=True)
    along["converged"][3] = False
    axes = plot_evidence_grid({"EP": along, "VB": along - 1}, ["evidence", "mlpd"])
    assert axes.shape == (2, 1)
    drawn = axes[0, 0].lines[0].get_ydata()
    assert np.isnan(drawn[3])
    assert_allclose(np.delete(drawn, 3), np.delete(along["evidence"], 3))
    assert [text.get_text() for text in axes[0, 0].get_legend().get_texts()] == ["EP", "VB"]
    assert axes[1, 0].get_xlabel() == "ls"


def test_invalid_arguments_raise_errors(grid):
    with pytest.raises(ValueError, match="has no iterations, only evidence"):
        plot_evidence_grid(grid, ["iterations"])
    with pytest.raises(ValueError, match="the same one or two hyperparameters"):
        plot_evidence_grid({"EP": grid, "VB": grid.isel(eta=0)})
