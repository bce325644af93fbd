"""Moments of latent values by each method against those by another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import NDArray

from pymc_gpep.comparison.fits_and_draws import Result, by_name, classifier_of, latent_moments, reference_among
from pymc_gpep.hyper.latent_functions import without_common
from pymc_gpep.plots.canvas import panels
from pymc_gpep.plots.frames import diagonal, same_frame
from pymc_gpep.plots.style import MARKERS, colours


def plot_latent_comparison(
    results: Mapping[str, Result],
    reference: str | None = None,
    *,
    model: pm.Model | None = None,
    axes: Any = None,
    legend: bool = True,
    point_kwargs: Mapping[str, Any] | None = None,
) -> NDArray[Any]:
    """Draw means and standard deviations of all latent values by each method against those by a reference.

    Where a likelihood sees only differences between functions, values are taken less their mean over the functions of a
    point. The part that all functions have in common has its prior's deviation whatever the labels say.

    Where both agree points are on the line. These are the first two rows of Figures 6 and 8 of Nickisch and Rasmussen
    (2008), in one panel for each method. `plot_probability_comparison` draws the third row, of probabilities.

    Parameters
    ----------
    results : dict of str to Fit or DataTree
        Fits that `pm.fit` returned, and draws, for the same points and with as many latent functions.
    reference : str, optional
        Name of the result on the horizontal axis; the first draws if not given, or else the first fit.
    model : pm.Model, optional
        The model that was sampled; that of the first fit if not given.
    axes : array of matplotlib.axes.Axes, optional
        One axes for each method but the reference.
    legend : bool
    point_kwargs : dict, optional
        For `Axes.scatter`.

    Returns
    -------
    array (methods,) of matplotlib.axes.Axes
        All of them in the same frame.

    Raises
    ------
    TypeError
        If a result is neither a fit nor a DataTree.
    ValueError
        If there is no such reference, if there is nothing to compare it with, or if a method has other latent values.

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
    what = "latent values" if seen_whole else "latent values less their mean"
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
