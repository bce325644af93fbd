"""The latent values given the hyperparameters, as the variables of the model hold them."""

from collections.abc import Mapping

import numpy as np
from pymc.blocking import PointType

from pymc_gpep.array_types import Array
from pymc_gpep.hyper.latent_functions import LatentFunctions
from pymc_gpep.structure import GPClassifier

__all__ = ["Conditional"]


class Conditional:
    """Hyperparameters at a point, and the Gaussian of the latent values there, in the unconstrained space.

    Parameters
    ----------
    classifier : GPClassifier
    point : dict
        Values of the model's value variables, those of the latent values not among them.
    functions : LatentFunctions
        At this point.
    """

    def __init__(self, classifier: GPClassifier, point: PointType, functions: LatentFunctions) -> None:
        self.classifier = classifier
        self.point = point
        self.functions = functions

    def moments(self) -> tuple[dict[str, Array], dict[str, Array]]:
        """Means and variances by name of value variable; the variances of hyperparameters are 0."""
        mean = dict(self.point)
        variance = {name: np.zeros_like(value) for name, value in mean.items()}
        for latent in self.classifier.latents:
            centre, spread = self.functions.whitened() if latent.rotated else self.functions.marginals()
            name, rows = latent.free.name, latent.rows
            mean[name], variance[name] = centre[rows], spread[rows]
        return mean, variance

    def covariance(self, places: Mapping[str, slice], size: int) -> Array:
        """Covariance (size, size) of the flat vector in which each value variable has its place."""
        c, n = self.classifier.n_functions, self.classifier.n_points
        rotated = np.array([False] * c)
        for latent in self.classifier.latents:
            rotated[list(latent.classes)] = latent.rotated
        joint = self.functions.joint_covariance(rotated)
        cov = np.zeros((size, size))
        where = {}
        for latent in self.classifier.latents:
            start = places[latent.free.name].start
            for row, k in enumerate(latent.classes):
                where[k] = slice(start + row * n, start + (row + 1) * n)
        for a in range(c):
            for b in range(c):
                cov[where[a], where[b]] = joint[a, :, b, :]
        return cov

    def draw(self, draws: int, rng: np.random.Generator) -> dict[str, Array]:
        """Draws (draws, ...) of value variables, and of latent values that are deterministic, by name."""
        values = {name: np.broadcast_to(value, (draws, *np.shape(value))) for name, value in self.point.items()}
        f, z = self.functions.draw(rng, draws)
        return values | named_latents(self.classifier, f, z)


def named_latents(classifier: GPClassifier, f: Array, z: Array) -> dict[str, Array]:
    """Latent values f (draws, c, n), and the z that the model makes some of them of, by name of its variables.

    Each has the shape (draws, n) or (draws, outputs, n) of the variable.
    """
    values = {latent.f.name: f[:, latent.rows] for latent in classifier.latents}
    return values | {latent.free.name: z[:, latent.rows] for latent in classifier.latents if latent.rotated}
