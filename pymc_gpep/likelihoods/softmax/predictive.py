"""Class probabilities of a softmax under a Gaussian posterior of the latent values."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import qmc

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.special.softmax_average import softmax_average
from pymc_gpep.kernels.special.softmax_sobol import BLOCK, SEQUENCES
from pymc_gpep.likelihoods.gaussian_moments import gaussian_moments
from pymc_gpep.likelihoods.over_factors import DEAR, FEWEST, over_factors
from pymc_gpep.likelihoods.softmax.gumbel_noise import gumbel_noise

__all__ = ["softmax_probabilities"]

_SEED = 19_980_112  # the same input has the same answer
_LAST_LEVEL = 14  # log2 of the most points of a sequence
_BITS = 30  # of a Sobol point
_NEARLY = 20.0  # tolerances: from so large an error, dearer rules over factors do not reach it
_NARROW = 0.1  # variance between classes up to which integration over latent values is quick
_WIDE = 5e5  # times classes and over the tolerance, from which on factors come before it


def softmax_probabilities(mean: Array, cov: Array, *, tolerance: float = 5e-5) -> tuple[Array, Array]:
    """Probability of each class at m points, E[softmax(f)] over the latent values f ~ N(mean, cov) of each.

    Parameters
    ----------
    mean : (m, c) array
        Posterior means of the latent values.
    cov : (m, c, c) array
        Their posterior covariances, which may be singular.
    tolerance : float
        Absolute error wanted of each probability with four classes or more. With five or more, randomised rules average
        over factors that the classes have in common. Where these do not reach the tolerance, or with four classes,
        quasi-Monte Carlo integration is used. Two classes are exact to rounding, three to about 1e-9. The random
        numbers are always the same ones, and the work is bounded, so look at the errors returned.

    Returns
    -------
    probabilities : (m, c) array
        They sum to 1 at each point; NaN where mean or covariance are, or where a covariance has a negative variance.
    errors : (m,) array
        Estimated error of the least certain probability of each point. With four classes or more it is half a
        confidence interval of 99 per cent, with fewer the error of a quadrature.

    Raises
    ------
    ValueError
        If the shapes do not agree, if there are fewer than two classes, or if `tolerance` is not positive.
    """
    mean, cov = gaussian_moments(mean, cov, tolerance)
    if mean.shape[1] < FEWEST:
        return _averages(mean, cov, tolerance)
    probabilities, errors = np.full(mean.shape, np.nan), np.full(len(mean), np.nan)
    variance = cov.diagonal(axis1=1, axis2=2).mean(axis=1) - cov.mean(axis=(1, 2))  # of differences between classes
    varied = np.flatnonzero(variance > _NARROW)
    probabilities[varied], errors[varied] = over_factors(mean[varied], cov[varied], gumbel_noise(), tolerance)
    # Where classes move together a little and latent values vary much, factors are the smoother thing to average over.
    wide = variance * mean.shape[1] > _WIDE * tolerance
    for average, worth_it in ((_over_factors, wide & (errors <= _NEARLY * tolerance)), (_averages, True)):
        at = np.flatnonzero(worth_it & ~(errors <= tolerance))
        p, error = average(mean[at], cov[at], tolerance)
        better = ~(error > errors[at])
        probabilities[at[better]], errors[at[better]] = p[better], error[better]
    return probabilities, errors


def _over_factors(mean: Array, cov: Array, tolerance: float) -> tuple[Array, Array]:
    return over_factors(mean, cov, gumbel_noise(), tolerance, DEAR)


def _averages(mean: Array, cov: Array, tolerance: float) -> tuple[Array, Array]:
    """By closed form, quadrature or quasi-Monte Carlo integration of the softmax."""
    probabilities, errors = np.empty(mean.shape), np.empty(len(mean))
    softmax_average(mean, cov, _normals(mean.shape[1]), tolerance, probabilities, errors)
    return probabilities, errors


@lru_cache(maxsize=4)
def _normals(c: int) -> NDArray[np.float32]:
    """Standard normal numbers (SEQUENCES, blocks, c − 2, BLOCK) from scrambled Sobol sequences, in their order."""
    if c <= 3:
        return np.empty((SEQUENCES, 1, 0, BLOCK), dtype=np.float32)
    rng = np.random.default_rng(_SEED)
    each = [qmc.Sobol(c - 2, bits=_BITS, rng=rng).random_base2(_LAST_LEVEL) for _ in range(SEQUENCES)]
    uniform = np.stack(each).reshape(SEQUENCES, -1, BLOCK, c - 2).swapaxes(2, 3)
    return np.ascontiguousarray(ndtri(uniform + 0.5 ** (_BITS + 1)), dtype=np.float32)
