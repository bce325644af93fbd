"""A picture of how well methods predict held-out points."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pymc_gpep.plots.canvas import panels
from pymc_gpep.plots.style import NEUTRAL, colours

_SCORES = {
    "mlpd": "mean log predictive density",
    "accuracy": "accuracy",
    "ranked_probability": "ranked probability score",
    "squared_error": "squared error",
}


def plot_scores(
    table: pd.DataFrame, *, axes: Any = None, point_kwargs: Mapping[str, Any] | None = None
) -> NDArray[Any]:
    """Draw scores of held-out points with their intervals, and their differences to the reference.

    The plots are those of Figures 9 and 10 of the nested EP paper.

    Parameters
    ----------
    table : DataFrame
        Table that `gpep.compare_methods` returned for held-out points.
    axes : array of matplotlib.axes.Axes, optional
        Two for each score.
    point_kwargs : dict, optional
        For `Axes.errorbar`.

    Returns
    -------
    array (scores, 2) of matplotlib.axes.Axes
        Axes of mean log predictive density and accuracy, or of other scores of the likelihood. The differences are to
        the right of each.

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
                    "clip_on": name != "accuracy", "zorder": 3,  # an accuracy may be 1, on the border
                }  # fmt: skip
                ax.errorbar([x], [height], **style | dict(point_kwargs or {}))
            ax.set_xlabel(label if name == score else f"{label},\ndifference to the reference")
        row[1].axvline(0.0, color=NEUTRAL, linewidth=0.8, zorder=0)
        if score == "accuracy":
            row[0].set_xlim(right=min(row[0].get_xlim()[1], 1.0))
        row[0].set_yticks(heights, list(table.index))
        row[0].set_ylim(-0.6, len(table) - 0.4)
    return np.asarray(axes)
