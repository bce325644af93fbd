"""Pictures of hyperparameters: relevance of inputs, and sensitivity to priors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr

from pymc_gpep.argument_types import did_you_mean
from pymc_gpep.comparison.fits_and_draws import Result, by_name, hyperparameter_draws
from pymc_gpep.plots.canvas import MARKERS, NEUTRAL, colours, label_of, single

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_relevance(
    results: Mapping[str, Result] | Result,
    var_name: str = "ls",
    *,
    inverse: bool = True,
    prob: float = 0.9,
    sort: bool = True,
    ax: Axes | None = None,
    legend: bool = True,
    point_kwargs: Mapping[str, Any] | None = None,
) -> Axes:
    """Draw the relevance of each input, the inverse of its length scale (automatic relevance determination).

    Relevances are comparable if inputs have the same scale. Draws from MCMC are shown by medians with central
    intervals. A fit at the maximum is a point for each input. A fit that integrates over hyperparameters is shown by
    the median and the central interval of their density, or of its weighted nodes.

    Parameters
    ----------
    results : Fit or DataTree, or dict of str to them
        Results of `pm.fit`, and draws.
    var_name : str
        Name of the length scales, a vector of hyperparameters.
    inverse : bool
        Whether to draw the inverse. Set it to False if the variable is itself a relevance.
    prob : float
        Probability of the intervals.
    sort : bool
        Whether inputs are sorted by their relevance in the first result, the most relevant on top.
    ax : matplotlib.axes.Axes, optional
    legend : bool
    point_kwargs : dict, optional
        Arguments of `Axes.errorbar`.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    TypeError
        If a result is neither a fit nor a DataTree.
    ValueError
        If the variable does not exist or is not a vector, or if `prob` is not a probability.

    Examples
    --------
    >>> gpep.plots.plot_relevance({"EP": ep, "MCMC": mcmc}, "ls")
    """
    if not 0 < prob < 1:
        raise ValueError(f"prob must be in (0, 1), but is {prob}.")
    named = by_name(results)
    summaries = {}
    for name, result in named.items():
        draws = hyperparameter_draws(result, var_name)
        if draws.ndim != 2:
            raise ValueError(
                f"{var_name!r} must be a vector with an element for each input, but has {draws.ndim - 1} axes."
            )
        values = 1.0 / draws if inverse else draws
        summaries[name] = _summary(values, prob)
    first = next(iter(summaries.values()))
    if any(summary.shape != first.shape for summary in summaries.values()):
        raise ValueError(f"{var_name!r} has different lengths: { {n: s.shape[1] for n, s in summaries.items()} }.")
    dim = first.dims[1]
    labels = [label_of(name) for name in first[dim].values] if dim in first.coords else list(range(first.shape[1]))
    order = np.argsort(first.values[1]) if sort else np.arange(len(labels))[::-1]
    ax = single(ax, (6.0, 1.2 + (0.25 + 0.12 * len(named)) * len(labels)))
    heights = np.arange(len(labels))
    for i, ((name, summary), colour) in enumerate(zip(summaries.items(), colours(len(named)), strict=True)):
        low, middle, high = summary.values[:, order]
        shift = 0.0 if len(named) == 1 else 0.25 - 0.5 * i / (len(named) - 1)
        style = {
            "fmt": MARKERS[i % len(MARKERS)], "color": colour, "markersize": 5, "elinewidth": 1.4, "label": name,
            "xerr": [middle - low, high - middle] if (high > low).any() else None,
        }  # fmt: skip
        ax.errorbar(middle, heights + shift, **style | dict(point_kwargs or {}))
    ax.set_yticks(heights, [labels[j] for j in order])
    ax.set_ylim(-0.6, len(labels) - 0.4)
    ax.set_xlim(left=0)
    ax.grid(axis="y", linewidth=0.4, alpha=0.5)
    ax.set_xlabel(f"relevance, {'1 / ' if inverse else ''}{label_of(var_name)}")
    if legend and len(named) > 1:
        ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4, frameon=False)
    return ax


def _summary(relevance: xr.DataArray, prob: float) -> xr.DataArray:
    """Return lower end, median and upper end (3, inputs) of the interval with this probability."""
    levels = np.array([(1 - prob) / 2, 0.5, (1 + prob) / 2])
    return xr.DataArray(relevance.weighted(relevance["weight"]).quantile(levels, dim="sample"))


_ROW = 0.45  # Height of the row of a variable, in inches.
_SPREAD = 0.6  # The intervals of all priors use this share of the height of a row.


def plot_sensitivity(
    table: pd.DataFrame,
    names: Sequence[str] | None = None,
    *,
    ax: Axes | None = None,
    point_kwargs: Mapping[str, Any] | None = None,
) -> Axes:
    """Draw means and intervals of variables under each prior, relative to the fit.

    Zero is the mean under the prior of the model, and one is its standard deviation.

    Parameters
    ----------
    table : DataFrame
        Result of `Fit.sensitivity`.
    names : sequence of str, optional
        Rows of the table, such as "u[0]". The default is all rows.
    ax : matplotlib.axes.Axes, optional
    point_kwargs : dict, optional
        Arguments of `Axes.errorbar`.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ValueError
        If a name is not in the table.

    Examples
    --------
    >>> gpep.plots.plot_sensitivity(mixed.sensitivity("sigma", {"wide": pm.HalfNormal.dist(5)}), ["slope"])
    """
    priors = list(dict.fromkeys(table.index.get_level_values("prior")))
    fitted = table.loc[priors[0]]
    wanted = list(fitted.index) if names is None else list(names)
    if unknown := [name for name in wanted if name not in fitted.index]:
        raise ValueError(f"The table has no row {unknown[0]!r}.{did_you_mean(unknown[:1], fitted.index)}")
    ax = single(ax, (6.0, 0.8 + _ROW * len(wanted)))
    heights = np.arange(len(wanted))[::-1]
    shifts = _SPREAD * (0.5 - (np.arange(len(priors)) + 0.5) / len(priors))
    low, high = [column for column in table.columns if column.startswith("eti")]
    centre, sd = (fitted.loc[wanted, column].to_numpy() for column in ("mean", "sd"))
    for i, (prior, colour) in enumerate(zip(priors, colours(len(priors)), strict=True)):
        own = table.loc[prior].loc[wanted]
        x, left, right = ((own[column].to_numpy() - centre) / sd for column in ("mean", low, high))
        style = {"fmt": MARKERS[i % len(MARKERS)], "color": colour, "elinewidth": 1.4, "label": prior}
        # The mean of a skewed marginal may be outside a short interval. Its distance to the interval is then 0.
        ends = np.maximum([x - left, right - x], 0.0)
        ax.errorbar(x, heights + shifts[i], xerr=ends, **style | dict(point_kwargs or {}))
    ax.axvline(0.0, color=NEUTRAL, linewidth=0.8, zorder=0)
    ax.set_yticks(heights, wanted)
    ax.set_ylim(-0.6, len(wanted) - 0.4)
    ax.set_xlabel("change, in standard deviations of the fit")
    ax.legend(title="prior")
    return ax
