"""Pictures of latent values: pairs of values by several methods, and all values against a reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pymc as pm
import xarray as xr
from numpy.typing import NDArray

from pymc_gpep.argument_types import did_you_mean
from pymc_gpep.array_types import Array
from pymc_gpep.comparison.fits_and_draws import (
    Result,
    by_name,
    classifier_of,
    latent_draws,
    latent_moments,
    reference_among,
)
from pymc_gpep.fits.fit import Fit
from pymc_gpep.log_posteriors.latent_functions import without_common
from pymc_gpep.plots.canvas import (
    LINE_STYLES,
    MARKERS,
    MASSES,
    colours,
    diagonal,
    draw_density,
    draw_gaussian,
    label_of,
    panels,
    point_labels,
    point_position,
    same_frame,
    single,
)
from pymc_gpep.reading import GPClassifier

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_ONE_VALUE = "Each point has one latent value in this model."


class _Pair(NamedTuple):
    """Two latent values: indices of their functions and of their points, and labels for the axes."""

    functions: list[int]
    points: list[int]
    labels: tuple[str, str]


def plot_latent_pair(
    results: Mapping[str, Result] | Result,
    point: Any = None,
    classes: tuple[Any, Any] | None = None,
    *,
    points: tuple[Any, Any] | None = None,
    model: pm.Model | None = None,
    masses: Sequence[float] = MASSES,
    scatter: bool = True,
    ax: Axes | None = None,
    legend: bool = True,
    contour_kwargs: Mapping[str, Mapping[str, Any]] | None = None,
    draws_kwargs: Mapping[str, Any] | None = None,
) -> Axes:
    """Draw the posterior of two latent values by each method, on the same axes.

    If a point has several latent values, the pair belongs to one `point` and two `classes`. Otherwise it belongs to two
    `points`.

    A fit is drawn by ellipses of its Gaussian. Draws from MCMC are points, with contours of a smoothed density (Figures
    3, 4 and 6 of the nested EP paper). On the dotted line both latent values are equal.

    Parameters
    ----------
    results : dict of str to a fit or DataTree
        Results of `pm.fit`, and draws.
    point : label or int
        Training point: its label in the coords of the model, or its position if the dim has no coords.
    classes : tuple of two labels or int
        The two classes of the drawn latent values, by label or position.
    points : tuple of two labels or int
        The two points of the drawn latent values, for a likelihood of one latent function.
    model : pm.Model, optional
        Model of the draws. The default is the model of the first fit.
    masses : sequence of float
        Probability that each contour contains.
    scatter : bool
        Whether draws from MCMC are drawn as points.
    ax : matplotlib.axes.Axes, optional
    legend : bool
    contour_kwargs : dict of str to dict, optional
        Arguments of `Axes.plot` (fits) or `Axes.contour` (draws), by the name of the result.
    draws_kwargs : dict, optional
        Arguments of `Axes.scatter` for the draws.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    TypeError
        If a result is neither a fit nor a DataTree. If `point` and `classes` are given for a model with one latent
        value at a point, or `points` for a model with several.
    ValueError
        If a point or class does not exist, if both are the same, or if `masses` are not probabilities.

    Examples
    --------
    >>> gpep.plots.plot_latent_pair({"EP": ep, "MCMC": mcmc}, point=120, classes=("versicolor", "virginica"))
    """
    named = by_name(results)
    classifier = classifier_of(named, model)
    pair = _pair(classifier, point, classes, points)
    _check_masses(masses)
    ax = single(ax, (5.0, 4.6))
    fits = [name for name, result in named.items() if not isinstance(result, xr.DataTree)]
    palette = dict(zip(fits, colours(len(fits)), strict=True))
    handles = []
    for name, result in named.items():
        own = dict((contour_kwargs or {}).get(name, {}))
        if isinstance(result, xr.DataTree):
            values = latent_draws(result, classifier)[:, pair.functions, pair.points]
            handles.append(draw_density(ax, values, masses, scatter, own, dict(draws_kwargs or {}), name))
        else:
            mean, cov = _moments(name, result, pair)
            style = {"color": palette[name], "linestyle": LINE_STYLES[fits.index(name) % len(LINE_STYLES)]} | own
            handles.append(draw_gaussian(ax, mean, cov, masses, style, name))
    diagonal(ax, ":")
    same_frame([ax])
    ax.set_xlabel(f"latent value, {pair.labels[0]}")
    ax.set_ylabel(f"latent value, {pair.labels[1]}")
    if legend:
        ax.legend(handles=handles)
    return ax


def plot_latent_pairs(
    results: Mapping[str, Result],
    point: Any = None,
    *,
    reference: str | None = None,
    pairs: Sequence[tuple[Any, Any]] | None = None,
    model: pm.Model | None = None,
    masses: Sequence[float] = MASSES,
    axes: Any = None,
) -> NDArray[Any]:
    """Draw pairs of latent values, a row for each pair and a column for each method.

    Each method is drawn over the reference in grey, as in Figure 6 of the nested EP paper.

    Parameters
    ----------
    results : dict of str to a fit or DataTree
        Results of `pm.fit`, and draws.
    point : label or int
        Training point: its label in the coords of the model, or its position if the dim has no coords.
        None for a likelihood of one latent function.
    reference : str, optional
        Name of the result in grey. The default is the first draws, or the first fit without draws.
    pairs : sequence of pairs of labels or int, optional
        Pairs of classes, or pairs of points for a likelihood of one latent function. The default is all pairs of
        classes, for at most four classes.
    model : pm.Model, optional
        Model of the draws. The default is the model of the first fit.
    masses : sequence of float
        Probability that each contour contains.
    axes : array of matplotlib.axes.Axes, optional
        One axes for each pair and method.

    Returns
    -------
    array (pairs, methods) of matplotlib.axes.Axes

    Raises
    ------
    TypeError
        If a result is neither a fit nor a DataTree, or if `point` and `pairs` do not suit the model.
    ValueError
        If the reference, the point or a class does not exist, or if there are too many pairs.

    Examples
    --------
    >>> gpep.plots.plot_latent_pairs({"EP": ep, "MCMC": mcmc}, point=120)
    """
    named = by_name(results)
    classifier = classifier_of(named, model)
    reference = reference_among(named, reference)
    of_points = not classifier.function_dims
    if pairs is None:
        if of_points:
            raise TypeError(f"{_ONE_VALUE} Choose pairs of points: pairs=[(i, j)].")
        if classifier.n_functions > 4:
            raise ValueError(f"There are {classifier.n_functions} classes. Choose pairs of them: pairs=[(0, 1)].")
        pairs = list(combinations(classifier.class_labels or range(classifier.n_functions), 2))
    axes = panels(axes, len(pairs), len(named))
    grey = {"color": "#a6a6a6", "linestyle": "-", "linewidth": 1.0}
    for row, pair in zip(axes, pairs, strict=True):
        classes, points = (None, pair) if of_points else (pair, None)
        for ax, (name, result) in zip(row, named.items(), strict=True):
            drawn = {name: result} if name == reference else {reference: named[reference], name: result}
            draws = {other: isinstance(each, xr.DataTree) for other, each in drawn.items()}
            style = {reference: _for_contour(grey) if draws[reference] else grey} if name != reference else {}
            style[name] = _for_contour({"color": "black"}) if draws[name] else {"color": "black", "linestyle": "-"}
            plot_latent_pair(
                drawn, point, classes, points=points, model=classifier.model, masses=masses,
                scatter=name == reference, ax=ax, legend=False, contour_kwargs=style,
            )  # fmt: skip
        same_frame(row)
        for ax in row[1:]:
            ax.set_ylabel("")
            ax.tick_params(labelleft=False)
    for ax, name in zip(axes[0], named, strict=True):
        ax.set_title(name)
    return np.asarray(axes)


def _for_contour(style: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of `Axes.plot` under the names that `Axes.contour` uses."""
    names = {"color": "colors", "linestyle": "linestyles", "linewidth": "linewidths"}
    return {names[key]: value for key, value in style.items()}


def _check_masses(masses: Sequence[float]) -> None:
    if not len(masses) or not all(0 < mass < 1 for mass in masses):
        raise ValueError(f"masses must be probabilities in (0, 1), but are {masses}.")


def _pair(
    classifier: GPClassifier, point: Any, classes: tuple[Any, Any] | None, points: tuple[Any, Any] | None
) -> _Pair:
    if classifier.function_dims:
        if points is not None or point is None or classes is None:
            raise TypeError(
                f"Each point has {classifier.n_functions} latent values in this model. Choose a point and two classes: "
                "point=i, classes=(a, b)."
            )
        i, (a, b) = point_position(classifier, point), (_class(classifier, k) for k in classes)
        names = classifier.class_labels or range(classifier.n_functions)
        _check_different("classes", classes)
        return _Pair([a, b], [i, i], (label_of(names[a]), label_of(names[b])))
    if points is None or point is not None or classes is not None:
        raise TypeError(f"{_ONE_VALUE} Give two points, without point and classes: points=(i, j).")
    first, second = points
    _check_different("points", points)
    places = [point_position(classifier, first), point_position(classifier, second)]
    return _Pair([0, 0], places, point_labels(classifier, points))


def _check_different(name: str, pair: tuple[Any, Any]) -> None:
    first, second = pair
    if first == second:
        raise ValueError(f"{name} must be two different {name}, but are {first!r} twice.")


def _moments(name: str, fit: Fit, pair: _Pair) -> tuple[Array, Array]:
    """Return mean (2,) and covariance (2, 2) of the two latent values of a pair."""
    (a, b), (i, j) = pair.functions, pair.points
    if i == j:
        mean, cov = fit.latent_moments()
        return mean[i, [a, b]], cov[i][np.ix_([a, b], [a, b])]
    try:
        mean, joint = fit.joint_latent_moments([i, j])
    except NotImplementedError as error:
        raise TypeError(
            f"`points` needs joint moments of two points, but {name!r} does not have such moments: {error}"
        ) from None
    where = [0, 1], [a, b]
    return mean[where], joint[where][:, *where]


def _class(classifier: GPClassifier, label: Any) -> int:
    labels = list(classifier.class_labels or range(classifier.n_functions))
    if label not in labels:
        listed = ", ".join(map(str, labels))
        raise ValueError(f"{label!r} is not a class; the classes are {listed}.{did_you_mean([label], labels)}")
    return labels.index(label)


def plot_latent_comparison(
    results: Mapping[str, Result],
    reference: str | None = None,
    *,
    model: pm.Model | None = None,
    axes: Any = None,
    legend: bool = True,
    point_kwargs: Mapping[str, Any] | None = None,
) -> NDArray[Any]:
    """Draw means and standard deviations of all latent values by each method against the reference.

    If a likelihood depends only on differences between functions, labels do not determine the mean over the functions
    of a point. This mean is then subtracted from the values.

    If two methods agree, points are on the diagonal. The panels show the first two rows of Figures 6 and 8 of Nickisch
    and Rasmussen (2008). `plot_probability_comparison` draws the third row, of probabilities.

    Parameters
    ----------
    results : dict of str to Fit or DataTree
        Results of `pm.fit`, and draws, for the same points and number of latent functions.
    reference : str, optional
        Name of the result on the horizontal axis. The default is the first draws, or the first fit without draws.
    model : pm.Model, optional
        Model of the draws. The default is the model of the first fit.
    axes : array of matplotlib.axes.Axes, optional
        One axes for each method except the reference.
    legend : bool
    point_kwargs : dict, optional
        Arguments of `Axes.scatter`.

    Returns
    -------
    array (methods,) of matplotlib.axes.Axes
        All axes have the same limits.

    Raises
    ------
    TypeError
        If a result is neither a fit nor a DataTree.
    ValueError
        If the reference does not exist, if it is the only result, or if latent values of a method have another shape.

    Examples
    --------
    >>> gpep.plots.plot_latent_comparison({"EP": ep, "MCMC": mcmc}, "MCMC")
    """
    named = by_name(results)
    reference = reference_among(named, reference)
    if len(named) < 2:
        raise ValueError(f"There is nothing to compare {reference!r} with. Give at least two results by name.")
    classifier = classifier_of(named, model)
    seen_whole = classifier.likelihood_model.sees_common
    what = "latent values" if seen_whole else "latent values minus their mean"
    moments = {}
    for name, result in named.items():
        mean, cov = latent_moments(result, classifier)
        if not seen_whole:
            mean, cov = without_common(mean.T, cov)
            mean = mean.T
        moments[name] = {"means": mean, "standard deviations": np.sqrt(cov.diagonal(axis1=1, axis2=2).T)}
    base = moments.pop(reference)
    for name, own in moments.items():
        if own["means"].shape != base["means"].shape:
            raise ValueError(
                f"{name!r} has latent values of shape {own['means'].shape}, but {reference!r} of shape "
                f"{base['means'].shape}."
            )
    axes = panels(axes, 1, len(moments), (3.6, 3.6))[0]
    for ax, (name, own) in zip(axes, moments.items(), strict=True):
        for (moment, values), colour, marker in zip(own.items(), colours(2), MARKERS, strict=False):
            style = {
                "marker": marker, "s": 14, "facecolor": "none", "edgecolor": colour, "linewidth": 0.8, "label": moment,
            }  # fmt: skip
            ax.scatter(base[moment].ravel(), values.ravel(), **style | dict(point_kwargs or {}))
        diagonal(ax)
        ax.set(xlabel=f"{what}, {reference}", ylabel=f"{what}, {name}")
    same_frame(axes)
    if legend:
        axes[0].legend()
    return np.asarray(axes)
