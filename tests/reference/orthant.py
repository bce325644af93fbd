"""Class probabilities by averaging over Sobol points what one draw of the other utilities leaves to be integrated."""

import numpy as np
from scipy.special import ndtr
from scipy.stats import qmc

__all__ = ["class_probabilities"]


def class_probabilities(mean, cov, *, log2_points=15, shifts=8, seed=0):
    """P(v_k is the largest), v ~ N(mean, cov + I), of one point, and its standard error.

    Draws of f ~ N(mean, cov) and of the noise of all classes but k leave Φ(f_k − max of the other utilities).
    """
    c = len(mean)
    values, vectors = np.linalg.eigh(cov)
    # The largest directions first, where Sobol points are best.
    root = (vectors * np.sqrt(np.maximum(values, 0.0)))[:, ::-1]
    averages = np.empty((shifts, c))
    for shift in range(shifts):
        u = qmc.MultivariateNormalQMC(np.zeros(2 * c), rng=np.random.default_rng([seed, shift])).random(2**log2_points)
        f = mean + u[:, :c] @ root.T
        utilities = f + u[:, c:]
        for k in range(c):
            highest = np.delete(utilities, k, axis=1).max(1)
            averages[shift, k] = ndtr(f[:, k] - highest).mean()
    return averages.mean(0), averages.std(0, ddof=1) / np.sqrt(shifts)
