"""The posterior of the standard normals z that latent functions f = m + J z are made of, by its precision I + JᵀΠJ.

Nothing is subtracted: variances far below those of the prior keep their digits, where I − JᵀMJ has lost them.
"""

from dataclasses import replace

import numpy as np
from scipy.linalg import LinAlgError

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.posterior import DensePosterior
from pymc_gpep.solvers.coupled_whitened import CoupledWhitened, coupled_whitened


def posterior_of_normals(posterior: DensePosterior) -> CoupledWhitened | None:
    """Return q(z) = N(μ, Σ) of z (c, q), with J (1 or c, n, q) the factors that the posterior's prior has.

    None where sites are not of single points, or the precision has no Cholesky factor.
    """
    sites, prior = posterior.sites, posterior.prior
    if not sites.pointwise:
        return None
    c, n = prior.shape
    roots = np.broadcast_to(prior.roots, (c, *prior.roots.shape[1:]))
    q = roots.shape[-1]
    precision = np.zeros((c, q, c, q))
    for k, own in enumerate(roots):
        columns = np.zeros((q, c, n))
        columns[:, k] = own.T
        precision[k] = np.einsum("jbi,bil->jbl", sites.product(columns), roots, optimize=True)
    try:
        found = coupled_whitened(precision.reshape(c * q, c * q), np.zeros((c, q)))
    except LinAlgError:
        return None
    return replace(found, mean=prior.whitened_slope(posterior.weights))


def draw_normals(posterior: DensePosterior, rng: np.random.Generator, count: int) -> Array:
    """Draw z (count, c, q); by perturbation where `posterior_of_normals` has no answer."""
    normals = posterior_of_normals(posterior)
    return posterior.draw_whitened(rng, count) if normals is None else normals.draw(rng, count)
