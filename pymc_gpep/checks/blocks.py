"""Importance sampling on blocks of points: what it says about a fit at each, where all together say nothing.

Weights of draws of all latent values multiply what every point adds to their spread. Here the likelihoods of a point,
and of those that its latent values move with most, replace their sites; all other sites are left. The change that such
weights make at that point is the part of the fit's error that comes from near by. A point's own likelihood alone would
not do: expectation propagation makes the moments agree that it would change.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from pymc_gpep.array_types import Array
from pymc_gpep.hyper.weights import smooth_each, stand_for_posterior

__all__ = ["BlockCheck", "block_check", "nothing_known"]

_SIZES = (16, 8, 4)
"""Points in a block: the first whose weights stand for what they should is taken."""
_ENTRIES = 1_000_000  # numbers that are held at a time


class BlockCheck(NamedTuple):
    """Change by the weights of blocks, at each of n points, of the probability that the fit gives to its label."""

    shift: Array
    """The probability, or density, of the label by weighted draws less that by the fit, (n,)."""
    standard_error: Array
    """Standard error of the shift, (n,): how much can be chance."""
    pareto_k: Array
    """Pareto k of the block's weights, (n,)."""
    size: NDArray[np.int64]
    """Points in the block, (n,); 0 where no block's weights are usable, and nothing is known."""


def block_check(log_likelihood: Array, log_sites: Array, x: Array) -> BlockCheck:
    """Weight draws of a fit block by block.

    Parameters
    ----------
    log_likelihood, log_sites : array (draws, n)
        Log of each point's likelihood and of its site, up to a constant.
    x : array (draws, c, n)
        The latent values, less what the likelihood does not see.
    """
    draws, n = log_likelihood.shape
    log_ratio = log_likelihood - log_sites
    top = log_likelihood.max(axis=0)
    relative = np.exp(log_likelihood - top)
    fitted = relative.mean(axis=0)
    near = _near(x, min(n, _SIZES[0]))
    shift, error, pareto_k, size = nothing_known(n)
    step = max(1, _ENTRIES // (draws * _SIZES[0]))
    for points in _SIZES:
        left = np.flatnonzero(size == 0)
        for rows in (left[start : start + step] for start in range(0, left.size, step)):
            block = near[rows, :points]
            smoothed, pareto_k[rows] = smooth_each(log_ratio[:, block].sum(axis=2))
            weights = softmax(smoothed, axis=0)
            excess = weights - 1.0 / draws
            worth = 1.0 / (weights**2).sum(axis=0)
            usable = [stand_for_posterior(*each, draws) for each in zip(pareto_k[rows], worth, strict=True)]
            known, excess = rows[usable], excess[:, usable]
            shift[known] = (excess * relative[:, known]).sum(axis=0)
            error[known] = np.sqrt(((excess * (relative[:, known] - fitted[known])) ** 2).sum(axis=0))
            size[known] = block.shape[1]
    scale = np.exp(top)
    return BlockCheck(shift * scale, error * scale, pareto_k, size)


def nothing_known(n: int) -> BlockCheck:
    """A check of n points that says nothing of any."""
    return BlockCheck(np.full(n, np.nan), np.full(n, np.nan), np.full(n, np.nan), np.zeros(n, np.int64))


def _near(x: Array, count: int) -> NDArray[np.intp]:
    """Numbers (n, count) of the points whose latent values move most with those of each, itself first."""
    draws, c, n = x.shape
    standard = x - x.mean(axis=0)
    spread = standard.std(axis=0)
    standard /= np.where(spread > 0.0, spread, 1.0)
    near = np.empty((n, count), dtype=np.intp)
    for start in range(0, n, step := max(1, _ENTRIES // n)):
        own = np.arange(start, min(start + step, n))
        strength = sum((standard[:, k, own].T @ standard[:, k] / draws) ** 2 for k in range(c))
        strength[np.arange(own.size), own] = np.inf
        some = np.sort(np.argpartition(-strength, count - 1, axis=1)[:, :count], axis=1)
        order = np.argsort(-np.take_along_axis(strength, some, axis=1), axis=1, kind="stable")
        near[own] = np.take_along_axis(some, order, axis=1)
    return near
