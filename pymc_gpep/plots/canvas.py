"""Axes to draw on: those that are given, or new ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

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
    """Return the axes given, or those of a new figure of that size in inches."""
    return pyplot().subplots(figsize=size, layout="constrained")[1] if ax is None else ax


def panels(axes: Any, rows: int, columns: int, size: tuple[float, float] = (3.2, 3.0), **kwargs: Any) -> Any:
    """Return the axes given as an array (rows, columns), or those of a new figure with panels of that size in inches.

    Raises
    ------
    ValueError
        If the number of axes given is another one.
    """
    if axes is None:
        figure_size = (columns * size[0], rows * size[1])
        return pyplot().subplots(rows, columns, figsize=figure_size, squeeze=False, layout="constrained", **kwargs)[1]
    given = np.atleast_1d(np.asarray(axes, dtype=object))
    if given.size != rows * columns:
        raise ValueError(f"axes: {given.size} were given, but {rows} × {columns} are needed.")
    return given.reshape(rows, columns)
