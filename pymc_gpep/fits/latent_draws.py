"""Draws of latent values, under the names that the variables of the model have."""

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.dense_posterior import DensePosterior
from pymc_gpep.structure import GPClassifier

__all__ = ["draw_latents"]


def draw_latents(
    classifier: GPClassifier, posterior: DensePosterior, draws: int, rng: np.random.Generator
) -> dict[str, Array]:
    """Draw the latent values, and where the model rotates them also what it rotates.

    Parameters
    ----------
    classifier : GPClassifier
    posterior : DensePosterior
    draws : int
    rng : Generator

    Returns
    -------
    dict of arrays (draws, n) or (draws, outputs, n)
        By name of the model's variable.

    Raises
    ------
    NotPositiveDefiniteError
        If the prior covariance has no Cholesky factor.
    """
    z = posterior.draw_whitened(rng, draws)
    f = posterior.prior.latent(z)
    values = {latent.f.name: f[:, latent.rows] for latent in classifier.latents}
    return values | {latent.free.name: z[:, latent.rows] for latent in classifier.latents if latent.rotated}
