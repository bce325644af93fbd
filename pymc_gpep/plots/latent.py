"""The joint marginal of two latent values of a point, by several methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import pymc as pm
import xarray as xr
from numpy.typing import NDArray

from pymc_gpep.comparison.fits_and_draws import Result, by_name, classifier_of, latent_draws, latent_moments
from pymc_gpep.plots.canvas import panels, single
from pymc_gpep.plots.contours import MASSES, draw_density, draw_gaussian, same_frame
from pymc_gpep.plots.style import LINE_STYLES, NEUTRAL, colours, label_of
from pymc_gpep.structure import GPClassifier
from pymc_gpep.variational.approximation import GPApproximation

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_latent_pair", "plot_latent_pairs"]


def plot_latent_pair(
    results: Mapping[str, Result] | Result,
    point: Any,
    classes: tuple[Any, Any],
    *,
    model: pm.Model | None = None,
    masses: Sequence[float] = MASSES,
    scatter: bool = True,
    ax: Axes | None = None,
    legend: bool = True,
    contour_kwargs: Mapping[str, Mapping[str, Any]] | None = None,
    draws_kwargs: Mapping[str, Any] | None = None,
) -> Axes:
    """Draw the posterior of two latent values of one point, as each method has it, on the same axes.

    A fit is drawn as the ellipses of its Gaussian, draws from MCMC as points with the contours of a smoothed density
    (Figures 3, 4 and 6 of the nested EP paper). On the dotted line both latent values are equal.

    Parameters
    ----------
    results : dict of str to GPApproximation or DataTree
        What `pm.fit` returned, and draws.
    point : label or int
        A training point, as the coords of the model name it; its position where they do not.
    classes : tuple of two labels or int
        Classes whose latent values to draw, in the same way.
    model : pm.Model, optional
        The model that was sampled; that of the first fit if not given.
    masses : sequence of float
        Probability inside each contour.
    scatter : bool
        Whether to draw points for draws.
    ax : matplotlib.axes.Axes, optional
    legend : bool
    contour_kwargs : dict of str to dict, optional
        For `Axes.plot` (fits) or `Axes.contour` (draws), by the name of the result.
    draws_kwargs : dict, optional
        For `Axes.scatter`: the draws.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    TypeError
        If a result is neither a fit nor a DataTree.
    ValueError
        If there is no such point or class, or if `masses` are no probabilities.
    """
    named = by_name(results)
    classifier = classifier_of(named, model)
    i, (a, b) = _position(classifier, point), (_class(classifier, k) for k in classes)
    _check_masses(masses)
    ax = single(ax, (5.0, 4.6))
    fits = [name for name, result in named.items() if isinstance(result, GPApproximation)]
    palette = dict(zip(fits, colours(len(fits)), strict=True))
    handles = []
    for name, result in named.items():
        own = dict((contour_kwargs or {}).get(name, {}))
        if isinstance(result, xr.DataTree):
            values = latent_draws(result, classifier)[:, [a, b], i]
            handles.append(draw_density(ax, values, masses, scatter, own, dict(draws_kwargs or {}), name))
        else:
            mean, cov = latent_moments(result, classifier)
            style = {"color": palette[name], "linestyle": LINE_STYLES[fits.index(name) % len(LINE_STYLES)]} | own
            handles.append(draw_gaussian(ax, mean[[a, b], i], cov[i][np.ix_([a, b], [a, b])], masses, style, name))
    drawn = ax.dataLim.frozen()
    ax.axline((0, 0), slope=1, color=NEUTRAL, linewidth=0.8, linestyle=":", zorder=0)
    ax.dataLim.set(drawn)  # which need not reach to the origin
    same_frame([ax])
    names = classifier.class_labels or range(classifier.n_functions)
    ax.set_xlabel(f"latent value, {label_of(names[a])}")
    ax.set_ylabel(f"latent value, {label_of(names[b])}")
    if legend:
        ax.legend(handles=handles)
    return ax


def plot_latent_pairs(
    results: Mapping[str, Result],
    point: Any,
    *,
    reference: str | None = None,
    pairs: Sequence[tuple[Any, Any]] | None = None,
    model: pm.Model | None = None,
    masses: Sequence[float] = MASSES,
    axes: Any = None,
) -> NDArray[Any]:
    """Draw pairs of latent values of one point, a row for each pair and a column for each method.

    Each method is drawn over the reference in grey, as in Figure 6 of the nested EP paper.

    Parameters
    ----------
    results : dict of str to GPApproximation or DataTree
        What `pm.fit` returned, and draws.
    point : label or int
        A training point, as the coords of the model name it; its position where they do not.
    reference : str, optional
        Name of the result in grey; the first draws if not given, or else the first fit.
    pairs : sequence of pairs of labels or int, optional
        Classes whose latent values to draw; all pairs if not given, for which there must be four classes at most.
    model : pm.Model, optional
        The model that was sampled; that of the first fit if not given.
    masses : sequence of float
        Probability inside each contour.
    axes : array of matplotlib.axes.Axes, optional
        One for each pair and method.

    Returns
    -------
    array (pairs, methods) of matplotlib.axes.Axes

    Raises
    ------
    TypeError
        If a result is neither a fit nor a DataTree.
    ValueError
        If there is no such reference, point or class, or if there are too many pairs.
    """
    named = by_name(results)
    classifier = classifier_of(named, model)
    if reference is None:
        reference = next((name for name, result in named.items() if isinstance(result, xr.DataTree)), next(iter(named)))
    if reference not in named:
        raise ValueError(f"reference is {reference!r}, but the results are {list(named)}.")
    if pairs is None:
        if classifier.n_functions > 4:
            raise ValueError(f"There are {classifier.n_functions} classes. Choose pairs of them: pairs=[(0, 1)].")
        pairs = list(combinations(classifier.class_labels or range(classifier.n_functions), 2))
    axes = panels(axes, len(pairs), len(named))
    grey = {"color": "#a6a6a6", "linestyle": "-", "linewidth": 1.0}
    for row, pair in zip(axes, pairs, strict=True):
        for ax, (name, result) in zip(row, named.items(), strict=True):
            drawn = {name: result} if name == reference else {reference: named[reference], name: result}
            draws = {other: isinstance(each, xr.DataTree) for other, each in drawn.items()}
            style = {reference: _for_contour(grey) if draws[reference] else grey} if name != reference else {}
            style[name] = _for_contour({"color": "black"}) if draws[name] else {"color": "black", "linestyle": "-"}
            plot_latent_pair(
                drawn, point, pair, model=classifier.model, masses=masses, scatter=name == reference, ax=ax,
                legend=False, contour_kwargs=style,
            )  # fmt: skip
        same_frame(row)
        for ax in row[1:]:
            ax.set_ylabel("")
            ax.tick_params(labelleft=False)
    for ax, name in zip(axes[0], named, strict=True):
        ax.set_title(name)
    return np.asarray(axes)


def _for_contour(style: Mapping[str, Any]) -> dict[str, Any]:
    """The options of `Axes.plot` under the names that `Axes.contour` has for them."""
    names = {"color": "colors", "linestyle": "linestyles", "linewidth": "linewidths"}
    return {names[key]: value for key, value in style.items()}


def _check_masses(masses: Sequence[float]) -> None:
    if not len(masses) or not all(0 < mass < 1 for mass in masses):
        raise ValueError(f"masses must be probabilities in (0, 1), but are {masses}.")


def _position(classifier: GPClassifier, point: Any) -> int:
    coords = classifier.model.coords.get(classifier.point_dim) if classifier.point_dim else None
    labels = list(range(classifier.n_points) if coords is None else coords)
    if point not in labels:
        raise ValueError(f"There is no point {point!r}; their labels run from {labels[0]} to {labels[-1]}.")
    return labels.index(point)


def _class(classifier: GPClassifier, label: Any) -> int:
    labels = list(classifier.class_labels or range(classifier.n_functions))
    if label not in labels:
        raise ValueError(f"There is no class {label!r}; the classes are {labels}.")
    return labels.index(label)
