"""Class probabilities under a Gaussian posterior of the latent values."""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from scipy.special import ndtr
from scipy.stats import qmc

from pymc_gpep.argument_types import check_name
from pymc_gpep.array_types import Array
from pymc_gpep.kernels.moments.inner_ep import tilted_log_normaliser
from pymc_gpep.kernels.special.largest_of_independent import FINE, probabilities_of_independent
from pymc_gpep.kernels.special.orthant import (
    BITS,
    LAST_LEVEL,
    SEQUENCES,
    largest_of_four,
    largest_of_three,
    largest_probabilities,
)
from pymc_gpep.likelihoods.gaussian_moments import gaussian_moments, independent_classes
from pymc_gpep.likelihoods.over_factors import UtilityNoise, over_factors

_SEED = 20_130_107  # the same input has the same answer
_NOISE = UtilityNoise(common=1.0, weights=np.ones(1), means=np.zeros(1), variances=np.zeros(1), error=4e-6)
_WIDEST = 1e100  # variance whose square is a number
_INNER_SWEEPS = 100
_INNER_TOLERANCE = 1e-10


def class_probabilities(
    mean: np.ndarray, cov: np.ndarray, *, method: str = "orthant", tolerance: float = 5e-5
) -> tuple[np.ndarray, np.ndarray]:
    """Probability of each class at m points, the latent values of each integrated out.

    Class k has the probability that v_k is the largest of v ~ N(mean, cov + I).

    Parameters
    ----------
    mean : (m, c) array
        Posterior means of the latent values.
    cov : (m, c, c) array
        Their posterior covariances, which may be singular.
    method : {"orthant", "inner_ep"}
        "orthant" computes the c orthant probabilities of dimension c − 1. The error is that of rounding up to three
        classes. With four it is about 1e-10, unless they are a thousand times wider than the noise. A diagonal
        covariance leaves one integral for any number of classes, with an error of about 1e-10. Five classes or more
        have an error of `tolerance`, by randomised rules over factors that the classes have in common. Where these do
        not reach it, quasi-Monte Carlo rules integrate each class. The random numbers are always the same ones.
        The method "inner_ep" is the nested EP paper's own way: inner EP computes the normalisers of the tilted
        distributions (appendix A). It is fast with many classes, with an error of its own that nothing reduces.
    tolerance : float
        Absolute error wanted of each probability by "orthant". The work is bounded, so look at the errors returned.

    Returns
    -------
    probabilities : (m, c) array
        They sum to 1 at each point; NaN where mean or covariance are.
    errors : (m,) array
        Estimated error of the least certain probability of each point. With five classes or more, "orthant" returns
        half a confidence interval of 99 per cent. Where there is one integral or a closed form, it returns how far from
        1 the probabilities summed before they were normalised. For "inner_ep" it is always the latter, which tells of
        its error but is no bound on it.

    Raises
    ------
    ValueError
        If the shapes do not agree, if there are fewer than two classes, if `tolerance` is not positive, or if
        `method` is unknown.
    """
    mean, cov = gaussian_moments(mean, cov, tolerance)
    # Beside the widest the unit noise is nothing, so that all may be narrower in proportion.
    wider = np.maximum(np.abs(cov).max(axis=(1, 2), initial=0.0) / _WIDEST, 1.0)
    mean, cov = mean / np.sqrt(wider)[:, None], cov / wider[:, None, None]
    if method == "inner_ep":
        unnormalised = np.exp(tilted_log_normaliser(mean, cov, _INNER_SWEEPS, _INNER_TOLERANCE))
        total = unnormalised.sum(axis=1, keepdims=True)
        return unnormalised / total, np.abs(total[:, 0] - 1.0)
    check_name("method", method, ("orthant", "inner_ep"))
    c = mean.shape[1]
    if c <= 3:
        return _normalised(_FEW_CLASSES[c](mean, cov))
    probabilities, errors = np.full(mean.shape, np.nan), np.full(len(mean), np.nan)
    alone = independent_classes(cov)
    probabilities[alone], errors[alone] = _independent(mean[alone], cov[alone])
    together = np.flatnonzero(~alone)
    if c == 4:
        probabilities[together], errors[together] = _normalised(_FEW_CLASSES[c](mean[together], cov[together]))
        return probabilities, errors
    probabilities[together], errors[together] = over_factors(mean[together], cov[together], _NOISE, tolerance)
    together = together[~(errors[together] <= tolerance)]
    p, error = _orthants(mean[together], cov[together], tolerance)
    better = ~(error > errors[together])
    probabilities[together[better]], errors[together[better]] = p[better], error[better]
    return probabilities, errors


def _normalised(probabilities: Array) -> tuple[Array, Array]:
    """Made to sum to 1, and how far from it they summed."""
    total = probabilities.sum(axis=1)
    return probabilities / total[:, None], np.abs(total - 1.0)


def _independent(mean: Array, cov: Array) -> tuple[Array, Array]:
    """Return probabilities and errors of classes whose latent values are independent, by one quadrature."""
    (nodes, weights), reach, width = FINE
    probabilities, errors = np.empty(mean.shape), np.empty(len(mean))
    variance = 1.0 + np.ascontiguousarray(cov.diagonal(axis1=1, axis2=2))
    probabilities_of_independent(mean, variance, nodes, weights, reach, width, probabilities, errors)
    return probabilities, errors


def _orthants(mean: Array, cov: Array, tolerance: float) -> tuple[Array, Array]:
    """Return probabilities and errors of five classes or more, each by its own orthant probability."""
    points, shifts = _quasi_random_numbers(mean.shape[1])
    probabilities, errors = np.empty(mean.shape), np.empty(len(mean))
    largest_probabilities(mean, cov, points, shifts, tolerance, probabilities, errors)
    return probabilities, errors


def _two_classes(mean: Array, cov: Array) -> Array:
    """Probabilities (m, 2), each without regard to the other."""
    difference = mean[:, 0] - mean[:, 1]
    variance = 2.0 + cov[:, 0, 0] + cov[:, 1, 1] - cov[:, 0, 1] - cov[:, 1, 0]
    return ndtr(difference[:, None] * np.array([1.0, -1.0]) / np.sqrt(variance)[:, None])


def _by_kernel(kernel: Callable[[Array, Array, Array], None]) -> Callable[[Array, Array], Array]:
    """Orthant probabilities (m, c), each without regard to the others."""

    def probabilities(mean: Array, cov: Array) -> Array:
        found = np.empty(mean.shape)
        kernel(mean, cov, found)
        return found

    return probabilities


_FEW_CLASSES = {2: _two_classes, 3: _by_kernel(largest_of_three), 4: _by_kernel(largest_of_four)}


@lru_cache(maxsize=4)
def _quasi_random_numbers(c: int) -> tuple[np.ndarray, np.ndarray]:
    """Scrambled Sobol sequences, and digital shifts of them for each class."""
    rng = np.random.default_rng(_SEED)
    each = [qmc.Sobol(c - 2, bits=BITS, rng=rng).random_base2(LAST_LEVEL) for _ in range(SEQUENCES)]
    points = np.ldexp(np.stack(each, axis=-1), BITS).astype(np.int64)
    return points, rng.integers(1 << BITS, size=(c, c - 2, SEQUENCES))
