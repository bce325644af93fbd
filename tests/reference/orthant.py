"""Class probabilities as orthant probabilities of differences of utilities, and as averages over Sobol points.

The averages are over a conditional probability given the other utilities.
"""

import numpy as np
from scipy.special import ndtr
from scipy.stats import multivariate_normal, qmc

from tests.reference.stored import stored

__all__ = ["class_probabilities", "orthant_probabilities"]


@stored
def orthant_probabilities(mean, cov, tolerance):
    """P(v_k is the largest) for v ~ N(mean, cov) at one point, by SciPy. With three classes it is exact to rounding."""
    c = len(mean)
    result = np.empty(c)
    for k in range(c):
        to_k = np.delete(np.eye(c) - np.eye(c)[k], k, axis=0)
        law = multivariate_normal(to_k @ mean, to_k @ cov @ to_k.T, seed=0)
        law.abseps = law.releps = tolerance
        law.maxpts = 10**6
        result[k] = law.cdf(np.zeros(c - 1))
    return result


@stored
def class_probabilities(mean, cov, log2_points=15, shifts=8, seed=0):
    """P(v_k is the largest) for v ~ N(mean, cov + I) at one point, and its standard error.

    Given draws of f ~ N(mean, cov) and of the noise of all classes but k, the probability is Φ(f_k − max of the other
    utilities).
    """
    c = len(mean)
    values, vectors = np.linalg.eigh(cov)
    # The directions of largest variance come first, where Sobol points are most uniform.
    root = (vectors * np.sqrt(np.maximum(values, 0.0)))[:, ::-1]
    averages = np.empty((shifts, c))
    for shift in range(shifts):
        u = qmc.MultivariateNormalQMC(np.zeros(2 * c), rng=np.random.default_rng([seed, shift])).random(2**log2_points)
        f = mean + u[:, :c] @ root.T
        utilities = f + u[:, c:]
        for k in range(c):
            highest = np.delete(utilities, k, axis=1).max(1)
            averages[shift, k] = ndtr(f[:, k] - highest).mean()
    return np.array([averages.mean(0), averages.std(0, ddof=1) / np.sqrt(shifts)])
