"""Contours of a joint density of two variables, of a Gaussian's and of draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import gaussian_kde

from pymc_gpep.array_types import Array
from pymc_gpep.plots.style import NEUTRAL

if TYPE_CHECKING:
    from matplotlib.axes import Axes


MASSES = (0.25, 0.5, 0.75, 0.9, 0.95)
"""Probability inside each contour, those of the nested EP paper."""

_SHOWN = 1000  # draws that are drawn
_SMOOTHED = 4000  # draws that a density is made of
_SIDE = 80  # points of a density in each direction


def draw_gaussian(ax: Axes, mean: Array, cov: Array, masses: Sequence[float], style: Any, name: str) -> Any:
    """Ellipses of a Gaussian with given probabilities inside; returns a line for the legend."""
    values, vectors = np.linalg.eigh(cov)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    angle = np.linspace(0, 2 * np.pi, 200)
    circle = np.stack([np.cos(angle), np.sin(angle)])
    line = None
    for mass in masses:
        radius = np.sqrt(-2 * np.log1p(-mass))
        (line,) = ax.plot(*(mean[:, None] + radius * root @ circle), **{"linewidth": 1.3, "label": name} | style)
    return line


def draw_density(
    ax: Axes, values: Array, masses: Sequence[float], scatter: bool, style: Any, draws_style: Any, name: str
) -> Any:
    """Draws (s, 2) and contours of their smoothed density; returns a line for the legend."""
    from matplotlib.lines import Line2D

    low, high = np.quantile(values, [0.003, 0.997], axis=0)
    low, high = low - 0.1 * (high - low), high + 0.1 * (high - low)
    if scatter:
        shown = _thinned(values, _SHOWN)
        shown = shown[((low < shown) & (shown < high)).all(axis=1)]  # a few far draws would make all else small
        ax.scatter(*shown.T, **{"s": 3, "color": "#a6a6a6", "linewidth": 0, "zorder": 0} | draws_style)
    smoothed = _thinned(values, _SMOOTHED)
    density = gaussian_kde(smoothed.T)
    x, y = np.linspace(low, high, _SIDE).T
    on_grid = density(np.stack(np.meshgrid(x, y)).reshape(2, -1)).reshape(_SIDE, _SIDE)
    # Inside the contour at the q-quantile of the density of draws lies 1 − q of them.
    levels = np.unique(np.quantile(density(smoothed.T), 1 - np.sort(masses)[::-1]))
    options = {"colors": NEUTRAL, "linewidths": 1.0} | style
    ax.contour(x, y, on_grid, levels=levels, **options)
    colour, width = np.ravel(options["colors"])[0], np.ravel(options["linewidths"])[0]
    return Line2D([], [], color=colour, linewidth=width, label=name)


def _thinned(values: Array, count: int) -> Array:
    return values[np.unique(np.linspace(0, len(values) - 1, min(count, len(values))).astype(int))]
