"""The integrated variables given the hyperparameters, as the variables of the model hold them."""

from collections.abc import Mapping

import numpy as np
from pymc.blocking import PointType

from pymc_gpep.array_types import Array
from pymc_gpep.hyper.latent_functions import LatentFunctions
from pymc_gpep.structure.integrated_variables import IntegratedVariables

__all__ = ["Conditional"]


class Conditional:
    """Hyperparameters at a point, and the Gaussian of the integrated variables there, in the unconstrained space.

    Parameters
    ----------
    variables : IntegratedVariables
    point : dict
        Values of the model's value variables, those of the integrated ones not among them.
    functions : LatentFunctions
        At this point.
    """

    def __init__(self, variables: IntegratedVariables, point: PointType, functions: LatentFunctions) -> None:
        self.variables = variables
        self.point = point
        self.functions = functions

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
