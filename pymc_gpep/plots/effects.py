"""Effects of a fit with their intervals: of groups in order, along an input, or on a map."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri

from pymc_gpep.array_types import Array
from pymc_gpep.fits.fit import Fit
from pymc_gpep.plots.canvas import single
from pymc_gpep.plots.style import colours, label_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_effects"]

_ROW = 0.22  # inches for an entry
_MOST_LABELS = 60


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
) -> Axes:
    """Draw means and intervals of a variable that is affine in what was integrated.

    Intervals are those of a Gaussian with the mean and the standard deviation of `Fit.effects`.

    Parameters
    ----------
    fit : Fit
    name : str
        An integrated variable, or a Deterministic that `Fit.effects` takes, of one axis.
    x : array (m,) or (m, 2), optional
        An input of each entry, along which a curve with a band is drawn; with two columns, a map of the means. Without
        it there is a line for each entry, with its label.
    prob : float
        Probability that an interval holds.
    order : bool
        Whether entries are in the order of their means.
    Xnew, data : array (m, d), dict of str to array, optional
        Other inputs and data than those of the fit, as `Fit.effects` takes them. `x` is `Xnew` if not given.
    ax : matplotlib.axes.Axes, optional

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ValueError
        If the variable has not one axis, if `x` has another length, if `prob` is not between 0 and 1, or as
        `Fit.effects` raises it.

    Examples
    --------
    >>> gpep.plots.plot_effects(fit, "county", order=True)
    >>> gpep.plots.plot_effects(fit, "smooth", x=age)
    >>> gpep.plots.plot_effects(fit, "f", Xnew=np.linspace(0, 1, 100)[:, None])
    """
    if not 0.0 < prob < 1.0:
        raise ValueError(f"prob must be between 0 and 1, but is {prob}.")
    found = fit.effects(name, Xnew=Xnew, data=data)[name]
    x = Xnew if x is None else x
    if found.ndim > 2:
        raise ValueError(f"{name!r} has {found.ndim - 1} axes, but must have one. Draw a Deterministic of one axis.")
    mean, sd = np.atleast_1d(found.sel(moment="mean").values), np.atleast_1d(found.sel(moment="sd").values)
    half = float(ndtri(0.5 + 0.5 * prob)) * sd
    if x is not None:
        return _along(name, mean, half, np.asarray(x, dtype=np.float64), ax)
    (dim,) = found.dims[1:] or (name,)
    labels = list(found.coords[dim].values) if dim in found.coords else list(range(len(mean)))
    places = np.argsort(mean, kind="stable") if order else np.arange(len(mean))[::-1]
    ax = single(ax, (5.0, 0.8 + _ROW * min(len(mean), 2 * _MOST_LABELS)))
    rows = np.arange(len(mean))
    (colour,) = colours(1)
    ax.hlines(rows, (mean - half)[places], (mean + half)[places], color=colour, linewidth=1.2)
    ax.plot(mean[places], rows, "o", color=colour, markersize=3.5)
    ax.axvline(0.0, color="#a6a6a6", linewidth=0.8, zorder=0)
    if len(mean) <= _MOST_LABELS:
        ax.set_yticks(rows, [str(labels[i]) for i in places])
    else:
        ax.set_yticks([])
    ax.set(xlabel=label_of(name), ylabel=label_of(dim) if dim != name else "", ylim=(-1, len(mean)))
    return ax


def _along(name: str, mean: Array, half: Array, x: Array, ax: Axes | None) -> Axes:
    """Draw a curve with a band over one input, or the means over two."""
    if len(x) != len(mean) or x.ndim > 2 or (x.ndim > 1 and x.shape[1] not in (1, 2)):
        raise ValueError(f"x must have an entry for each of the {len(mean)} of {name!r}, but has shape {x.shape}.")
    ax = single(ax)
    if x.ndim > 1 and x.shape[1] > 1:
        size = float(np.abs(mean).max()) or 1.0
        drawn: Any = ax.scatter(x[:, 0], x[:, 1], c=mean, cmap="RdBu_r", vmin=-size, vmax=size)
        ax.figure.colorbar(drawn, ax=ax, label=label_of(name))
        return ax
    x = x.ravel()
    order = np.argsort(x, kind="stable")
    (colour,) = colours(1)
    ax.fill_between(x[order], (mean - half)[order], (mean + half)[order], color=colour, alpha=0.25, linewidth=0)
    ax.plot(x[order], mean[order], color=colour)
    ax.set(ylabel=label_of(name))
    return ax
