"""Class probabilities of a softmax under a Gaussian posterior of the latent values."""

from functools import lru_cache

import numpy as np
from scipy.special import ndtri
from scipy.stats import qmc

from pymc_gpep.kernels.special.orthant import BITS, LAST_LEVEL, SHIFTS
from pymc_gpep.kernels.special.softmax_average import softmax_average
from pymc_gpep.likelihoods.gaussian_moments import gaussian_moments

__all__ = ["softmax_probabilities"]

_SEED = 19_980_112  # the same input has the same answer


def softmax_probabilities(
    mean: np.ndarray, cov: np.ndarray, *, tolerance: float = 5e-5
) -> tuple[np.ndarray, np.ndarray]:
    """Probability of each class at m points, E[softmax(f)] over the latent values f ~ N(mean, cov) of each.

    Parameters
    ----------
    mean : (m, c) array
        Posterior means of the latent values.
    cov : (m, c, c) array
        Their posterior covariances, which may be singular.
    tolerance : float
        Absolute error wanted of each probability with four classes or more, by quasi-Monte Carlo integration; two
        classes are exact to rounding, three to about 1e-9. The quasi-random numbers are always the same ones, and the
        work is bounded, so look at the errors returned.

    Returns
    -------
    probabilities : (m, c) array
        They sum to 1 at each point; NaN where mean or covariance are, or where a covariance has a negative variance.
    errors : (m,) array
        Estimated error of the least certain probability of each point: three standard errors with four classes or
        more, and that of a quadrature with fewer.

    Raises
    ------
    ValueError
        If the shapes do not agree, if there are fewer than two classes, or if `tolerance` is not positive.
    """
    mean, cov = gaussian_moments(mean, cov, tolerance)
    probabilities, errors = np.empty(mean.shape), np.empty(len(mean))
    softmax_average(mean, cov, _normals(mean.shape[1]), tolerance, probabilities, errors)
    return probabilities, errors


@lru_cache(maxsize=4)
def _normals(c: int) -> np.ndarray:
    """Standard normal numbers (SHIFTS, 2**LAST_LEVEL, c − 2) from shifts of a scrambled Sobol sequence."""
    if c <= 3:
        return np.empty((SHIFTS, 0, 1))
    rng = np.random.default_rng(_SEED)
    points = np.ldexp(qmc.Sobol(c - 2, bits=BITS, rng=rng).random_base2(LAST_LEVEL), BITS).astype(np.int64)
    shifts = rng.integers(1 << BITS, size=(SHIFTS, 1, c - 2))
    return ndtri(np.ldexp((points ^ shifts) + 0.5, -BITS))
