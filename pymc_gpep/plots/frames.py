"""Lines and limits of axes where the same values are on both, or where several axes are compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pymc_gpep.plots.style import NEUTRAL

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def diagonal(ax: Axes, linestyle: str = "-") -> None:
    """Draw the line on which both coordinates are equal; no frame grows for it."""
    drawn = ax.dataLim.frozen()
    ax.axline((0, 0), slope=1, color=NEUTRAL, linewidth=0.8, linestyle=linestyle, zorder=0)
    ax.dataLim.set(drawn)  # which need not reach to the origin


def same_frame(axes: Sequence[Axes]) -> None:
    """Show what is drawn on all these axes, in the same frame with the same scale in both directions."""
    corners = np.concatenate([ax.dataLim.get_points() for ax in axes])
    low, high = corners.min(axis=0), corners.max(axis=0)
    centre, reach = (low + high) / 2, 0.54 * (high - low).max()
    for ax in axes:
        ax.set_xlim(centre[0] - reach, centre[0] + reach)
        ax.set_ylim(centre[1] - reach, centre[1] + reach)
        ax.set_aspect("equal")
