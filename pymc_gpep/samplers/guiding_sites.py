"""Sites that guide a sampler, as a function of the hyperparameters that is cheap enough to be called at every proposal.

An approximation is solved at the mode of its posterior of the hyperparameters. It is solved as well to either side of
the mode, along each principal axis of this posterior's curvature there. Through these solutions go parabolas, for the
logarithms of the precisions and for the locations of the sites; far out they are held constant. The sampler is exact
whatever the sites are; it is fast where they resemble the likelihood.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from pymc_gpep.approximations import Approximator, Solution
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.sites import Sites
from pymc_gpep.hyper.curvature import second_derivatives
from pymc_gpep.hyper.dense_log_posterior import DenseLogPosterior
from pymc_gpep.hyper.evaluation import Evaluation
from pymc_gpep.hyper.log_posterior import LogPosterior
from pymc_gpep.hyper.optimum import maximise
from pymc_gpep.reading import GPClassifier

_WIDEST = 2.0  # largest standard deviation of an unconstrained hyperparameter that is believed
_DIFFERENCE = 0.05  # for the curvature of the log posterior
_SIDE = 1.5  # standard deviations from the mode to the solutions on either side
_REACH = 2.5  # and to where the parabolas end
_SMALLEST = 1e-12  # precision of a site
_MAX_ITERATIONS = 200


@dataclass(frozen=True)
class SiteModel:
    """Precisions and locations of sites near a centre, a sum of parabolas along principal axes.

    Attributes
    ----------
    centre : array (d,)
        Unconstrained hyperparameters.
    axes : array (d, d)
        Principal axes of the posterior of the hyperparameters there, in the columns, each as long as its standard
        deviation.
    sites : Sites
        Sites at the centre.
    slopes, bends : array (d, 2, c, n)
        Changes of log π and ν, for one standard deviation along each axis and for its square.
    largest_precision : float
        Limit that no π exceeds, however far the parabolas go.
    """

    centre: Array
    axes: Array
    sites: Sites
    slopes: Array
    bends: Array
    largest_precision: float

    @property
    def covariance(self) -> Array:
        """Return the covariance of the Gaussian with the curvature of the log posterior at the centre, (d, d)."""
        return np.asarray(self.axes @ self.axes.T)

    @cached_property
    def _parabolas(self) -> tuple[Array, Array, Array]:
        """Inverse of the axes, log π and ν at the centre, and the coefficients (2d, ·) of u and of u²."""
        middle, curves = _coordinates(self.sites), np.concatenate([self.slopes, self.bends])
        return np.linalg.inv(self.axes), middle, curves.reshape(len(curves), middle.size)

    def at(self, theta: Array) -> Sites:
        """The sites at given hyperparameters."""
        inverse, middle, curves = self._parabolas
        u = np.clip(inverse @ (theta - self.centre), -_REACH, _REACH)
        log_pi, nu = middle + (np.concatenate([u, u * u]) @ curves).reshape(middle.shape)
        return replace(self.sites, precision=np.exp(np.minimum(log_pi, np.log(self.largest_precision))), location=nu)


def fit_sites(
    classifier: GPClassifier, approximator: Approximator, compile_kwargs: dict[str, Any] | None = None
) -> SiteModel:
    """Solve an approximation around the mode of the hyperparameters.

    Raises
    ------
    ValueError
        If the approximation fails at the model's initial point, or at the mode.
    """
    log_posterior = DenseLogPosterior(classifier, approximator, compile_kwargs, grouped=False)
    best = maximise(log_posterior, log_posterior.space.initial_point(), _MAX_ITERATIONS).best
    centre, axes = best.theta, _principal_axes(log_posterior, best)

    def solved(theta: Array) -> Sites | None:
        return solution_sites(log_posterior.solve(theta, best.start))

    sites = solved(centre)
    if sites is None:
        raise ValueError(f"{approximator.name} does not converge at the mode of its hyperparameters; guide by another.")
    middle = _coordinates(sites)
    slopes, bends = np.zeros((2, centre.size, *middle.shape))
    for j, axis in enumerate(axes.T):
        below, above = solved(centre - _SIDE * axis), solved(centre + _SIDE * axis)
        if below is not None and above is not None:
            low, high = _coordinates(below), _coordinates(above)
            slopes[j] = (high - low) / (2.0 * _SIDE)
            bends[j] = (high + low - 2.0 * middle) / (2.0 * _SIDE**2)
    return SiteModel(centre, axes, sites, slopes, bends, classifier.likelihood_model.largest_precision)


def solution_sites(solution: Solution) -> Sites | None:
    """The sites of an approximation whose posterior has a map from standard normals; None if it did not converge."""
    if not solution.convergence.converged:
        return None
    sites = solution.posterior.sites
    return replace(sites, precision=np.maximum(sites.precision, _SMALLEST))


def _coordinates(sites: Sites) -> Array:
    """Return the values that parabolas go through, log π and ν (2, c, n)."""
    return np.stack([np.log(sites.precision), sites.location])


def _principal_axes(log_posterior: LogPosterior, best: Evaluation) -> Array:
    """Principal axes of the Gaussian with the curvature of the log posterior at a mode, by differences of gradients."""
    hessian = second_derivatives(log_posterior, best, np.full(best.theta.size, _DIFFERENCE))
    # A direction in which the approximation fails counts as flat.
    values, vectors = np.linalg.eigh(-np.where(np.isfinite(hessian), hessian, 0.0))
    return np.asarray(vectors / np.sqrt(np.maximum(values, _WIDEST**-2)))
