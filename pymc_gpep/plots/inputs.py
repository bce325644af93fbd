"""The inputs of a picture: a regular grid, and what varies in it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from pymc_gpep.argument_types import did_you_mean
from pymc_gpep.array_types import Array


def input_grid(
    X: Any,
    columns: Sequence[int | str] | None = None,
    *,
    points: int | None = None,
    margin: float = 0.1,
    at: Mapping[int | str, float] | None = None,
) -> xr.DataArray:
    """Make a grid of new inputs around data, for predictions to draw.

    Parameters
    ----------
    X : array (n, d), DataFrame, or DataArray
        The data. Names of the inputs are the columns of a DataFrame, or the coords of the second dim.
    columns : sequence of one or two int or str, optional
        Which inputs vary, by position or name; all where there are only one or two.
    points : int, optional
        Number of values in each direction; 300 for one input, 80 for two.
    margin : float
        How far the grid goes beyond the data, as a part of their range.
    at : dict, optional
        Values of inputs that do not vary, by position or name; medians of the data if not given.

    Returns
    -------
    xarray.DataArray
        New inputs (new_point, input), of all d inputs.

    Raises
    ------
    ValueError
        If `X` has a wrong shape, if more than two inputs are to vary, or if there is no such input.

    Examples
    --------
    >>> gpep.plots.input_grid(X, points=5).shape
    """
    names = column_names(X)
    data = np.asarray(X, dtype=np.float64)
    if data.ndim != 2 or not data.size:
        raise ValueError(f"X must be (points, inputs), but has shape {data.shape}; one input is a column, X[:, None].")

    def position(column: int | str) -> int:
        if column in names:
            return names.index(str(column))
        if isinstance(column, int | np.integer) and 0 <= column < len(names):
            return int(column)
        raise ValueError(f"There is no input {column!r}; their names are {names}.{did_you_mean([column], names)}")

    if columns is None and data.shape[1] > 2:
        raise ValueError(
            f"X has {data.shape[1]} inputs. Choose one or two that vary: gpep.plots.input_grid(X, columns=(0, 1))."
        )
    chosen = [position(column) for column in (columns if columns is not None else range(data.shape[1]))]
    if len(chosen) not in (1, 2) or len(set(chosen)) < len(chosen):
        raise ValueError(f"columns must be one or two different inputs, but is {columns}.")
    count = points if points is not None else {1: 300, 2: 80}[len(chosen)]
    if count < 2:
        raise ValueError(f"points must be at least 2, but is {points}.")
    low, high = data.min(axis=0), data.max(axis=0)
    reach = margin * np.where(high > low, high - low, 1.0)
    values = [np.linspace(low[j] - reach[j], high[j] + reach[j], count) for j in chosen]
    grid = np.tile(np.median(data, axis=0), (count ** len(chosen), 1))
    for column, value in (at or {}).items():
        grid[:, position(column)] = value
    for j, along in zip(chosen, np.meshgrid(*values, indexing="ij"), strict=True):
        grid[:, j] = along.ravel()
    return xr.DataArray(grid, dims=("new_point", "input"), coords={"input": names})


def column_names(X: Any) -> list[str]:
    """Names of the inputs, made up where the data have none."""
    if isinstance(X, xr.DataArray) and X.ndim == 2 and X.dims[1] in X.coords:
        return [str(name) for name in X.coords[X.dims[1]].values]
    if hasattr(X, "columns"):
        return [str(name) for name in X.columns]
    count = np.shape(X)[1] if np.ndim(X) == 2 else 1
    return ["input"] if count == 1 else [f"input {j}" for j in range(count)]


def varying(x: Array) -> list[int]:
    """Which one or two columns of new inputs (m, d) differ between points.

    Raises
    ------
    ValueError
        If no column differs, or if more than two do.
    """
    columns = [int(j) for j in np.flatnonzero(np.ptp(x, axis=0) > 0)] if len(x) else []
    if len(columns) not in (1, 2):
        raise ValueError(
            f"One or two inputs must vary in Xnew, but {len(columns)} do. gpep.plots.input_grid makes such grids."
        )
    return columns


def regular(x: Array, values: Array) -> tuple[Array, Array, Array]:
    """Put values (m, c) at the points (m, 2) of a regular grid, in any order, onto it.

    Returns
    -------
    tuple of arrays
        Of both inputs their values, (p,) and (q,), and the grid (q, p, c).

    Raises
    ------
    ValueError
        If the points are no regular grid.
    """
    (first, i), (second, j) = (np.unique(x[:, k], return_inverse=True) for k in range(2))
    p, q = len(first), len(second)
    if len(x) != p * q or len(set((i * q + j).tolist())) != p * q:
        raise ValueError(
            f"Xnew must be a regular grid, but its {len(x)} points have {p} × {q} different coordinates. "
            "gpep.plots.input_grid makes one."
        )
    grid = np.empty((q, p, values.shape[1]))
    grid[j, i] = values
    return first, second, grid
