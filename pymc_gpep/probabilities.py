"""Class probabilities under a Gaussian posterior of the latent values."""

from functools import lru_cache

import numpy as np
from scipy.stats import qmc

from pymc_gpep.kernels.inner_ep import tilted_log_normaliser
from pymc_gpep.kernels.orthant import BITS, LAST_LEVEL, SHIFTS, largest_probabilities

__all__ = ["class_probabilities"]

_SEED = 20_130_101  # the same input has the same answer
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
        "orthant" computes the c orthant probabilities of dimension c − 1: to machine precision up to three classes,
        to about 1e-10 with four, and by quasi-Monte Carlo integration to `tolerance` with more. The quasi-random
        numbers are always the same ones. "inner_ep" is the nested EP paper's own way, the normalisers of the tilted
        distributions by inner EP (appendix A): fast with many classes, with an error of its own that nothing reduces.
    tolerance : float
        Absolute error wanted of each probability by "orthant". The work is bounded, so look at the errors returned.

    Returns
    -------
    probabilities : (m, c) array
        They sum to 1 at each point; NaN where mean or covariance are.
    errors : (m,) array
        For "orthant" the estimated error of the least certain probability of each point: three standard errors with
        five classes or more, and with fewer how far from 1 the probabilities summed before they were normalised. For
        "inner_ep" always the latter, which tells of its error but is no bound on it.

    Raises
    ------
    ValueError
        If the shapes do not agree, if there are fewer than two classes, if `tolerance` is not positive, or if
        `method` is unknown.
    """
    mean = np.ascontiguousarray(mean, np.float64)
    cov = np.ascontiguousarray(cov, np.float64)
    if mean.ndim != 2 or cov.shape != (*mean.shape, mean.shape[-1]):
        raise ValueError(f"mean and cov must have shapes (m, c) and (m, c, c), but have {mean.shape} and {cov.shape}")
    if mean.shape[1] < 2:
        raise ValueError(f"there must be at least 2 classes, but mean has shape {mean.shape}, which is (m, c)")
    if not tolerance > 0:
        raise ValueError(f"tolerance must be positive, but is {tolerance}")
    if method == "inner_ep":
        unnormalised = np.exp(tilted_log_normaliser(mean, cov, _INNER_SWEEPS, _INNER_TOLERANCE))
        total = unnormalised.sum(axis=1, keepdims=True)
        return unnormalised / total, np.abs(total[:, 0] - 1.0)
    if method != "orthant":
        raise ValueError(f"method must be 'orthant' or 'inner_ep', but is {method!r}")
    points, shifts = _quasi_random_numbers(mean.shape[1])
    probabilities, errors = np.empty(mean.shape), np.empty(len(mean))
    largest_probabilities(mean, cov, points, shifts, tolerance, probabilities, errors)
    return probabilities, errors


@lru_cache(maxsize=4)
def _quasi_random_numbers(c: int) -> tuple[np.ndarray, np.ndarray]:
    """A scrambled Sobol sequence, and digital shifts of it for each class."""
    rng = np.random.default_rng(_SEED)
    sequence = qmc.Sobol(max(1, c - 2), bits=BITS, rng=rng)
    points = np.ldexp(sequence.random_base2(LAST_LEVEL), BITS).astype(np.int64)
    return points, rng.integers(1 << BITS, size=(c, SHIFTS, max(1, c - 2)))
