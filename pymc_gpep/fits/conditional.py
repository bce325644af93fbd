"""The latent values given the hyperparameters, as the variables of the model have them."""

from collections.abc import Mapping

import numpy as np
from pymc.blocking import PointType

from pymc_gpep.approximations import Solution
from pymc_gpep.array_types import Array
from pymc_gpep.fits.latent_draws import draw_latents
from pymc_gpep.gaussians.dense_posterior import DensePosterior
from pymc_gpep.gaussians.prior import NotPositiveDefiniteError
from pymc_gpep.structure import GPClassifier

__all__ = ["Conditional"]


class Conditional:
    """Hyperparameters at a point, and the Gaussian that the latent values have there, in the unconstrained space.

    Parameters
    ----------
    classifier : GPClassifier
    point : dict of arrays
        Values of the model's value variables, those of the latent values not among them.
    solution : Solution
        The approximate posterior at this point.
    """

    def __init__(self, classifier: GPClassifier, point: PointType, solution: Solution) -> None:
        self.classifier = classifier
        self.point = point
        self.solution = solution

    @property
    def _posterior(self) -> DensePosterior:
        """The Gaussian, of a prior that has Cholesky factors."""
        posterior = self.solution.posterior
        try:
            _ = posterior.prior.roots
        except NotPositiveDefiniteError:
            # An approximation needs no such factor; the model's own latent values, mean + factor × noise, need it.
            names = ", ".join(repr(latent.f.name) for latent in self.classifier.latents)
            at = {name: np.asarray(value).tolist() for name, value in self.point.items()}
            raise NotPositiveDefiniteError.of(
                f"The prior covariance of the latent values {names}", f" at the hyperparameters {at} (unconstrained)"
            ) from None
        return posterior

    def moments(self) -> tuple[dict[str, Array], dict[str, Array]]:
        """Means and variances by name of value variable; the variances of hyperparameters are 0."""
        mean = dict(self.point)
        variance = {name: np.zeros_like(value) for name, value in mean.items()}
        for latent in self.classifier.latents:
            centre, spread = self._latent_moments(latent.rotated)
            name, rows = latent.free.name, latent.rows
            mean[name], variance[name] = centre[rows], spread[rows]
        return mean, variance

    def _latent_moments(self, rotated: bool) -> tuple[Array, Array]:
        """Mean and variance (c, n) of f, or of z where f = m + L z."""
        if not rotated:
            return self.solution.mean, self.solution.cov.diagonal(axis1=1, axis2=2).T
        posterior = self._posterior
        prior = posterior.prior
        mean = prior.whitened_slope(posterior.weights)
        return mean, np.maximum(posterior.marginal_variance(prior.roots, np.eye(mean.shape[1])), 0.0)

    def covariance(self, places: Mapping[str, slice], size: int) -> Array:
        """Covariance (size, size) of the flat vector in which each value variable has its place."""
        posterior = self._posterior
        prior = posterior.prior
        c, n = prior.shape
        rotated = np.array([False] * c)
        for latent in self.classifier.latents:
            rotated[list(latent.classes)] = latent.rotated
        which = rotated[:, None, None]
        left = np.where(which, prior.roots, prior.k)
        joint = posterior.joint_covariance(left, np.where(which, np.eye(n), prior.k))
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
        return values | draw_latents(self.classifier, self._posterior, draws, rng)
