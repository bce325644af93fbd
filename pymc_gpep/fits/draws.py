"""Draws of the variables of a model from the posterior that a fit is: Gaussian given hyperparameters."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.fits.fitted import Fitted
from pymc_gpep.hyper.hyper_posterior import HyperPosterior
from pymc_gpep.hyper.log_posterior import LogPosterior


class Conditional:
    """Hyperparameters at a point, and the Gaussian of the integrated variables there, in the unconstrained space.

    Parameters
    ----------
    log_posterior : LogPosterior
    theta : array (d,)
        The flat vector of the hyperparameters.
    solution
        The approximate posterior that `log_posterior` found there.

    Attributes
    ----------
    point : dict
        Values of the model's value variables, those of the integrated ones not among them.
    functions : LatentFunctions
        Latent functions at this point.
    """

    def __init__(self, log_posterior: LogPosterior, theta: Array, solution: Any) -> None:
        self.variables = log_posterior.space.variables
        self.point = log_posterior.point(theta)
        self.solution = solution
        self.functions = log_posterior.latent(theta, solution)

    def moments(self) -> tuple[dict[str, Array], dict[str, Array]]:
        """Means and variances by name of value variable; the variances of hyperparameters are 0."""
        mean, variance = self.variables.moments(self.point, self.functions)
        return self.point | mean, {name: np.zeros_like(value) for name, value in self.point.items()} | variance

    def covariance(self, places: Mapping[str, slice], size: int) -> Array:
        """Covariance (size, size) of the flat vector in which each value variable has its place."""
        return self.variables.covariance(self.point, self.functions, places, size)

    def draw(self, draws: int, rng: np.random.Generator) -> dict[str, Array]:
        """Draws (draws, ...) of value variables, and of latent values that are deterministic, by name."""
        values = {name: np.broadcast_to(value, (draws, *np.shape(value))) for name, value in self.point.items()}
        f, z = self.functions.draw(rng, draws)
        return values | self.variables.draws(self.point, f, z)


def conditionals(hyper: HyperPosterior) -> Iterator[Conditional]:
    """The joint posterior given each node in turn."""
    return (Conditional(hyper.log_posterior, node.theta, solution) for node, solution in hyper.solutions())


def draw(fit: Fitted, draws: int, rng: np.random.Generator) -> dict[str, Array]:
    """Draws (draws, ...) of all value variables, and of latent values that are deterministic, by name."""
    hyper = fit.hyper_posterior
    values: dict[str, Array] = {}
    for rows, theta, solution, own in hyper.drawn(draws, rng):
        found = Conditional(hyper.log_posterior, theta, solution).draw(rows.size, rng)
        points = [hyper.log_posterior.point(each) for each in own]
        found |= {name: np.array([point[name] for point in points]) for name in points[0]}
        for name, drawn in found.items():
            values.setdefault(name, np.empty((draws, *drawn.shape[1:])))[rows] = drawn
    return values


def draw_at_maximum(fit: Fitted, draws: int, rng: np.random.Generator) -> dict[str, Array]:
    """Draws like those of `draw`, with the hyperparameters at their maximum."""
    return Conditional(fit.log_posterior, fit.trace.best.theta, fit.solution).draw(draws, rng)
