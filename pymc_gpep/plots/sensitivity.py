"""A picture of how far a fit moves under other priors of a hyperparameter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from pymc_gpep.argument_types import did_you_mean
from pymc_gpep.plots.canvas import single
from pymc_gpep.plots.style import MARKERS, NEUTRAL, colours

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ROW = 0.45  # inches for a variable
_SPREAD = 0.6  # of the height of a row, over which priors are apart


def plot_sensitivity(
    table: pd.DataFrame,
    names: Sequence[str] | None = None,
    *,
    ax: Axes | None = None,
    point_kwargs: Mapping[str, Any] | None = None,
) -> Axes:
    """Draw means and intervals of variables under each prior, relative to those of the fit.

    Zero is the mean under the prior of the model, and one is its standard deviation.

    Parameters
    ----------
    table : DataFrame
        The table that `Fit.sensitivity` returned.
    names : sequence of str, optional
        Rows of it, such as "u[0]"; all of them if not given.
    ax : matplotlib.axes.Axes, optional
    point_kwargs : dict, optional
        For `Axes.errorbar`.

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
        # The mean of a skewed marginal may be outside of a short interval.
        ends = np.maximum([x - left, right - x], 0.0)
        ax.errorbar(x, heights + shifts[i], xerr=ends, **style | dict(point_kwargs or {}))
    ax.axvline(0.0, color=NEUTRAL, linewidth=0.8, zorder=0)
    ax.set_yticks(heights, wanted)
    ax.set_ylim(-0.6, len(wanted) - 0.4)
    ax.set_xlabel("change, in standard deviations of the fit")
    ax.legend(title="prior")
    return ax
