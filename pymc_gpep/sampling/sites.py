"""Sites that guide a sampler, as a function of the hyperparameters that is cheap enough to be called at every proposal.

An approximation is solved at the mode of its posterior of the hyperparameters and to either side of it along each of
them. Between and beyond, the logarithms of the precisions and the locations of its sites are linear, and constant where
that would lead too far. The sampler is exact whatever the sites are; it is fast where they resemble the likelihood.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.approximations import Approximator
from pymc_gpep.hyperparameters import LogPosterior, maximise
from pymc_gpep.posterior import CoupledPosterior
from pymc_gpep.structure import GPClassifier

__all__ = ["LinearSites", "fit_sites"]

Array = NDArray[np.float64]

_WIDEST = 2.0  # largest standard deviation of an unconstrained hyperparameter that is believed
_DIFFERENCE = 0.05  # for the curvature of the log posterior
_REACH = 2.0  # standard deviations to which sites are extrapolated
_SMALLEST = 1e-12  # precision of a site


@dataclass(frozen=True)
class LinearSites:
    """Precisions and locations of sites, linear in the hyperparameters near a centre.

    Attributes
    ----------
    centre : array (d,)
        Unconstrained hyperparameters.
    covariance : array (d, d)
        Of the Gaussian with the curvature that the log posterior has there.
    log_pi, nu : array (c, n)
        At the centre.
    log_pi_slopes, nu_slopes : array (d, c, n)
    """

    centre: Array
    covariance: Array
    log_pi: Array
    nu: Array
    log_pi_slopes: Array
    nu_slopes: Array

    def at(self, theta: Array) -> tuple[Array, Array]:
        """π and ν (c, n) at given hyperparameters."""
        reach = _REACH * np.sqrt(self.covariance.diagonal())
        step = np.clip(theta - self.centre, -reach, reach)
        log_pi = self.log_pi + np.tensordot(step, self.log_pi_slopes, 1)
        return np.exp(np.minimum(log_pi, 0.0)), self.nu + np.tensordot(step, self.nu_slopes, 1)


def fit_sites(
    classifier: GPClassifier, approximator: Approximator, compile_kwargs: dict[str, Any] | None = None
) -> LinearSites:
    """Solve an approximation around the mode of the hyperparameters.

    Raises
    ------
    ValueError
        If the sites of the approximation do not couple the classes, or if it fails at the model's initial point.
    """
    if approximator.posterior is not CoupledPosterior:
        raise ValueError(f"{approximator.name} cannot guide a sampler: its sites do not couple the classes of a point.")
    log_posterior = LogPosterior(classifier, approximator, compile_kwargs)
    centre = maximise(log_posterior, log_posterior.initial_point(), _MAX_ITERATIONS).best.theta
    deviations, covariance = _curvature(log_posterior, centre)

    def solved(theta: Array) -> tuple[Array, Array] | None:
        solution = log_posterior.solve(theta)
        if not (solution.convergence.converged and isinstance(solution.posterior, CoupledPosterior)):
            return None
        pi, mean = solution.posterior.precision, solution.mean
        pull = pi * mean
        nu = solution.posterior.weights + pull - pi * (pull.sum(0) / pi.sum(0))
        return np.log(np.maximum(pi, _SMALLEST)), nu

    middle = solved(centre)
    if middle is None:
        raise ValueError(f"{approximator.name} does not converge at the mode of its hyperparameters; guide by another.")
    slopes = np.zeros((2, centre.size, *middle[0].shape))
    for j, deviation in enumerate(deviations):
        step = deviation * np.eye(centre.size)[j]
        low, high = solved(centre - step), solved(centre + step)
        if low is not None and high is not None:
            slopes[:, j] = (np.array(high) - np.array(low)) / (2.0 * deviation)
    return LinearSites(centre, covariance, *middle, *slopes)


_MAX_ITERATIONS = 200


def _curvature(log_posterior: LogPosterior, centre: Array) -> tuple[Array, Array]:
    """Standard deviations of each hyperparameter given the others, and their joint covariance, at a mode."""
    d = centre.size
    hessian = np.zeros((d, d))
    for j in range(d):
        step = _DIFFERENCE * np.eye(d)[j]
        high, low = log_posterior(centre + step).gradient, log_posterior(centre - step).gradient
        if np.isfinite(high).all() and np.isfinite(low).all():
            hessian[j] = (high - low) / (2.0 * _DIFFERENCE)
    values, vectors = np.linalg.eigh(-0.5 * (hessian + hessian.T))
    values = np.maximum(values, _WIDEST**-2)
    precision = (vectors * values) @ vectors.T
    return precision.diagonal() ** -0.5, (vectors / values) @ vectors.T
