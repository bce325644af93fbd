"""Pictures of class probabilities over one or two inputs, and grids of inputs for such pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike, NDArray

from pymc_gpep.argument_types import did_you_mean
from pymc_gpep.array_types import Array
from pymc_gpep.fits.fit import Fit
from pymc_gpep.plots.canvas import MARKERS, NEUTRAL, colours, diagonal, label_of, panels, single
from pymc_gpep.rows.fingerprint import FormerRows

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def input_grid(
    X: Any,
    columns: Sequence[int | str] | None = None,
    *,
    points: int | None = None,
    margin: float = 0.1,
    at: Mapping[int | str, float] | None = None,
) -> xr.DataArray:
    """Return a grid of new inputs around data, for pictures of predictions.

    Parameters
    ----------
    X : array (n, d), DataFrame, or DataArray
        Data. Names of the inputs are the columns of a DataFrame, or the coords of the second dim of a DataArray.
    columns : sequence of one or two int or str, optional
        Inputs that vary, by position or name. If there are one or two inputs, the default is all inputs.
    points : int, optional
        Number of values in each direction. The default is 300 for one input and 80 for two.
    margin : float
        Distance from the data to the border of the grid, as a fraction of the range of the data.
    at : dict, optional
        Values of inputs that do not vary, by position or name. The default is the medians of the data.

    Returns
    -------
    xarray.DataArray
        New inputs (new_point, input), of all d inputs.

    Raises
    ------
    ValueError
        If `X` has the wrong shape, if more than two inputs vary, or if an input does not exist.

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
        raise ValueError(f"{column!r} is not an input; the inputs are {names}.{did_you_mean([column], names)}")

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
    """Return the names of the inputs (columns of X). Data without names have numbered names."""
    if isinstance(X, xr.DataArray) and X.ndim == 2 and X.dims[1] in X.coords:
        return [str(name) for name in X.coords[X.dims[1]].values]
    if hasattr(X, "columns"):
        return [str(name) for name in X.columns]
    count = np.shape(X)[1] if np.ndim(X) == 2 else 1
    return ["input"] if count == 1 else [f"input {j}" for j in range(count)]


def varying(x: Array) -> list[int]:
    """Return the columns (one or two) of new inputs (m, d) that differ between points.

    Raises
    ------
    ValueError
        If no column or more than two columns differ.
    """
    columns = [int(j) for j in np.flatnonzero(np.ptp(x, axis=0) > 0)] if len(x) else []
    if len(columns) not in (1, 2):
        raise ValueError(
            f"One or two inputs must vary in Xnew, but {len(columns)} do. gpep.plots.input_grid makes such grids."
        )
    return columns


def regular(x: Array, values: Array) -> tuple[Array, Array, Array]:
    """Reshape values (m, c) at points (m, 2) of a regular grid to the axes of the grid. Points may be in any order.

    Returns
    -------
    tuple of arrays
        Values of both inputs, (p,) and (q,), and the grid (q, p, c).

    Raises
    ------
    ValueError
        If the points are not a regular grid.
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


_ROW = 0.045  # Points of a class form a row. Rows have this distance, in units of probability.


def plot_probabilities(
    source: Fit | xr.DataArray | xr.Dataset | ArrayLike,
    gp: Any = None,
    Xnew: Any = None,
    *,
    X: Any = None,
    y: ArrayLike | None = None,
    levels: Sequence[float] = (0.75, 0.95),
    ax: Axes | None = None,
    legend: bool = True,
    line_kwargs: Mapping[str, Any] | None = None,
    boundary_kwargs: Mapping[str, Any] | None = None,
    point_kwargs: Mapping[str, Any] | None = None,
) -> Axes:
    """Draw class probabilities over one input as lines, or over two as colours with decision boundaries.

    Parameters
    ----------
    source : Fit, DataArray, Dataset or array (m, c)
        A fit, or class probabilities at `Xnew`, for example from `fit.predict` or `gpep.predict_draws`.
    gp : pm.gp.Latent or sequence of them, optional
        With a fit: processes of the latent values, if the graph of the model does not determine the prior at new
        inputs.
    Xnew : array (m, d), optional
        New inputs. One or two of them vary. Two varying inputs must form a regular grid, see `input_grid`. With a fit
        the default is a grid around its data.
    X : array (n, d), optional
        Data to draw. With a fit the default is its data.
    y : array (n,) of int, optional
        Labels of the data, 0...c-1.
    levels : sequence of float
        Class probabilities at which contour lines are drawn, for two inputs.
    ax : matplotlib.axes.Axes, optional
    legend : bool
    line_kwargs : dict, optional
        Arguments of `Axes.plot` for lines over one input.
    boundary_kwargs : dict, optional
        Arguments of `Axes.contour` for boundaries over two inputs.
    point_kwargs : dict, optional
        Arguments of `Axes.scatter` for the data.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ValueError
        If `Xnew` is required and missing, or if shapes do not match.

    Examples
    --------
    >>> gpep.plots.plot_probabilities(ep)
    >>> gpep.plots.plot_probabilities(ep, gp, gpep.plots.input_grid(X, points=20), X=X, y=y)
    """
    if isinstance(source, Fit):
        if X is None and (Xnew is None or not isinstance(source.rows, FormerRows)):
            X, y = source.fitted_inputs(gp), source.labels(gp)
            y = y if y.ndim == 1 else y.argmax(axis=1)  # Use the class with most votes.
        if Xnew is None:
            Xnew = input_grid(X)
        p = source.predict(gp, Xnew)["p"]
    elif Xnew is None:
        raise ValueError("Class probabilities need the inputs that they belong to: Xnew=...")
    else:
        p = class_probability_array(source)
    x = np.asarray(Xnew, dtype=np.float64)
    if x.ndim != 2 or len(x) != len(p):
        raise ValueError(f"Xnew must be (points, inputs) for {len(p)} points, but has shape {x.shape}.")
    columns = varying(x)
    names = [column_names(Xnew)[j] for j in columns]
    data = None if X is None or y is None else (_columns(X, columns, x.shape[1]), np.asarray(y, dtype=np.int64))
    ax = single(ax)
    draw = _over_one_input if len(columns) == 1 else _over_two_inputs
    options = {"line": line_kwargs or {}, "boundary": boundary_kwargs or {}, "point": point_kwargs or {}}
    draw(ax, x[:, columns], p, data, levels, options)
    ax.set_xlabel(label_of(names[0]))
    ax.set_ylabel("class probability" if len(columns) == 1 else label_of(names[1]))
    if legend:
        ax.legend(title=label_of(p.dims[1]))
    return ax


def class_probability_array(source: Any) -> xr.DataArray:
    """Return class probabilities as a DataArray (point, class), with labels of classes as coords.

    Raises
    ------
    ValueError
        If the array does not have two axes.
    """
    p = source["p"] if isinstance(source, xr.Dataset) else source
    if not isinstance(p, xr.DataArray):
        p = xr.DataArray(np.asarray(p, dtype=np.float64), dims=("point", "class")[: np.ndim(p)])
    if p.ndim != 2:
        raise ValueError(f"Class probabilities must be (point, class), but have shape {p.shape}.")
    return p


def row_of_class(k: Any) -> Any:
    """Return the vertical position of the points of class k, below the probabilities over one input."""
    return -_ROW * (k + 1)


def _columns(X: Any, columns: list[int], width: int) -> Array:
    data = np.asarray(X, dtype=np.float64)
    if data.ndim != 2 or data.shape[1] != width:
        raise ValueError(f"X must have the {width} columns of Xnew, but has shape {data.shape}.")
    return data[:, columns]


def _labels(p: xr.DataArray) -> list[str]:
    dim = p.dims[1]
    return [label_of(name) for name in (p.coords[dim].values if dim in p.coords else range(p.shape[1]))]


def _over_one_input(
    ax: Axes, x: Array, p: xr.DataArray, data: Any, levels: Sequence[float], options: Mapping[str, Any]
) -> None:
    order = np.argsort(x[:, 0])
    labels, palette = _labels(p), colours(p.shape[1])
    for k, (name, colour) in enumerate(zip(labels, palette, strict=True)):
        ax.plot(x[order, 0], p.values[order, k], **{"color": colour, "label": name} | options["line"])
    bottom = -0.02
    if data is not None:
        inputs, y = data
        for k, colour in enumerate(palette):
            # Draw the points of each class in a separate row, below the axis of probabilities.
            row = np.full(np.count_nonzero(y == k), row_of_class(k))
            style = {"marker": MARKERS[k % len(MARKERS)], "s": 18, "color": colour, "alpha": 0.7, "linewidth": 0}
            ax.scatter(inputs[y == k, 0], row, **style | options["point"])
        bottom -= _ROW * (len(palette) + 0.5)
        ax.axhline(0.0, color=NEUTRAL, linewidth=0.6, zorder=0)
    ax.set_ylim(bottom, 1.02)
    ax.set_yticks(np.linspace(0, 1, 6))


def _over_two_inputs(
    ax: Axes, x: Array, p: xr.DataArray, data: Any, levels: Sequence[float], options: Mapping[str, Any]
) -> None:
    from matplotlib.colors import to_rgb

    first, second, grid = regular(x, p.values)
    palette = np.array([to_rgb(colour) for colour in colours(p.shape[1])])
    light = 1.0 - 0.6 * (1.0 - palette)  # Make the colours lighter than the colours of the points.
    step = (first[-1] - first[0]) / (len(first) - 1) / 2, (second[-1] - second[0]) / (len(second) - 1) / 2
    extent = (first[0] - step[0], first[-1] + step[0], second[0] - step[1], second[-1] + step[1])
    # Equally probable classes are white. A mixture of their colours could resemble the colour of another class.
    share = 1.0 / p.shape[1]
    weight = np.maximum(grid - share, 0.0) / (1.0 - share)
    ax.imshow(
        np.clip(1.0 - weight @ (1.0 - light), 0, 1),
        origin="lower",
        extent=extent,
        aspect="auto",
        interpolation="bilinear",
    )
    for k, colour in enumerate(palette):
        others = np.delete(grid, k, axis=2).max(axis=2)
        if (margin := grid[:, :, k] - others).min() < 0 < margin.max():
            style = {"colors": "black", "linewidths": 1.4} | options["boundary"]
            ax.contour(first, second, margin, levels=[0.0], **style)
        inside = [level for level in sorted(levels) if grid[:, :, k].min() < level < grid[:, :, k].max()]
        if inside:
            lines = ax.contour(first, second, grid[:, :, k], levels=inside, colors=[0.6 * colour], linewidths=0.8)
            ax.clabel(lines, fmt="%g", fontsize=7)
    for k, (name, colour) in enumerate(zip(_labels(p), palette, strict=True)):
        if data is None:
            ax.scatter([], [], marker="s", s=60, color=[light[k]], label=name)
            continue
        inputs, y = data
        style = {
            "marker": MARKERS[k % len(MARKERS)], "s": 26, "color": [colour], "edgecolors": "white", "linewidths": 0.6,
            "label": name, "zorder": 3,
        }  # fmt: skip
        ax.scatter(*inputs[y == k].T, **style | options["point"])
    ax.set_xlim(extent[:2])
    ax.set_ylim(extent[2:])


def plot_probability_comparison(
    probabilities: Mapping[str, Any],
    reference: str,
    y: ArrayLike | None = None,
    *,
    axes: Any = None,
    legend: bool = True,
    point_kwargs: Mapping[str, Any] | None = None,
) -> NDArray[Any]:
    """Draw class probabilities of each method against a reference, as in Figure 5 of the nested EP paper.

    Parameters
    ----------
    probabilities : dict of str to DataArray, Dataset or array (m, c)
        Class probabilities at the same points, for example from `fit.predict` or `gpep.predict_draws`.
    reference : str
        Name of the probabilities on the horizontal axis.
    y : array (m,) of int, optional
        Labels of the points, 0...c-1. With labels, only the probability of the label is drawn for each point, in the
        colour of the label. Without labels, probabilities of all classes are drawn.
    axes : array of matplotlib.axes.Axes, optional
        One axes for each method except the reference.
    legend : bool
    point_kwargs : dict, optional
        Arguments of `Axes.scatter`.

    Returns
    -------
    array (methods,) of matplotlib.axes.Axes

    Raises
    ------
    ValueError
        If `reference` is not among the names, if it is the only name, or if shapes differ.

    Examples
    --------
    >>> p = {"EP": ep.predict(gp, Xnew)["p"], "MCMC": gpep.predict_draws(mcmc, gp, Xnew, model=model)["p"]}
    >>> gpep.plots.plot_probability_comparison(p, "MCMC", ynew)
    """
    arrays = {name: class_probability_array(p) for name, p in probabilities.items()}
    if reference not in arrays or len(arrays) < 2:
        meant = did_you_mean([reference] if reference not in arrays else [], arrays)
        raise ValueError(f"{reference!r} must be among at least two methods, but they are {list(arrays)}.{meant}")
    if len({p.shape for p in arrays.values()}) > 1:
        shapes = {name: p.shape for name, p in arrays.items()}
        raise ValueError(f"Class probabilities must be at the same points, but have shapes {shapes}.")
    base = arrays.pop(reference)
    m, c = base.shape
    chosen, what = np.ones((m, c), bool), "class probability"
    if y is not None:
        what = "probability of the label"
        labels = np.asarray(y)
        if labels.shape != (m,):
            raise ValueError(f"y must be one label for each of {m} points, but has shape {labels.shape}.")
        chosen = labels[:, None] == np.arange(c)
    dim = base.dims[1]
    names = base.coords[dim].values if dim in base.coords else range(c)
    axes = panels(axes, 1, len(arrays), (3.6, 3.6), sharey=True)[0]
    for ax, (name, p) in zip(axes, arrays.items(), strict=True):
        diagonal(ax)
        for k, (label, colour) in enumerate(zip(names, colours(c), strict=True)):
            style = {
                "marker": MARKERS[k % len(MARKERS)], "s": 22, "facecolor": "none", "edgecolor": colour,
                "linewidth": 1.0, "label": label_of(label),
            }  # fmt: skip
            ax.scatter(base.values[chosen[:, k], k], p.values[chosen[:, k], k], **style | dict(point_kwargs or {}))
        ax.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), aspect="equal")
        ax.set(xlabel=f"{what}, {reference}", ylabel=f"{what}, {name}")
    if legend:
        axes[0].legend(title=label_of(dim))
    return np.asarray(axes)
