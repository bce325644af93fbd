"""Grids of inputs for plots."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from numpy.testing import assert_allclose

from pymc_gpep.plots import input_grid
from pymc_gpep.plots.probabilities import column_names, regular, varying

X = np.random.default_rng(1).normal(size=(20, 4))


def test_grid_covers_the_data_with_a_margin():
    grid = input_grid(X[:, :2], points=5, margin=0.25)
    assert grid.dims == ("new_point", "input")
    assert grid.shape == (25, 2)
    low, high = X[:, :2].min(axis=0), X[:, :2].max(axis=0)
    assert_allclose(grid.min("new_point"), low - 0.25 * (high - low))
    assert_allclose(grid.max("new_point"), high + 0.25 * (high - low))
    assert varying(grid.values) == [0, 1]


def test_fixed_inputs_are_given_values_or_medians():
    frame = pd.DataFrame(X, columns=list("abcd"))
    grid = input_grid(frame, ["c"], points=7, at={"a": 2.0})
    assert list(grid["input"].values) == list("abcd")
    assert varying(grid.values) == [2]
    assert grid.shape == (7, 4)
    assert_allclose(grid[:, 0], 2.0)
    assert_allclose(grid[:, [1, 3]], np.broadcast_to(np.median(X, axis=0)[[1, 3]], (7, 2)))


def test_constant_column_has_a_plot_range():
    assert_allclose(input_grid(np.ones((3, 1)), points=2, margin=0.5), [[0.5], [1.5]])


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        (None, {}, "X has 4 inputs. Choose one or two"),
        ([0, 1, 2], {}, "columns must be one or two different inputs"),
        ([1, 1], {}, "columns must be one or two different inputs"),
        (["e"], {}, "'e' is not an input"),
        ([0], {"at": {9: 0.0}}, "9 is not an input"),
        ([0], {"points": 1}, "points must be at least 2"),
    ],
)
def test_invalid_arguments_raise_errors(columns, options, message):
    with pytest.raises(ValueError, match=message):
        input_grid(X, columns, **options)


def test_inputs_other_than_a_table_raise_value_error():
    with pytest.raises(ValueError, match="one input is a column"):
        input_grid(X[:, 0])


def test_column_names_are_accepted():
    assert column_names(X[:, :1]) == ["input"]
    assert column_names(X[:, :2]) == ["input 0", "input 1"]
    assert column_names(xr.DataArray(X[:, :2], dims=("i", "j"), coords={"j": ["u", "v"]})) == ["u", "v"]


def test_points_of_a_regular_grid_may_come_in_any_order():
    grid = input_grid(X[:, :2], points=6).values
    shuffled = np.random.default_rng(2).permutation(grid)
    first, second, values = regular(shuffled, shuffled)
    assert_allclose(values, np.stack(np.meshgrid(first, second), axis=-1))


def test_points_other_than_a_regular_grid_raise_value_error():
    with pytest.raises(ValueError, match="20 points have 20 × 20 different coordinates"):
        regular(X[:, :2], X)
    with pytest.raises(ValueError, match="but 4 do"):
        varying(X)
