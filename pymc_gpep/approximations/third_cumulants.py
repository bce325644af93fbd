"""Third cumulants of tilted distributions, by which marginals of a fit are skewed.

A tilted distribution is the cavity of a row, its Gaussian posterior without its own site, times the likelihood. With
one latent function its third cumulant is D³ h‴, h(μ) = log ∫ p(y | f) N(f | μ, D) df. With several it is an array
(c, c, c). Points with the density N(0, s² I), each with its mirror image, are weighted by likelihood over site. So the
third cumulants of a Gaussian are exactly 0.
"""

from functools import lru_cache

import numpy as np
from scipy.special import ndtri, softmax
from scipy.stats import qmc

from pymc_gpep.approximations.solution import Solution
from pymc_gpep.array_types import Array
from pymc_gpep.likelihoods.local_computations import GaussianAverage

_LOG2_POINTS = 9  # of points without their mirror images
_WIDER = 1.5  # s²: variances of cavities are up to three times those of posteriors
_AT_A_TIME = 1_000_000  # latent values
_ROUNDING = 1e-12  # of a covariance that is singular
_SEED = 20_090_401


def third_cumulants(solution: Solution) -> Array | None:
    """Return A (n, c, c, c), by which an affine t has the third cumulant Σ_i A_i(k_i, k_i, k_i), k_i = Cov(f_i, t).

    A_i is the third cumulant of the tilted distribution of f_i, times the inverse of f_i's posterior covariance along
    each axis. The cavities are those of the Gaussian posterior, whichever approximation it is of.

    Returns
    -------
    array (n, c, c, c) or None
        None where the likelihood of one function has no averages.
    """
    if len(solution.mean) > 1:
        return _of_several(solution)
    likelihood = solution.likelihood
    if not likelihood.offers(GaussianAverage):
        return None
    mean, wide = solution.posterior.cavities(solution.mean, solution.cov)
    mean, wide = np.ascontiguousarray(mean[:, 0]), np.ascontiguousarray(wide[:, 0, 0])
    h = np.empty((5, mean.size))
    likelihood.computation(GaussianAverage).terms(mean, wide, solution.labels, likelihood.parameters, h)
    cumulants, variance = wide**3 * h[3], solution.cov[:, 0, 0]
    usable = (variance > 0.0) & np.isfinite(cumulants)
    found = np.divide(cumulants, variance**3, out=np.zeros_like(variance), where=usable)
    return np.asarray(found[:, None, None, None])


def _of_several(solution: Solution) -> Array:
    """Return A for several functions, by weighted points f = mean + R z, R Rᵀ the posterior covariance of a row."""
    c, n = solution.mean.shape
    values, vectors = np.linalg.eigh(solution.cov)
    kept = values > _ROUNDING * values[:, -1:]
    scale = np.sqrt(np.where(kept, values, 1.0))
    roots = vectors * np.where(kept, scale, 0.0)[:, None, :]
    inverse = (vectors * np.where(kept, 1.0 / scale, 0.0)[:, None, :]).swapaxes(1, 2)
    z = _points(c)
    log_weights = np.empty((len(z), n))
    step = max(1, _AT_A_TIME // (c * n))
    for start in range(0, len(z), step):
        some = slice(start, start + step)
        log_weights[some] = _log_ratios(solution, np.einsum("iab,sb->sai", roots, z[some]))
    log_weights -= (0.5 * (1.0 - 1.0 / _WIDER) * (z**2).sum(axis=1))[:, None]
    log_weights[np.isnan(log_weights)] = -np.inf
    weights = softmax(log_weights, axis=0).T
    first = weights @ z
    squares = np.einsum("sa,sb->sab", z, z)
    second = np.tensordot(weights, squares, 1)
    third = (weights @ np.einsum("sab,sd->sabd", squares, z).reshape(len(z), -1)).reshape(n, c, c, c)
    mixed = np.einsum("iab,id->iabd", second, first)
    third -= mixed + mixed.transpose(0, 1, 3, 2) + mixed.transpose(0, 3, 1, 2)
    third += 2.0 * np.einsum("ia,ib,id->iabd", first, first, first)
    third = np.where(np.isfinite(third).all(axis=(1, 2, 3), keepdims=True), third, 0.0)
    return np.einsum("ijkl,ija,ikb,ild->iabd", third, inverse, inverse, inverse, optimize=True)


def _log_ratios(solution: Solution, x: Array) -> Array:
    """Return log p(y_i | f_i) less the log of the site, 1 at the mean, of x = f − mean (s, c, n): (s, n)."""
    posterior, f = solution.posterior, solution.mean + x
    log_sites = ((posterior.weights - 0.5 * posterior.sites.product(x)) * x).sum(axis=1)
    return solution.likelihood.log_densities(f, solution.labels) - log_sites


@lru_cache(maxsize=8)
def _points(c: int) -> Array:
    """Return points (s, c) with normal numbers of variance s², each followed by its mirror image."""
    u = qmc.Sobol(c, rng=_SEED).random_base2(_LOG2_POINTS)
    z = np.sqrt(_WIDER) * ndtri(np.clip(u, 1e-12, 1.0 - 1e-12))
    return np.concatenate([z, -z])
