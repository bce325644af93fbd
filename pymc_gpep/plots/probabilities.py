"""Class probabilities over one or two inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike

from pymc_gpep.array_types import Array
from pymc_gpep.fits.fit import Fit
from pymc_gpep.plots.canvas import single
from pymc_gpep.plots.inputs import column_names, input_grid, regular, varying
from pymc_gpep.plots.style import MARKERS, NEUTRAL, colours, label_of
from pymc_gpep.rows.fingerprint import FormerRows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ROW = 0.045  # height of a row of data, in units of probability


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
        A fit, or class probabilities at `Xnew`: from `fit.predict`, from `gpep.predict_draws`, or any others.
    gp : pm.gp.Latent or sequence of them, optional
        With a fit: what made the latent values, where the graph of the model does not say what their prior is.
    Xnew : array (m, d), optional
        New inputs of which one or two vary; two on a regular grid, see `input_grid`. With a fit the default is a grid
        around its data.
    X : array (n, d), optional
        Data to draw; with a fit the default is its own.
    y : array (n,) of int, optional
        Labels of the data, 0...c-1.
    levels : sequence of float
        With two inputs: class probabilities to draw contour lines of.
    ax : matplotlib.axes.Axes, optional
    legend : bool
    line_kwargs : dict, optional
        For `Axes.plot`: lines over one input.
    boundary_kwargs : dict, optional
        For `Axes.contour`: boundaries over two inputs.
    point_kwargs : dict, optional
        For `Axes.scatter`: the data.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ValueError
        If `Xnew` is needed and missing, or if shapes do not fit.

    Examples
    --------
    >>> gpep.plots.plot_probabilities(ep)
    >>> gpep.plots.plot_probabilities(ep, gp, gpep.plots.input_grid(X, points=20), X=X, y=y)
    """
    if isinstance(source, Fit):
        if X is None and (Xnew is None or not isinstance(source.rows, FormerRows)):
            X, y = source.fitted_inputs(gp), source.labels(gp)
            y = y if y.ndim == 1 else y.argmax(axis=1)  # the class with most votes
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
    """Class probabilities (point, class) with the labels of the classes.

    Raises
    ------
    ValueError
        If they have another number of axes.
    """
    p = source["p"] if isinstance(source, xr.Dataset) else source
    if not isinstance(p, xr.DataArray):
        p = xr.DataArray(np.asarray(p, dtype=np.float64), dims=("point", "class")[: np.ndim(p)])
    if p.ndim != 2:
        raise ValueError(f"Class probabilities must be (point, class), but have shape {p.shape}.")
    return p


def row_of_class(k: Any) -> Any:
    """Where data of a class are drawn, below the probabilities over one input."""
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
            # One row for each class below the axis of probabilities.
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
    light = 1.0 - 0.6 * (1.0 - palette)  # so that points of the same colours stand out
    step = (first[-1] - first[0]) / (len(first) - 1) / 2, (second[-1] - second[0]) / (len(second) - 1) / 2
    extent = (first[0] - step[0], first[-1] + step[0], second[0] - step[1], second[-1] + step[1])
    # White where all classes are equally probable, so that no mixture is taken for the colour of another class.
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
