"""Class probabilities under a Gaussian posterior of the latent values."""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from scipy.special import log_ndtr, ndtr, owens_t
from scipy.stats import qmc

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.moments.inner_ep import tilted_log_normaliser
from pymc_gpep.kernels.special.independent_classes import FINE, probabilities_of_independent
from pymc_gpep.kernels.special.orthant import BITS, LAST_LEVEL, SEQUENCES, largest_of_four, largest_probabilities
from pymc_gpep.likelihoods.gaussian_moments import gaussian_moments, independent_classes
from pymc_gpep.likelihoods.over_factors import UtilityNoise, over_factors

__all__ = ["class_probabilities"]

_SEED = 20_130_107  # the same input has the same answer
_NOISE = UtilityNoise(common=1.0, weights=np.ones(1), means=np.zeros(1), variances=np.zeros(1), error=4e-6)
_INNER_SWEEPS = 100
_INNER_TOLERANCE = 1e-10
_SMALL = 1e-8  # smaller probabilities have lost digits in the closed form for three classes
_TAIL_NODES, _HALVINGS, _FALL = 64, 60, 40.0
_TAILS = 10_000  # at once
_LEAST_LOG = -740.0  # less is no number
_LOG_ROOT_2PI = 0.5 * np.log(2.0 * np.pi)


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
        to about 1e-10 with four and where the covariance is diagonal, so that one integral is left for any number of
        classes. Else, with five or more, to `tolerance`: by randomised rules over factors that the classes have in
        common, or where these do not reach it by quasi-Monte Carlo integration of each class. The random numbers are
        always the same ones. "inner_ep" is the nested EP paper's own way, the normalisers of the tilted
        distributions by inner EP (appendix A): fast with many classes, with an error of its own that nothing reduces.
    tolerance : float
        Absolute error wanted of each probability by "orthant". The work is bounded, so look at the errors returned.

    Returns
    -------
    probabilities : (m, c) array
        They sum to 1 at each point; NaN where mean or covariance are.
    errors : (m,) array
        For "orthant" the estimated error of the least certain probability of each point: half a confidence interval of
        99 per cent with five classes or more, and where there is one integral or a closed form how far from 1 the
        probabilities summed before they were normalised. For
        "inner_ep" always the latter, which tells of its error but is no bound on it.

    Raises
    ------
    ValueError
        If the shapes do not agree, if there are fewer than two classes, if `tolerance` is not positive, or if
        `method` is unknown.
    """
    mean, cov = gaussian_moments(mean, cov, tolerance)
    if method == "inner_ep":
        unnormalised = np.exp(tilted_log_normaliser(mean, cov, _INNER_SWEEPS, _INNER_TOLERANCE))
        total = unnormalised.sum(axis=1, keepdims=True)
        return unnormalised / total, np.abs(total[:, 0] - 1.0)
    if method != "orthant":
        raise ValueError(f"method must be 'orthant' or 'inner_ep', but is {method!r}")
    c = mean.shape[1]
    if c <= 3:
        return _normalised(_few_classes(mean, cov))
    probabilities, errors = np.full(mean.shape, np.nan), np.full(len(mean), np.nan)
    alone = independent_classes(cov)
    probabilities[alone], errors[alone] = _independent(mean[alone], cov[alone])
    together = np.flatnonzero(~alone)
    if c == 4:
        probabilities[together], errors[together] = _normalised(_four_classes(mean[together], cov[together]))
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
    """Of classes whose latent values are independent, by one quadrature."""
    (nodes, weights), reach, width = FINE
    probabilities, errors = np.empty(mean.shape), np.empty(len(mean))
    variance = 1.0 + np.ascontiguousarray(cov.diagonal(axis1=1, axis2=2))
    probabilities_of_independent(mean, variance, nodes, weights, reach, width, probabilities, errors)
    return probabilities, errors


def _orthants(mean: Array, cov: Array, tolerance: float) -> tuple[Array, Array]:
    """Of five classes or more, each by its own orthant probability."""
    points, shifts = _quasi_random_numbers(mean.shape[1])
    probabilities, errors = np.empty(mean.shape), np.empty(len(mean))
    largest_probabilities(mean, cov, points, shifts, tolerance, probabilities, errors)
    return probabilities, errors


def _four_classes(mean: Array, cov: Array) -> Array:
    """Orthant probabilities (m, 4), each without regard to the others."""
    probabilities = np.empty(mean.shape)
    largest_of_four(mean, cov, probabilities)
    return probabilities


def _few_classes(mean: np.ndarray, cov: np.ndarray) -> np.ndarray:
    """Orthant probabilities (m, c) of two or three classes, each without regard to the others."""
    m, c = mean.shape
    probabilities = np.empty((m, c))
    for k in range(c):
        # x_j = v_j − v_k over the other classes j.
        others = [j for j in range(c) if j != k]
        bounds = mean[:, [k]] - mean[:, others]
        shared = cov[:, others, k][:, :, None] + cov[:, k, others][:, None, :]
        s = cov[:, others][:, :, others] - shared + cov[:, k, k, None, None]
        s = s + 1.0 + np.eye(c - 1)
        if c == 2:
            probabilities[:, k] = ndtr(bounds[:, 0] / np.sqrt(s[:, 0, 0]))
        else:
            probabilities[:, k] = _bivariate(bounds[:, 0], bounds[:, 1], s[:, 0, 0], s[:, 0, 1], s[:, 1, 1])
    return probabilities


def _bivariate(b1: np.ndarray, b2: np.ndarray, s11: np.ndarray, s12: np.ndarray, s22: np.ndarray) -> np.ndarray:
    """P(x₁ < b₁, x₂ < b₂) of x ~ N(0, S) by Owen (1956), as `pymc_gpep.kernels.special.trivariate` has it for one."""
    # The formula has a limit at a bound of 0; next to it the same formula gives it.
    b1, b2 = (np.where(b == 0.0, 1e-300, b) for b in (b1, b2))
    root = np.sqrt(s11 * (s22 - s12 * s12 / s11))
    h, k = b1 / np.sqrt(s11), b2 / np.sqrt(s22)
    value = 0.5 * (ndtr(h) + ndtr(k)) - 0.5 * ((b1 < 0.0) != (b2 < 0.0))
    value -= owens_t(h, (b2 * s11 - s12 * b1) / (b1 * root))
    value -= owens_t(k, (b1 * s22 - s12 * b2) / (b2 * root))
    small = np.flatnonzero(value < _SMALL)
    for at in range(0, small.size, _TAILS):
        i = small[at : at + _TAILS]
        scale = np.sqrt(s11[i] * s22[i])
        with np.errstate(all="ignore"):  # of probabilities that are no number
            value[i] = _tail(h[i], k[i], s12[i] / scale, root[i] / scale)
    return value


def _tail(h: np.ndarray, k: np.ndarray, rho: np.ndarray, r: np.ndarray) -> np.ndarray:
    """P(x₁ < h, x₂ < k) of standard normal numbers with correlation ρ, r = √(1 − ρ²), by terms that are all positive.

    The integral over s > 0 of φ(h − s) Φ((k − ρ h + ρ s) / r), whose logarithm is concave with a curvature of 1 or
    more: Gauss-Legendre nodes on both sides of the mode, as far as there is anything.
    """
    at_zero, rate = (k - rho * h) / r, rho / r

    def log_integrand(s: np.ndarray) -> np.ndarray:
        return log_ndtr(at_zero + rate * s) - 0.5 * (h - s) ** 2

    def rises(s: np.ndarray) -> np.ndarray:
        z = at_zero + rate * s
        return h - s + rate * np.exp(-0.5 * z * z - log_ndtr(z) - _LOG_ROOT_2PI) > 0.0

    zero = np.zeros_like(h)
    # A normal hazard φ / Φ at z is at most 1 + max(−z, 0).
    furthest = np.maximum(h, 0.0) + np.maximum(rate, 0.0) * (1.0 + np.maximum(-at_zero, 0.0))
    mode = _last(rises, zero, furthest)
    top = log_integrand(mode)
    reach = np.sqrt(2.0 * _FALL)
    right = _last(lambda s: log_integrand(s) > top - _FALL, mode, mode + reach)
    left = mode - _last(lambda s: log_integrand(mode - s) > top - _FALL, zero, np.minimum(mode, reach))
    nodes, weights = np.polynomial.legendre.leggauss(_TAIL_NODES)
    total = zero
    for low, high in ((left, mode), (mode, right)):
        half = 0.5 * (high - low)
        points = low[:, None] + half[:, None] * (1.0 + nodes)
        parts = log_ndtr(at_zero[:, None] + rate[:, None] * points) - 0.5 * (h[:, None] - points) ** 2
        total = total + half * (np.exp(parts - top[:, None]) @ weights)
    return np.where(top > _LEAST_LOG, np.exp(top - _LOG_ROOT_2PI) * total, 0.0)


def _last(holds: Callable[[np.ndarray], np.ndarray], low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The end of what holds from `low` on, or `high`, by halving."""
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        inside = holds(middle)
        low, high = np.where(inside, middle, low), np.where(inside, high, middle)
    return high


@lru_cache(maxsize=4)
def _quasi_random_numbers(c: int) -> tuple[np.ndarray, np.ndarray]:
    """Scrambled Sobol sequences, and digital shifts of them for each class."""
    rng = np.random.default_rng(_SEED)
    each = [qmc.Sobol(c - 2, bits=BITS, rng=rng).random_base2(LAST_LEVEL) for _ in range(SEQUENCES)]
    points = np.ldexp(np.stack(each, axis=-1), BITS).astype(np.int64)
    return points, rng.integers(1 << BITS, size=(c, c - 2, SEQUENCES))
