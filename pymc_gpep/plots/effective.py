"""Pictures of the Gaussians that replace the likelihood of two points in an approximation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.approximations import Solution
from pymc_gpep.array_types import Array
from pymc_gpep.comparison.fits_and_draws import Result, by_name
from pymc_gpep.fits.fit import Fit
from pymc_gpep.plots.canvas import NEUTRAL, colours, draw_gaussian, panels, point_labels, point_position

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PRIOR_MASS = 0.9
_REACH = 3.3  # The picture extends this number of prior standard deviations from the prior mean.
_SIDE = 200  # Number of grid points of the likelihood in each direction.


def plot_effective_likelihoods(
    results: Mapping[str, Result] | Result,
    points: tuple[Any, Any],
    *,
    levels: Sequence[float] = (0.25, 0.5, 0.75),
    axes: Any = None,
    contour_kwargs: Mapping[str, Any] | None = None,
) -> NDArray[Any]:
    """Draw the Gaussians that replace the likelihood of two points, over the likelihood itself.

    The posterior of a Gaussian approximation is the prior times Gaussian sites, one for each point. Each panel shows
    contours of the sites of a method. Contours of the likelihood p(y_i | f_i) p(y_j | f_j), at the same shares of the
    maximum, are grey. The dotted ellipse contains 90 % of the prior. Inside it, sites of a good approximation are close
    to the likelihood (Figure 5 of Nickisch and Rasmussen 2008). Hyperparameters are at their maximum.

    Parameters
    ----------
    results : dict of str to Fit, or Fit
        Results of `pm.fit` for models of one latent function.
    points : tuple of two labels or int
        Training points: labels in the coords of the model, or positions if the dim has no coords.
    levels : sequence of float
        Levels of the contours, as shares of the maximum.
    axes : array of matplotlib.axes.Axes, optional
        One axes for each method.
    contour_kwargs : dict, optional
        Arguments of `Axes.plot` for the contours of the Gaussians.

    Returns
    -------
    array (methods,) of matplotlib.axes.Axes

    Raises
    ------
    TypeError
        If a result is not a fit, or if points have several latent values.
    ValueError
        If a point does not exist, or if both points are the same. If `levels` are not between 0 and 1, or if the sites
        of a method depend on several points.

    Examples
    --------
    >>> gpep.plots.plot_effective_likelihoods(binary, points=(0, 1))  # binary: of one latent function
    """
    named = by_name(results)
    if not len(levels) or not all(0 < level < 1 for level in levels):
        raise ValueError(f"levels must be in (0, 1), but are {levels}.")
    fits = {name: fit for name, fit in named.items() if isinstance(fit, Fit) and fit.log_posterior.joint}
    if others := [name for name in named if name not in fits]:
        raise TypeError(
            f"{others[0]!r} has no sites on latent values to draw. Give fits by methods for all rows "
            "together, such as method='ep'."
        )
    if points[0] == points[1]:
        raise ValueError(f"points must be two different points, but are {points[0]!r} twice.")
    axes = panels(axes, 1, len(fits), (3.2, 3.2))[0]
    for ax, (name, fit), colour in zip(axes, fits.items(), colours(len(fits)), strict=True):
        classifier, solution = fit.classifier, fit.solution
        if classifier.n_functions > 1:
            raise TypeError(f"{name!r} has {classifier.n_functions} latent values at each point, but must have one.")
        if not solution.posterior.sites_class.pointwise:
            raise ValueError(f"Some sites of {name!r} depend on several points, so its likelihoods cannot be drawn.")
        at = [point_position(classifier, point) for point in points]
        if classifier.groups is not None:
            at = classifier.groups.of[at].tolist()
        if at[0] == at[1]:
            raise ValueError(f"points {points[0]!r} and {points[1]!r} have the same latent value. Name another point.")
        _draw_exact(ax, solution, at, levels)
        style = {"color": colour} | dict(contour_kwargs or {})
        draw_gaussian(ax, *_gaussian(solution, at), [1.0 - level for level in levels], style, name)
        ax.set(title=name, aspect="equal")
        for set_label, label in zip((ax.set_xlabel, ax.set_ylabel), point_labels(classifier, points), strict=True):
            set_label(f"latent value, {label}")
    return np.asarray(axes)


def _gaussian(solution: Solution, at: list[int]) -> tuple[Array, Array]:
    """Return mean (2,) and covariance (2, 2) of the Gaussian sites of two points."""
    sites = solution.posterior.sites
    precision = np.maximum(sites.precision[0, at], np.finfo(float).tiny)
    return sites.location[0, at] / precision, np.diag(1.0 / precision)


def _draw_exact(ax: Axes, solution: Solution, at: list[int], levels: Sequence[float]) -> None:
    """Draw contours of the likelihood and an ellipse of the prior. Set the limits of the axes."""
    prior = solution.posterior.prior
    mean, cov = prior.mean[0, at], prior.among(np.array(at), np.array(at))[0]
    reach = _REACH * np.sqrt(np.diagonal(cov).max())
    x, y = np.linspace(mean - reach, mean + reach, _SIDE).T
    log_p = [
        np.array([solution.likelihood.at([i]).log_density(np.array([[f]]), solution.labels[[i]]) for f in grid])
        for i, grid in zip(at, (x, y), strict=True)
    ]
    product = np.exp(log_p[0] - log_p[0].max()) * np.exp(log_p[1] - log_p[1].max())[:, None]
    ax.contour(x, y, product, levels=np.sort(levels), colors="#a6a6a6", linewidths=1.0)
    draw_gaussian(ax, mean, cov, (_PRIOR_MASS,), {"color": NEUTRAL, "linestyle": ":"}, "prior")
    ax.set(xlim=(x[0], x[-1]), ylim=(y[0], y[-1]), autoscale_on=False)
