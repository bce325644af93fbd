"""Axes, colours, markers, limits and contours, for all pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import gaussian_kde

from pymc_gpep.argument_types import did_you_mean
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.prior_form import covariance_root
from pymc_gpep.reading import GPClassifier

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def pyplot() -> Any:
    """Import `matplotlib.pyplot`.

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    """
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError("gpep.plots draws with matplotlib: pip install 'pymc-gpep[plot]'.") from error
    return plt


def single(ax: Axes | None, size: tuple[float, float] = (6.0, 4.5)) -> Axes:
    """Return the axes, or the axes of a new figure with this size in inches."""
    return pyplot().subplots(figsize=size, layout="constrained")[1] if ax is None else ax


def panels(axes: Any, rows: int, columns: int, size: tuple[float, float] = (3.2, 3.0), **kwargs: Any) -> Any:
    """Return axes as an array (rows, columns), or the axes of a new figure. Panel sizes are in inches.

    Raises
    ------
    ValueError
        If the number of axes is not rows × columns.
    """
    if axes is None:
        figure_size = (columns * size[0], rows * size[1])
        return pyplot().subplots(rows, columns, figsize=figure_size, squeeze=False, layout="constrained", **kwargs)[1]
    given = np.atleast_1d(np.asarray(axes, dtype=object))
    if given.size != rows * columns:
        raise ValueError(f"axes must contain {rows} × {columns} axes, but contains {given.size}.")
    return given.reshape(rows, columns)


_OKABE_ITO = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Colours of Okabe and Ito, without black and yellow. Yellow is hardly visible on white."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")
LINE_STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)))
NEUTRAL = "#555555"
"""Colour of lines that do not belong to a class or method."""


def colours(count: int) -> list[Any]:
    """Return `count` colours, one for each class or method."""
    if count <= len(_OKABE_ITO):
        return list(_OKABE_ITO[:count])
    # For many classes, hues would look alike. These colours differ in lightness.
    return [pyplot().get_cmap("viridis")(i / (count - 1)) for i in range(count)]


def label_of(name: Any) -> str:
    """Return the name of a dim or a variable as a label of an axis."""
    return str(name).replace("_", " ")


def diagonal(ax: Axes, linestyle: str = "-") -> None:
    """Draw the line of equal coordinates, without changing the data limits."""
    drawn = ax.dataLim.frozen()
    ax.axline((0, 0), slope=1, color=NEUTRAL, linewidth=0.8, linestyle=linestyle, zorder=0)
    ax.dataLim.set(drawn)  # `axline` has added the origin to the data limits. Remove it.


def same_frame(axes: Sequence[Axes]) -> None:
    """Set equal limits on all axes, with equal scales in both directions. The limits include all points."""
    corners = np.concatenate([ax.dataLim.get_points() for ax in axes])
    low, high = corners.min(axis=0), corners.max(axis=0)
    centre, reach = (low + high) / 2, 0.54 * (high - low).max()
    for ax in axes:
        ax.set_xlim(centre[0] - reach, centre[0] + reach)
        ax.set_ylim(centre[1] - reach, centre[1] + reach)
        ax.set_aspect("equal")


def point_position(classifier: GPClassifier, point: Any) -> int:
    """Return the index of the point with this label.

    Raises
    ------
    ValueError
        If no point has this label.
    """
    coords = classifier.coords_of_points()
    labels = list(range(classifier.n_points) if coords is None else coords)
    if point not in labels:
        meant = did_you_mean([point], labels)
        raise ValueError(f"{point!r} is not a point; the labels run from {labels[0]} to {labels[-1]}.{meant}")
    return labels.index(point)


def point_labels(classifier: GPClassifier, points: tuple[Any, Any]) -> tuple[str, str]:
    """Return labels of the two axes for the latent values of two points."""
    what = label_of(classifier.point_dim or "point")
    first, second = points
    return f"{what} {first}", f"{what} {second}"


MASSES = (0.25, 0.5, 0.75, 0.9, 0.95)
"""Default probabilities that contours contain, as in the nested EP paper."""

_SHOWN = 1000  # At most this number of draws is drawn as points.
_SMOOTHED = 4000  # At most this number of draws is used for a smoothed density.
_SIDE = 80  # Number of grid points of a density in each direction.


def draw_gaussian(ax: Axes, mean: Array, cov: Array, masses: Sequence[float], style: Any, name: str) -> Any:
    """Draw ellipses that contain the probabilities `masses` of a Gaussian. Return a line for the legend."""
    root = covariance_root(cov)
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
    """Draw points (s, 2) and contours of their smoothed density. Return a line for the legend."""
    from matplotlib.lines import Line2D

    low, high = np.quantile(values, [0.003, 0.997], axis=0)
    low, high = low - 0.1 * (high - low), high + 0.1 * (high - low)
    if scatter:
        shown = _thinned(values, _SHOWN)
        # Leave out outliers, since their axes would hide all other points.
        shown = shown[((low < shown) & (shown < high)).all(axis=1)]
        ax.scatter(*shown.T, **{"s": 3, "color": "#a6a6a6", "linewidth": 0, "zorder": 0} | draws_style)
    smoothed = _thinned(values, _SMOOTHED)
    density = gaussian_kde(smoothed.T)
    x, y = np.linspace(low, high, _SIDE).T
    on_grid = density(np.stack(np.meshgrid(x, y)).reshape(2, -1)).reshape(_SIDE, _SIDE)
    # The contour at the q-quantile of the density at the draws contains a share 1 − q of the draws.
    levels = np.unique(np.quantile(density(smoothed.T), 1 - np.sort(masses)[::-1]))
    options = {"colors": NEUTRAL, "linewidths": 1.0} | style
    ax.contour(x, y, on_grid, levels=levels, **options)
    colour, width = np.ravel(options["colors"])[0], np.ravel(options["linewidths"])[0]
    return Line2D([], [], color=colour, linewidth=width, label=name)


def _thinned(values: Array, count: int) -> Array:
    return values[np.unique(np.linspace(0, len(values) - 1, min(count, len(values))).astype(int))]
