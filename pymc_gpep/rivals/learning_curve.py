"""Scores of predictions against the number of active rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pymc as pm
import xarray as xr
from numpy.typing import ArrayLike, NDArray

from pymc_gpep.argument_types import check_whole
from pymc_gpep.fits.fit import Fit
from pymc_gpep.fits.prediction import held_out, predict_given
from pymc_gpep.latent.gp_latent import as_gps
from pymc_gpep.plots.canvas import LINE_STYLES, colours, label_of, panels
from pymc_gpep.plots.probabilities import input_grid, plot_probabilities, row_of_class, varying
from pymc_gpep.reading.classifier import LikelihoodAtNewRows
from pymc_gpep.rivals.ivm import ActivePosterior
from pymc_gpep.solvers.inducing import row_blocks

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def check_active(fit: Any) -> None:
    """Raise a TypeError if `fit` is not a fit by active rows."""
    if not hasattr(fit, "active"):
        what = f"a fit by {fit.log_posterior.by}" if isinstance(fit, Fit) else f"a {type(fit).__name__}"
        raise TypeError(f'fit must be a fit by pm.fit(method="ivm"), but is {what}.')


def learning_curve(
    fit: Fit,
    Xnew: ArrayLike,
    ynew: ArrayLike,
    *,
    every: int = 50,
    gp: pm.gp.Latent | Sequence[pm.gp.Latent] | None = None,
    probabilities: str | None = None,
) -> xr.Dataset:
    """Return scores of predictions by the first active rows of a fit, for increasing numbers of rows.

    All predictions use the hyperparameters of the fit. With `polish=True`, sites are always iterated to a fixed point.

    Parameters
    ----------
    fit : Fit
        Result of `pm.fit(method="ivm")`.
    Xnew : array (m, d)
        New inputs.
    ynew : array (m,) of int
        Observations at the new inputs.
    every : int
        Number of active rows between two scores. The last score is for all active rows.
    gp : pm.gp.Latent or sequence of them, optional
        Processes of the latent values. By default the covariance is read from the graph of the model.
    probabilities : str, optional
        Computation of class probabilities, as in `fit.predict`.

    Returns
    -------
    Dataset
        `mlpd`, the mean log predictive density, and `accuracy`, by `active`, the number of active rows.

    Raises
    ------
    TypeError
        If `every` is not a whole number, or `fit` is not a fit by active rows.
    ValueError
        If inputs or labels do not match the model, or if `every` is not positive.

    Examples
    --------
    >>> with model:
    ...     fit = pm.fit(method="ivm", active=10, rounds=0)
    >>> gpep.diagnostics.learning_curve(fit, Xnew, ynew, every=5).to_dataframe()
    """
    check_whole("every", every, 1)
    check_active(fit)
    classifier, solution, approximator = fit.classifier, fit.solution, fit.log_posterior.approximator
    functions = fit.log_posterior.latent(fit.theta, solution, as_gps(gp))
    inputs = functions.new_rows(Xnew, {})
    observed = held_out(classifier, ynew, len(inputs), "ynew")
    how = classifier.likelihood_model.check_way(probabilities, "probabilities")
    space = fit.log_posterior.space
    likelihood = LikelihoodAtNewRows(classifier, len(inputs), space.data)(space.point(fit.theta))
    d = len(solution.selection.rows)
    counts = [*range(every, d, every), d]
    posteriors = [ActivePosterior(approximator.posterior_of_first(solution, count)) for count in counts]
    density, right = np.zeros((2, len(counts)))
    for rows in row_blocks(len(inputs), classifier.n_functions * d):
        block = functions.at(inputs[rows]).prior
        for i, (count, posterior) in enumerate(zip(counts, posteriors, strict=True)):
            mean, cov = posterior.predict(block._replace(cross=block.cross[:, :count]))
            found = predict_given(likelihood.at(rows), mean.T, cov, observed=observed[rows], how=how)
            density[i] += 0.0 if found.log_density is None else found.log_density.sum()
            right[i] += (found.p.argmax(axis=1) == observed[rows]).sum()
    n = len(inputs)
    return xr.Dataset({"mlpd": ("active", density / n), "accuracy": ("active", right / n)}, coords={"active": counts})


_SCORES = {"mlpd": "mean log predictive density", "accuracy": "accuracy"}


def plot_active(
    fit: Fit,
    gp: Any = None,
    Xnew: Any = None,
    *,
    ax: Axes | None = None,
    legend: bool = True,
    ring_kwargs: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Axes:
    """Draw class probabilities over one or two inputs, the data, and rings around the active rows.

    The plot follows Figure 5 of Girolami and Rogers (2006).

    Parameters
    ----------
    fit : Fit
        Result of `pm.fit(method="ivm")`.
    gp : pm.gp.Latent or sequence of them, optional
        Processes of the latent values. By default the covariance is read from the graph of the model.
    Xnew : array (m, d), optional
        New inputs. One or two columns must vary; two must form a regular grid, see `input_grid`. The default is a grid
        around the data.
    ax : matplotlib.axes.Axes, optional
    legend : bool
    ring_kwargs : dict, optional
        Arguments of `Axes.scatter` for the rings.
    **kwargs
        Arguments of `plot_probabilities`.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    TypeError
        If `fit` is not a fit by active rows.
    ValueError
        If more than two inputs vary, or if `Xnew` is missing and the data have more than two inputs.

    Examples
    --------
    >>> with model:
    ...     fit = pm.fit(method="ivm", active=10, rounds=0)
    >>> gpep.plots.plot_active(fit)
    """
    check_active(fit)
    X = fit.fitted_inputs(gp)
    new = input_grid(X) if Xnew is None else Xnew
    p = fit.predict(gp, new)["p"]
    ax = plot_probabilities(p, Xnew=new, X=X, y=fit.solution.labels, ax=ax, legend=False, **kwargs)
    columns = varying(np.asarray(new, dtype=np.float64))
    inputs = fit.active["input"].values[:, columns]
    if len(columns) == 1:
        inputs = np.column_stack([inputs, row_of_class(fit.active["label"].values)])
    style: dict[str, Any] = {
        "s": 60,
        "facecolors": "none",
        "edgecolors": "black",
        "linewidths": 1.2,
        "zorder": 5,
        "label": "active",
    }
    ax.scatter(*inputs.T, **style | dict(ring_kwargs or {}))
    if legend:
        ax.legend(title=label_of(p.dims[1]))
    return ax


def plot_learning_curve(
    curves: xr.Dataset | Mapping[str, xr.Dataset],
    *,
    axes: Any = None,
    line_kwargs: Mapping[str, Any] | None = None,
) -> NDArray[Any]:
    """Draw scores of predictions against the number of active rows.

    Figures 5 and 6 of Girolami and Rogers (2006) have these plots.

    Parameters
    ----------
    curves : Dataset or dict of them
        Results of `gpep.diagnostics.learning_curve`, by name if there are several.
    axes : array of matplotlib.axes.Axes, optional
        Two axes.
    line_kwargs : dict, optional
        Arguments of `Axes.plot`.

    Returns
    -------
    array (2,) of matplotlib.axes.Axes
        Axes of the mean log predictive density and of the accuracy.

    Raises
    ------
    TypeError
        If a curve is not a result of `learning_curve`.

    Examples
    --------
    >>> with model:
    ...     fit = pm.fit(method="ivm", active=10, rounds=0)
    >>> gpep.plots.plot_learning_curve(gpep.diagnostics.learning_curve(fit, Xnew, ynew, every=5))
    """
    several: Any = curves if not isinstance(curves, xr.Dataset) else {"": curves}
    named = dict(several) if isinstance(several, Mapping) else {"": several}
    for name, curve in named.items():
        if not isinstance(curve, xr.Dataset):
            raise TypeError(
                f"{repr(name) if name else 'curves'} must be a result of "
                f"gpep.diagnostics.learning_curve(fit, Xtest, ytest), but is of type {type(curve).__name__}."
            )
    row = panels(axes, 1, 2, (4.2, 3.2))[0]
    for i, ((name, curve), colour) in enumerate(zip(named.items(), colours(len(named)), strict=True)):
        style = LINE_STYLES[i % len(LINE_STYLES)]
        for ax, score in zip(row, _SCORES, strict=True):
            given: dict[str, Any] = {"color": colour, "linestyle": style, "marker": ".", "label": name or None}
            ax.plot(curve["active"], curve[score], **given | dict(line_kwargs or {}))
    for ax, label in zip(row, _SCORES.values(), strict=True):
        ax.set_xlabel("active rows")
        ax.set_ylabel(label)
    if len(named) > 1:
        row[0].legend()
    return np.asarray(row)
