"""Ranges of class probabilities: what a fit knows of each, by draws of latent values at every node."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import qmc

from pymc_gpep.array_types import Array
from pymc_gpep.fits.outcome_quantiles import Part
from pymc_gpep.likelihoods.likelihood import Likelihood

__all__ = ["checked_interval", "probability_intervals"]

_ALONE = 4096  # draws at each node of a single function, a grid
_DRAWS = 1024  # of several; a power of 2, for which points of Sobol are balanced
_HELD = 500_000  # latent values that are held at once


def checked_interval(level: float, likelihood: Likelihood, n_functions: int) -> Array:
    """Return the two levels (2,) between which the share `level` of a posterior lies.

    Raises
    ------
    ValueError
        If the share is not between 0 and 1.
    TypeError
        If observations are not classes.
    """
    if isinstance(level, bool) or np.ndim(level) or not 0.0 < float(level) < 1.0:
        raise ValueError(f"intervals must be a number between 0 and 1, such as 0.9, but is {level!r}.")
    if not likelihood.n_classes(n_functions):
        raise TypeError(
            f"intervals= gives ranges of class probabilities, but observations of a {likelihood.name} likelihood are "
            f"numbers: ask for quantiles=[{0.5 - level / 2:g}, {0.5 + level / 2:g}] of them."
        )
    return np.array([0.5 - level / 2, 0.5 + level / 2])


def probability_intervals(parts: Sequence[Part], levels: Array) -> Array:
    """Quantiles (m, classes, k) of each class probability over latent values and nodes.

    A probability at a row is a function of the latent values there. These are drawn by the same standard normal numbers
    at every row, so that neighbours have similar ranges.

    Parameters
    ----------
    parts : sequence of Part
        Predictions at the nodes.
    levels : array (k,)
    """
    m, c = parts[0].mean.shape
    z = _standard_normals(c)
    weights = np.repeat([part.weight / len(z) for part in parts], len(z))
    found = [np.empty((0, parts[0].likelihood.n_classes(c), len(levels)))]
    for rows in _blocks(m, len(weights) * c):
        p = np.concatenate([_drawn(part, rows, z) for part in parts])
        found.append(np.moveaxis(_weighted_quantiles(p, weights, levels), 0, -1))
    return np.concatenate(found)


def _standard_normals(c: int) -> Array:
    """Standard normal numbers (draws, c), spread evenly."""
    if c == 1:
        return ndtri((np.arange(_ALONE) + 0.5) / _ALONE)[:, None]
    normals: Array = ndtri(qmc.Sobol(c, rng=np.random.default_rng(0)).random(_DRAWS))
    return normals


def _blocks(m: int, size: int) -> Iterator[NDArray[np.int64]]:
    """Positions of rows, as many at a time as may be held where a row takes `size` numbers."""
    step = max(1, _HELD // size)
    for first in range(0, m, step):
        yield np.arange(first, min(first + step, m))


def _drawn(part: Part, rows: NDArray[np.int64], z: Array) -> Array:
    """Probabilities (draws, rows, classes) of a node, given latent values that are drawn."""
    values, vectors = np.linalg.eigh(part.cov[rows])
    root = vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]
    f = part.mean[rows] + np.einsum("mij,dj->dmi", root, z)
    draws, m, c = f.shape
    likelihood = part.likelihood.at(np.tile(rows, draws))
    p, _ = likelihood.probabilities(f.reshape(-1, c), np.zeros((draws * m, c, c)))
    return p.reshape(draws, m, -1)


def _weighted_quantiles(p: Array, weights: Array, levels: Array) -> Array:
    """Quantiles (k, ...) of weighted numbers (draws, ...), between neighbours by straight lines.

    NumPy's have no lines where there are weights, and an error of a draw's weight.
    """
    order = np.argsort(p, axis=0)
    ascending, own = np.take_along_axis(p, order, axis=0), weights[order]
    below = np.cumsum(own, axis=0) - 0.5 * own
    after = np.clip((below < levels[:, None, None, None]).sum(axis=1), 1, len(p) - 1)
    left, right = (np.take_along_axis(below, each, axis=0) for each in (after - 1, after))
    low, high = (np.take_along_axis(ascending, each, axis=0) for each in (after - 1, after))
    share = np.clip((levels[:, None, None] - left) / (right - left), 0.0, 1.0)
    found: Array = low + share * (high - low)
    return found
