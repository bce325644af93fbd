"""The Gaussian posterior that sites make of a prior, as a map from standard normals needs it."""

import numpy as np

from pymc_gpep.kernels.gaussians.coupled import latent_weights
from pymc_gpep.kernels.gaussians.whitening import log_sites
from pymc_gpep.kernels.linalg.lapack import multiply_classes
from pymc_gpep.kernels.moments.coupled_sites import relative_location
from pymc_gpep.solvers.coupled import factorise
from pymc_gpep.solvers.problem import Array

__all__ = ["whitening"]


def whitening(k: Array, mean: Array, pi: Array, nu: Array, inverses: Array, p: Array, centre: Array) -> float:
    """Compute `inverses`, `p`, and the posterior mean f̂ into `centre`, see `pymc_gpep.kernels.gaussians.whitening`.

    Returns log Z̃, the log integral over f of N(f; m, K) exp(νᵀf − ½ fᵀΠf); NaN where a matrix is not positive definite.
    """
    ok, log_det = factorise(k, pi, inverses, p)
    if not ok:
        return np.nan
    relative, weights = nu.copy(), np.empty_like(nu)
    relative_location(mean, pi, relative)
    latent_weights(inverses, p, pi, relative, weights)
    multiply_classes(k, weights, centre)
    with np.errstate(all="ignore"):
        value = 0.5 * float(np.log(pi.sum(0)).sum() - np.vdot(weights, centre)) - 0.5 * log_det
        centre += mean
    return value + log_sites(pi, nu, centre)
