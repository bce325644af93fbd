"""Draws of the class probabilities at rows, by way of draws of the latent functions."""

import numpy as np
from scipy.special import ndtr

from pymc_gpep.array_types import Array

__all__ = ["probability_draws"]

_NODES = 32  # of a Gauss-Hermite rule over the noise of the utility of a class
_BLOCK = 2_000_000  # numbers that are held at once


def probability_draws(mean: Array, cov: Array, draws: int, seed: int = 0) -> Array:
    """Draw probabilities of a multinomial probit at rows, each by itself.

    Parameters
    ----------
    mean : array (m, c)
    cov : array (m, c, c)
        Moments of the latent functions.
    draws : int
    seed : int

    Returns
    -------
    array (draws, m, c)
    """
    m, c = mean.shape
    values, vectors = np.linalg.eigh(cov)
    root = vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]
    z = np.random.default_rng(seed).standard_normal((draws, c))
    p = np.empty((draws, m, c))
    rows = max(1, _BLOCK // (draws * c * _NODES))
    for first in range(0, m, rows):
        some = slice(first, first + rows)
        f = mean[some] + np.einsum("mij,dj->dmi", root[some], z)
        p[:, some] = _given(f)
    return p


def _given(f: Array) -> Array:
    """Probabilities (..., c) of the classes given latent values: p(j) = E[∏ₖ Φ(u + fⱼ − fₖ)] over u ~ N(0, 1)."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
    weights = weights / weights.sum()
    p = np.empty_like(f)
    for j in range(f.shape[-1]):
        others = f[..., [j]] - np.delete(f, j, axis=-1)
        p[..., j] = np.prod(ndtr(nodes + others[..., None]), axis=-2) @ weights
    found: Array = p / p.sum(axis=-1, keepdims=True)
    return found
