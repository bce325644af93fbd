"""Pictures of the evidence, and of scores for held-out points, over a grid of hyperparameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray

from pymc_gpep.argument_types import did_you_mean
from pymc_gpep.array_types import Array
from pymc_gpep.plots.canvas import LINE_STYLES, MARKERS, NEUTRAL, colours, label_of, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_TITLES = {
    "evidence": "log evidence",
    "mlpd": "mean log predictive density",
    "accuracy": "accuracy",
    "ranked_probability": "ranked probability score",
    "squared_error": "squared error",
    "information": "information, bits",
    "bound": "lower bound of the log evidence",
    "errors": "errors",
    "iterations": "iterations",
}
_STEPS = ("accuracy", "errors", "iterations")
"""Quantities with few distinct values. They are drawn as cells, not as contours."""
_LOWER = ("ranked_probability", "squared_error", "errors")
"""Quantities for which lower values are better."""


def plot_evidence_grid(
    grids: xr.Dataset | Mapping[str, xr.Dataset],
    quantities: Sequence[str] | None = None,
    *,
    levels: int | Sequence[float] = 12,
    axes: Any = None,
    contour_kwargs: Mapping[str, Any] | None = None,
) -> NDArray[Any]:
    """Draw results of `gpep.diagnostics.evidence_grid`, as in Figure 7 of the nested EP paper.

    Over two hyperparameters a quantity is drawn by contours, or by cells if it has few values. There is a row for each
    quantity and a column for each method. The best point of the grid is marked, and points without convergence are
    white. Over one hyperparameter quantities are drawn by lines.

    Parameters
    ----------
    grids : Dataset or dict of str to Dataset
        Results of `gpep.diagnostics.evidence_grid`, by name of the method.
    quantities : sequence of str, optional
        Quantities to draw, such as "evidence", "mlpd", "accuracy" or "iterations". The default is all scores except
        `information`.
    levels : int or sequence of float
        Number of contours, or their values. A number of contours is placed more densely near the best value.
    axes : array of matplotlib.axes.Axes, optional
        One axes for each quantity and method. Over one hyperparameter, one axes for each quantity.
    contour_kwargs : dict, optional
        Arguments of `Axes.contourf`, or of `Axes.plot` over one hyperparameter.

    Returns
    -------
    array (quantities, methods) of matplotlib.axes.Axes
        Over one hyperparameter (quantities, 1).

    Raises
    ------
    ValueError
        If a quantity was not computed, if the grids have different dims, or more than two.

    Examples
    --------
    >>> grid = gpep.diagnostics.evidence_grid(model, {"ls": [0.5, 1.0, 2.0], "eta": [1.0, 5.0, 9.0]})
    >>> gpep.plots.plot_evidence_grid(grid, ["evidence"])
    """
    named = {"": grids} if isinstance(grids, xr.Dataset) else dict(grids)
    dims = {tuple(grid["evidence"].dims) for grid in named.values()}
    if len(dims) != 1 or len(next(iter(dims))) not in (1, 2):
        raise ValueError(f"grids must be over the same one or two hyperparameters, but are over {sorted(dims)}.")
    (over,) = dims
    first = next(iter(named.values()))
    quantities = (
        [name for name in _TITLES if name in first and name != "iterations"] if quantities is None else quantities
    )
    for name, grid in named.items():
        if missing := [quantity for quantity in quantities if quantity not in grid]:
            raise ValueError(
                f"The grid {name!r} has no {', '.join(missing)}, only {', '.join(map(str, grid.data_vars))}."
                f"{did_you_mean(missing, grid.data_vars)}"
            )
    options = dict(contour_kwargs or {})
    if len(over) == 1:
        axes = panels(axes, len(quantities), 1, (5.5, 3.0), sharex=True)
        for ax, quantity in zip(axes[:, 0], quantities, strict=True):
            _draw_lines(ax, named, quantity, str(over[0]), options)
        axes[-1, 0].set_xlabel(label_of(over[0]))
        if len(named) > 1:
            axes[0, 0].legend()
        return np.asarray(axes)
    own = axes is None
    axes = panels(axes, len(quantities), len(named), (4.4, 3.4), sharex=True, sharey=True)
    for row, quantity in zip(axes, quantities, strict=True):
        for ax, (name, grid) in zip(row, named.items(), strict=True):
            _draw_contours(ax, grid, quantity, levels, options)
            title = _TITLES.get(quantity, quantity)
            ax.set_title(f"{name}: {title}" if name else title, fontsize="medium")
            ax.set(xlabel=label_of(over[0]), ylabel=label_of(over[1]))
            if own:
                ax.label_outer()
    return np.asarray(axes)


def _geometric(values: Array) -> bool:
    """Return whether the spacing of values is more even on a logarithmic scale."""
    if len(values) < 3 or (values <= 0).any():
        return False
    plain, logarithmic = np.diff(values), np.diff(np.log(values))
    return bool(np.ptp(logarithmic) / np.abs(logarithmic).mean() < np.ptp(plain) / np.abs(plain).mean())


def _where_converged(grid: xr.Dataset, quantity: str) -> xr.DataArray:
    return grid[quantity].where(grid["converged"])


def _draw_lines(ax: Axes, named: Mapping[str, xr.Dataset], quantity: str, over: str, options: Any) -> None:
    for i, ((name, grid), colour) in enumerate(zip(named.items(), colours(len(named)), strict=True)):
        values = _where_converged(grid, quantity).values
        style = {
            "color": colour, "linestyle": LINE_STYLES[i % len(LINE_STYLES)], "marker": MARKERS[i % len(MARKERS)],
            "markersize": 4, "label": name,
        }  # fmt: skip
        ax.plot(grid[over].values, values, **style | options)
    if _geometric(next(iter(named.values()))[over].values):
        ax.set_xscale("log")
    ax.set_ylabel(_TITLES.get(quantity, quantity))


def _draw_contours(ax: Axes, grid: xr.Dataset, quantity: str, levels: Any, options: Any) -> None:
    over = [str(dim) for dim in grid[quantity].dims]
    x, y = (grid[dim].values for dim in over)
    values = np.ma.masked_invalid(_where_converged(grid, quantity).values.T)
    for dim, set_scale in zip(over, (ax.set_xscale, ax.set_yscale), strict=True):
        if _geometric(grid[dim].values):
            set_scale("log")
    ax.set(xlim=(x.min(), x.max()), ylim=(y.min(), y.max()))
    if values.mask.all():
        return
    sign = -1.0 if quantity in _LOWER else 1.0
    at = _levels(values.compressed(), levels, sign)
    if quantity in _STEPS:
        ax.figure.colorbar(ax.pcolormesh(x, y, values, shading="nearest", cmap="viridis"), ax=ax)
    elif len(at) > 1:
        filled = ax.contourf(x, y, values, **{"levels": at, "cmap": "viridis", "extend": "both"} | options)
        lines = ax.contour(x, y, values, levels=at, colors="black", linewidths=0.5, linestyles="solid")
        ax.clabel(lines, np.asarray(lines.levels)[::-2], fmt="%g", fontsize=7)
        ax.figure.colorbar(filled, ax=ax, format="%g")
    if quantity != "iterations":
        best = np.unravel_index(np.argmax(sign * values), values.shape)
        ax.plot(x[best[1]], y[best[0]], "*", color="white", markeredgecolor="black", markersize=12, clip_on=False)


def _levels(values: Array, levels: int | Sequence[float], sign: float) -> Array:
    """Return levels of contours. An integer is a number of levels, placed more densely near the best value."""
    if not isinstance(levels, int | np.integer):
        return np.unique(levels)
    best, worst = (values.max(), values.min()) if sign > 0 else (values.min(), values.max())
    if best == worst:
        return np.array([best])
    at = best - (best - worst) * (np.arange(1, levels + 1) / (levels + 1)) ** 2
    return np.unique(np.round(at, int(np.ceil(-np.log10(np.ptp(at[:2]))))) if levels > 1 else at)


_SCORES = {
    "mlpd": "mean log predictive density",
    "accuracy": "accuracy",
    "ranked_probability": "ranked probability score",
    "squared_error": "squared error",
}


def plot_scores(
    table: pd.DataFrame, *, axes: Any = None, point_kwargs: Mapping[str, Any] | None = None
) -> NDArray[Any]:
    """Draw scores for held-out points with their intervals, and their differences from the reference.

    Figures 9 and 10 of the nested EP paper have these plots.

    Parameters
    ----------
    table : DataFrame
        Result of `gpep.compare_methods` with held-out points.
    axes : array of matplotlib.axes.Axes, optional
        Two axes for each score.
    point_kwargs : dict, optional
        Arguments of `Axes.errorbar`.

    Returns
    -------
    array (scores, 2) of matplotlib.axes.Axes
        Axes of mean log predictive density and accuracy, or of other scores of the likelihood. The second column shows
        the differences.

    Raises
    ------
    ValueError
        If the table has no scores.

    Examples
    --------
    >>> table = gpep.compare_methods({"EP": ep, "MCMC": mcmc}, "MCMC", gp=gp, Xnew=Xnew, ynew=ynew)
    >>> gpep.plots.plot_scores(table)
    """
    scores = {name: label for name, label in _SCORES.items() if name in table}
    if not scores:
        raise ValueError("The table has no scores. gpep.compare_methods computes them given Xnew and ynew.")
    axes = panels(axes, len(scores), 2, (4.2, 1.2 + 0.3 * len(table)), sharey=True)
    heights = np.arange(len(table))[::-1]
    for row, (score, label) in zip(axes, scores.items(), strict=True):
        for ax, name in zip(row, (score, f"{score}_difference"), strict=True):
            low, middle, high = (table[f"{name}{which}"].to_numpy() for which in ("_low", "", "_high"))
            for height, left, x, right, colour in zip(heights, low, middle, high, colours(len(table)), strict=True):
                style = {
                    "fmt": "o", "color": colour, "xerr": [[x - left], [right - x]], "elinewidth": 1.6,
                    "clip_on": name != "accuracy", "zorder": 3,  # An accuracy of 1 is on the border.
                }  # fmt: skip
                ax.errorbar([x], [height], **style | dict(point_kwargs or {}))
            ax.set_xlabel(label if name == score else f"{label},\ndifference to the reference")
        row[1].axvline(0.0, color=NEUTRAL, linewidth=0.8, zorder=0)
        if score == "accuracy":
            row[0].set_xlim(right=min(row[0].get_xlim()[1], 1.0))
        row[0].set_yticks(heights, list(table.index))
        row[0].set_ylim(-0.6, len(table) - 0.4)
    return np.asarray(axes)
