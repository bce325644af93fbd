"""Integrals of a likelihood over Gaussian latent values by a product rule, from its log density alone."""

from functools import cache
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from pymc_gpep.likelihoods.likelihood import Likelihood

__all__ = ["integral_and_derivatives", "integrate"]

Array = NDArray[np.float64]

_NODES = {1: 100, 2: 40, 3: 20}  # number of nodes by number of latent values


@cache
def _rule(c: int) -> tuple[Array, Array]:
    """Return nodes (s, c) and log weights (s,) of a rule for standard normal variables."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES[c])
    log_weight = np.log(np.array(list(product(weights, repeat=c))) / np.sqrt(2 * np.pi)).sum(1)
    return np.array(list(product(nodes, repeat=c))), log_weight


def integrate(likelihood: Likelihood, mean: Array, cov: Array, y: int) -> float:
    """log ∫ p(y | f) N(f | mean, cov) df of one point, for 1 to 3 latent values with moderate variances."""
    c = len(mean)
    z, log_weight = _rule(c)
    f = mean + z @ np.linalg.cholesky(cov + 1e-14 * np.eye(c)).T
    return float(logsumexp(log_weight + likelihood.log_density(f[..., None], np.array([y]))))


def integral_and_derivatives(
    likelihood: Likelihood, mean: Array, cov: Array, y: int, direction: Array, step: float = 1e-2
) -> tuple[float, float, float]:
    """The log integral and its first two derivatives along a direction of the mean, with errors of about 1e-8."""
    low2, low, middle, high, high2 = (
        integrate(likelihood, mean + t * direction, cov, y) for t in step * np.arange(-2, 3)
    )
    slope = (8 * (high - low) - (high2 - low2)) / (12 * step)
    bend = (16 * (high + low) - (high2 + low2) - 30 * middle) / (12 * step**2)
    return middle, slope, bend
