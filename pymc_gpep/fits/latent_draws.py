"""Draws of latent values, under the names that the variables of the model have."""

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.gaussians.posterior import Posterior
from pymc_gpep.structure import GPClassifier

__all__ = ["draw_latents"]

Array = NDArray[np.float64]


def draw_latents(
    classifier: GPClassifier, posterior: Posterior, roots: Array, draws: int, rng: np.random.Generator
) -> dict[str, Array]:
    """Draw the latent values, and where the model rotates them also what it rotates.

    Parameters
    ----------
    classifier : GPClassifier
    posterior : Posterior
    roots : array (1 or c, n, n)
        Lower Cholesky factors of the prior covariance.
    draws : int
    rng : Generator

    Returns
    -------
    dict of arrays (draws, n) or (draws, outputs, n)
        By name of the model's variable.
    """
    z = posterior.draw_whitened(rng, draws, roots)
    f = posterior.prior_mean + np.matmul(roots, z.transpose(1, 2, 0)).transpose(2, 0, 1)
    values = {latent.f.name: f[:, latent.rows] for latent in classifier.latents}
    return values | {latent.free.name: z[:, latent.rows] for latent in classifier.latents if latent.rotated}
