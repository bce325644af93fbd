"""Pictures of the convergence of fits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.approximations import Convergence, Solution
from pymc_gpep.argument_types import check_name
from pymc_gpep.fits.fit import Fit
from pymc_gpep.plots.canvas import LINE_STYLES, MARKERS, NEUTRAL, colours, panels


def plot_convergence(
    results: Any,
    of: Literal["hyperparameters", "sites"] = "hyperparameters",
    *,
    axes: Any = None,
    legend: bool = True,
    line_kwargs: Mapping[str, Any] | None = None,
) -> NDArray[Any]:
    """Draw the log evidence and the distance from convergence at each iteration (Figure 8 of the nested EP paper).

    Parameters
    ----------
    results : Fit, Solution or Convergence, or dict of str to them
        Results of `pm.fit`; for "sites" also results of an approximation's `solve`.
    of : {"hyperparameters", "sites"}
        Iterations of the search for hyperparameters, or iterations of the approximation. For `"sites"` a fit is solved
        once more at its final hyperparameters, starting from the default sites.
    axes : array of two matplotlib.axes.Axes, optional
    legend : bool
    line_kwargs : dict, optional
        Arguments of `Axes.plot`.

    Returns
    -------
    array (2,) of matplotlib.axes.Axes
        Axes of the log evidence and of the distance from convergence. For "hyperparameters" the distance is the largest
        slope of the log posterior in unconstrained space. For "sites" it is the residual, see `Convergence`, and a
        dotted line shows the tolerance.

    Raises
    ------
    TypeError
        If a result has an unsupported type.
    ValueError
        If `of` is unknown.

    Examples
    --------
    >>> gpep.plots.plot_convergence(ep)
    >>> gpep.plots.plot_convergence(ep, of="sites")
    """
    check_name("of", of, ("hyperparameters", "sites"))
    named = dict(results) if isinstance(results, Mapping) else {"": results}
    axes = panels(axes, 1, 2, (4.6, 3.4))[0]
    tolerances, labels = set(), set()
    for i, ((name, result), colour) in enumerate(zip(named.items(), colours(len(named)), strict=True)):
        if of == "sites":
            convergence = _convergence(name, result)
            start, evidence, distance = 1, convergence.evidence, convergence.residual
            tolerances.add(convergence.tolerance)
        elif isinstance(result, Fit):
            start, columns = 0, result.trace.columns
            evidence = columns.get("evidence", columns["log_posterior"])
            distance = result.trace.slopes
            labels.add(result.log_posterior.number if "evidence" in columns else "log posterior, estimated")
        else:
            raise _refusal(name, result, "a fit by pm.fit")
        style = {
            "color": colour, "linestyle": LINE_STYLES[i % len(LINE_STYLES)], "marker": MARKERS[i % len(MARKERS)],
            "markersize": 4, "label": name,
        } | dict(line_kwargs or {})  # fmt: skip
        for ax, values in zip(axes, (evidence, distance), strict=True):
            ax.plot(start + np.arange(len(values)), values, **style)
    for tolerance in tolerances:
        axes[1].axhline(tolerance, color=NEUTRAL, linewidth=0.8, linestyle=":")
    axes[1].set_yscale("log")
    axes[0].set_ylabel(" or ".join(sorted(labels)) or "log evidence")
    axes[1].set_ylabel("residual" if of == "sites" else "largest slope of the log posterior")
    for ax in axes:
        ax.set_xlabel("iteration" if of == "sites" else "iteration of the optimiser")
        ax.xaxis.get_major_locator().set_params(integer=True)
    if legend and len(named) > 1:
        axes[0].legend()
    return np.asarray(axes)


def _convergence(name: str, result: Any) -> Convergence:
    if isinstance(result, Fit):
        return result.log_posterior.from_cold(result.trace.best.theta)
    if isinstance(result, Solution):
        return result.convergence
    if isinstance(result, Convergence):
        return result
    raise _refusal(name, result, "a fit, a solution, or the convergence of either")


def _refusal(name: str, result: Any, wanted: str) -> TypeError:
    which = repr(name) if name else "results"
    return TypeError(f"{which} must be {wanted}, not a {type(result).__name__}.")
