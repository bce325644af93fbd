"""Pictures of effects with their intervals: of groups in order, along an input, or on a map."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from pymc_gpep.array_types import Array
from pymc_gpep.fits.fit import Fit
from pymc_gpep.plots.canvas import MARKERS, colours, label_of, panels, single

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ROW = 0.22  # Height of the line of an entry, in inches.
_MOST_LABELS = 60
_MOST_SERIES = 10
_NEW = "new_point"


@overload
def plot_effects(
    fit: Fit,
    name: str,
    x: ArrayLike | None = None,
    *,
    prob: float = 0.9,
    order: bool = False,
    Xnew: ArrayLike | None = None,
    data: Mapping[str, ArrayLike] | None = None,
    ax: Axes | None = None,
) -> Axes: ...


@overload
def plot_effects(
    fit: Fit,
    name: list[str] | tuple[str, ...],
    x: ArrayLike | None = None,
    *,
    prob: float = 0.9,
    order: bool = False,
    Xnew: ArrayLike | None = None,
    data: Mapping[str, ArrayLike] | None = None,
    ax: Any = None,
) -> NDArray[Any]: ...


def plot_effects(
    fit: Fit,
    name: str | list[str] | tuple[str, ...],
    x: ArrayLike | None = None,
    *,
    prob: float = 0.9,
    order: bool = False,
    Xnew: ArrayLike | None = None,
    data: Mapping[str, ArrayLike] | None = None,
    ax: Any = None,
) -> Axes | NDArray[Any]:
    """Draw means and intervals of variables that are affine in the integrated variables.

    Intervals are quantiles of a Gaussian with the mean and the standard deviation of `Fit.effects`.

    Parameters
    ----------
    fit : Fit
    name : str or list of str
        Integrated variable, or Deterministic that `Fit.effects` accepts, with one or two axes. For a list of names,
        each name has a panel. A variable of two axes has one series for each entry of the shorter axis, with a legend.
        With `x`, `x` belongs to one axis, and each entry of the other axis is a series.
    x : array (m,) or (m, 2), optional
        Input of each entry. One column is drawn as a curve with a band, two columns as a map of the means. Without `x`,
        each entry is a line with its label.
    prob : float
        Probability that an interval contains.
    order : bool
        Whether entries are sorted by their means, averaged over series.
    Xnew, data : array (m, d), dict of str to array, optional
        New inputs and data, as for `Fit.effects`. By default `x` is `Xnew`.
    ax : matplotlib.axes.Axes, or array of them, optional
        One axes for each name.

    Returns
    -------
    matplotlib.axes.Axes, or an array of them for a list of names

    Raises
    ------
    ValueError
        If a variable has more than two axes, or more than ten series. If `x` has another length, or two columns for a
        variable of two axes. If `prob` is not between 0 and 1. Errors of `Fit.effects` are raised as well.

    Examples
    --------
    >>> gpep.plots.plot_effects(mixed, "county", order=True)  # mixed: a fit with an effect for each county
    >>> gpep.plots.plot_effects(mixed, ["county", "slope"])
    >>> gpep.plots.plot_effects(mixed, "county", x=np.arange(10))
    """
    if not 0.0 < prob < 1.0:
        raise ValueError(f"prob must be between 0 and 1, but is {prob}.")
    names = [name] if isinstance(name, str) else list(name)
    effects = fit.effects(names, Xnew=Xnew, data=data)
    x = Xnew if x is None else x
    at = None if x is None else np.asarray(x, dtype=np.float64)
    found = [_series(effects[each], at) for each in names]
    quantile = float(ndtri(0.5 + 0.5 * prob))
    if isinstance(name, str):
        return _drawn(found[0], at, quantile, order, ax)
    height = max(_height(each) for each in found) if at is None else 4.5
    axes = panels(ax, 1, len(names), (5.0, height))[0]
    for each, own in zip(found, axes, strict=True):
        _drawn(each, at, quantile, order, own)
    drawn: NDArray[Any] = axes
    return drawn


def _series(found: xr.DataArray, x: Array | None) -> xr.DataArray:
    """Transpose moments of a variable with two axes to (moment, entries, series). Other moments are unchanged.

    Raises
    ------
    ValueError
        If the variable cannot be drawn.
    """
    name = found.name
    numbers = f"fit.effects({name!r})[{name!r}] has the numbers."
    if found.ndim > 3:
        raise ValueError(f"{name!r} has {found.ndim - 1} axes, and at most two are drawn. {numbers}")
    if found.ndim < 3:
        return found
    first, second = found.dims[1:]
    along = None if x is None else [dim for dim in (first, second) if found.sizes[dim] == len(x)]
    if _NEW in found.dims:
        series = second if first == _NEW else first
    elif along and len(along) == 1:
        series = second if along == [first] else first
    else:
        series = first if found.sizes[first] < found.sizes[second] else second
    if found.sizes[series] > _MOST_SERIES:
        sizes = " by ".join(str(size) for size in found.shape[1:])
        raise ValueError(f"{name!r} has {sizes} entries, and at most {_MOST_SERIES} series are drawn. {numbers}")
    if x is not None and x.ndim > 1 and x.shape[1] > 1:
        raise ValueError(f"A map is drawn of a variable of one axis, but {name!r} has two. {numbers}")
    return found.transpose("moment", ..., series)


def _height(found: xr.DataArray) -> float:
    """Return the height in inches of a picture with a line for each entry."""
    rows = found[0].size if found.ndim > 1 else 1
    return 0.8 + _ROW * min(rows, 2 * _MOST_LABELS)


def _drawn(found: xr.DataArray, x: Array | None, quantile: float, order: bool, ax: Axes | None) -> Axes:
    """Draw moments of one variable. If the variable has two axes, each entry of its second axis is a series."""
    name = str(found.name)
    count = found.shape[2] if found.ndim == 3 else 1
    mean, sd = (found.sel(moment=moment).values.reshape(-1, count) for moment in ("mean", "sd"))
    half = quantile * sd
    named = [str(value) for value in _labels(found, found.dims[2], count)] if found.ndim == 3 else [None]
    if x is None:
        ax = _lines(found, mean, half, named, order, ax)
    elif x.ndim > 1 and x.shape[-1] > 1:
        ax = _map(name, mean[:, 0], x, ax)
    else:
        ax = _curves(name, mean, half, x, named, ax)
    if found.ndim == 3:
        ax.legend(title=label_of(found.dims[2]), loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return ax


def _labels(found: xr.DataArray, dim: Any, size: int) -> list[Any]:
    return list(found.coords[dim].values) if dim in found.coords else list(range(size))


def _lines(
    found: xr.DataArray, mean: Array, half: Array, named: Sequence[str | None], order: bool, ax: Axes | None
) -> Axes:
    """Draw the interval of each entry as a line. Lines of several series are drawn below each other."""
    ax = single(ax, (5.0, _height(found)))
    dim = found.dims[1] if found.ndim > 1 else None
    n, count = mean.shape
    places = np.argsort(mean.mean(axis=1), kind="stable") if order else np.arange(n)[::-1]
    rows = np.arange(n)
    apart = 0.7 * ((count - 1) / 2 - np.arange(count)) / count
    for k, colour in enumerate(colours(count)):
        at = rows + apart[k]
        lower, upper = (mean - half)[places, k], (mean + half)[places, k]
        ax.hlines(at, lower, upper, color=colour, linewidth=1.2)
        marker = MARKERS[k % len(MARKERS)]
        ax.plot(mean[places, k], at, marker, color=colour, markersize=3.5, label=named[k])
    ax.axvline(0.0, color="#a6a6a6", linewidth=0.8, zorder=0)
    if n <= _MOST_LABELS:
        labels = _labels(found, dim, n)
        ax.set_yticks(rows, [str(labels[i]) for i in places])
    else:
        ax.set_yticks([])
    ax.set(xlabel=label_of(found.name), ylabel="" if dim is None else label_of(dim), ylim=(-1, n))
    return ax


def _check(name: str, n: int, x: Array) -> None:
    if len(x) != n or x.ndim > 2 or (x.ndim > 1 and x.shape[1] not in (1, 2)):
        raise ValueError(f"x must have a row for each of the {n} entries of {name!r}, but has shape {x.shape}.")


def _map(name: str, mean: Array, x: Array, ax: Axes | None) -> Axes:
    """Draw means as colours of points at two inputs."""
    _check(name, len(mean), x)
    ax = single(ax)
    size = float(np.abs(mean).max()) or 1.0
    drawn: Any = ax.scatter(x[:, 0], x[:, 1], c=mean, cmap="RdBu_r", vmin=-size, vmax=size)
    ax.figure.colorbar(drawn, ax=ax, label=label_of(name))
    return ax


def _curves(name: str, mean: Array, half: Array, x: Array, named: Sequence[str | None], ax: Axes | None) -> Axes:
    """Draw the means of each series as a curve over one input, with a band for the intervals."""
    _check(name, len(mean), x)
    ax = single(ax)
    x = x.ravel()
    order = np.argsort(x, kind="stable")
    for k, colour in enumerate(colours(mean.shape[1])):
        lower, upper = (mean - half)[order, k], (mean + half)[order, k]
        ax.fill_between(x[order], lower, upper, color=colour, alpha=0.25, linewidth=0)
        ax.plot(x[order], mean[order, k], color=colour, label=named[k])
    ax.set(ylabel=label_of(name))
    return ax
