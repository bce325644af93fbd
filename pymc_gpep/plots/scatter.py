"""Class probabilities of methods against those of another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pymc_gpep.argument_types import did_you_mean
from pymc_gpep.plots.canvas import panels
from pymc_gpep.plots.frames import diagonal
from pymc_gpep.plots.probabilities import class_probability_array
from pymc_gpep.plots.style import MARKERS, colours, label_of


def plot_probability_comparison(
    probabilities: Mapping[str, Any],
    reference: str,
    y: ArrayLike | None = None,
    *,
    axes: Any = None,
    legend: bool = True,
    point_kwargs: Mapping[str, Any] | None = None,
) -> NDArray[Any]:
    """Draw class probabilities of each method against those of a reference, as in Figure 5 of the nested EP paper.

    Parameters
    ----------
    probabilities : dict of str to DataArray, Dataset or array (m, c)
        Class probabilities at the same points: from `fit.predict`, from `gpep.predict_draws`, or any others.
    reference : str
        Name of those on the horizontal axis.
    y : array (m,) of int, optional
        Labels of the points, 0...c-1. Then only the probability of the label is drawn for each point, and colours are
        those of the labels; without, the probabilities of all classes.
    axes : array of matplotlib.axes.Axes, optional
        One for each method but the reference.
    legend : bool
    point_kwargs : dict, optional
        For `Axes.scatter`.

    Returns
    -------
    array (methods,) of matplotlib.axes.Axes

    Raises
    ------
    ValueError
        If `reference` is not among the names, if there is nothing to compare it with, or if shapes differ.

    Examples
    --------
    >>> p = {"EP": ep.predict(gp, Xnew)["p"], "MCMC": gpep.predict_draws(mcmc, gp, Xnew, model=model)["p"]}
    >>> gpep.plots.plot_probability_comparison(p, "MCMC", ynew)
    """
    arrays = {name: class_probability_array(p) for name, p in probabilities.items()}
    if reference not in arrays or len(arrays) < 2:
        meant = did_you_mean([reference] if reference not in arrays else [], arrays)
        raise ValueError(f"{reference!r} must be one of at least two methods, but they are {list(arrays)}.{meant}")
    if len({p.shape for p in arrays.values()}) > 1:
        shapes = {name: p.shape for name, p in arrays.items()}
        raise ValueError(f"Class probabilities must be at the same points, but have shapes {shapes}.")
    base = arrays.pop(reference)
    m, c = base.shape
    chosen, what = np.ones((m, c), bool), "class probability"
    if y is not None:
        what = "probability of the label"
        labels = np.asarray(y)
        if labels.shape != (m,):
            raise ValueError(f"y must be one label for each of {m} points, but has shape {labels.shape}.")
        chosen = labels[:, None] == np.arange(c)
    dim = base.dims[1]
    names = base.coords[dim].values if dim in base.coords else range(c)
    axes = panels(axes, 1, len(arrays), (3.6, 3.6), sharey=True)[0]
    for ax, (name, p) in zip(axes, arrays.items(), strict=True):
        diagonal(ax)
        for k, (label, colour) in enumerate(zip(names, colours(c), strict=True)):
            style = {
                "marker": MARKERS[k % len(MARKERS)], "s": 22, "facecolor": "none", "edgecolor": colour,
                "linewidth": 1.0, "label": label_of(label),
            }  # fmt: skip
            ax.scatter(base.values[chosen[:, k], k], p.values[chosen[:, k], k], **style | dict(point_kwargs or {}))
        ax.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), aspect="equal")
        ax.set(xlabel=f"{what}, {reference}", ylabel=f"{what}, {name}")
    if legend:
        axes[0].legend(title=label_of(dim))
    return np.asarray(axes)
