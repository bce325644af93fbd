"""Intervals of class probabilities and quantiles of observations at new points, of a mixture over hyperparameters."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize.elementwise import bracket_root, find_root
from scipy.special import ndtri
from scipy.stats import qmc

from pymc_gpep.array_types import Array
from pymc_gpep.likelihoods.likelihood import Likelihood

_ALONE = 4096  # draws at each node of a single function, a grid
_DRAWS = 1024  # of several; a power of 2, for which points of Sobol are balanced
_HELD = 500_000  # latent values that are held at once


class Part(NamedTuple):
    """The predictions at one node of the hyperparameters, a part of a mixture."""

    weight: float
    likelihood: Likelihood
    mean: Array
    """Means of the latent values (m, c)."""
    cov: Array
    """Covariances of the latent values (m, c, c)."""


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


type _Distribution = Callable[[Array, Any], Array]
"""Probabilities that observations at some rows do not exceed numbers."""

_LONGEST = 1100  # doublings, over the range of floating-point numbers


def checked_levels(quantiles: float | Sequence[float], likelihood: Likelihood) -> Array:
    """Return the levels of quantiles (k,).

    Raises
    ------
    ValueError
        If they are not between 0 and 1.
    TypeError
        If observations are classes.
    """
    levels = np.atleast_1d(np.asarray(quantiles, np.float64))
    if levels.ndim != 1 or not ((levels > 0.0) & (levels < 1.0)).all():
        raise ValueError(f"quantiles must be numbers between 0 and 1, such as [0.05, 0.95], but are {quantiles!r}.")
    if likelihood.n_classes(1):
        raise TypeError(
            f"Observations of a {likelihood.name} likelihood are classes, which have no quantiles: leave quantiles out."
        )
    return levels


def outcome_quantiles(parts: Sequence[Part], levels: Array) -> Array:
    """Smallest numbers (m, k) that an observation does not exceed with each of k probabilities."""
    first = parts[0].likelihood
    moments = sum(part.weight * part.likelihood.outcome_moments(part.mean, part.cov) for part in parts)
    assert not isinstance(moments, int)
    centre, square = moments
    with np.errstate(invalid="ignore", over="ignore"):
        spread = np.sqrt(np.maximum(square - centre**2, 0.0))
    usable = np.isfinite(centre) & (centre > first.least)
    centre = np.where(usable, centre, 1.0)
    # Where the spread is lost in the square of the centre, it is at most about so large.
    lost = np.where(usable & (centre != 0.0), 1e-8 * np.abs(centre), 1.0)
    spread = np.where(usable & np.isfinite(spread) & (spread > 0.0), spread, lost)

    def distribution(y: Array, rows: Any) -> Array:
        each = (part.weight * part.likelihood.at(rows).cumulative(y, part.mean[rows], part.cov[rows]) for part in parts)
        return np.asarray(sum(each))

    find = _smallest_count if first.observed_dtype == "int64" else _root
    return np.stack([find(distribution, level, centre, spread, first.least) for level in levels], axis=1)


def _smallest_count(distribution: _Distribution, level: float, centre: Array, spread: Array, least: float) -> Array:
    """By halving: counts up to `low` are too few, those from `high` on suffice."""
    every = slice(None)
    low, high = np.full(len(centre), -1.0), np.maximum(np.ceil(centre + spread), 1.0)
    for _ in range(_LONGEST):
        short = distribution(high, every) < level
        if not short.any():
            break
        low, high = np.where(short, high, low), np.where(short, 2.0 * high, high)
    while True:
        middle = np.floor(0.5 * low + 0.5 * high)
        if not ((middle > low) & (middle < high)).any():  # beyond 2⁵³ neighbours differ by more than one
            return high
        enough = distribution(middle, every) >= level
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)


def _root(distribution: _Distribution, level: float, centre: Array, spread: Array, least: float) -> Array:
    """By a search in the number, in units of the spread, or in its logarithm where numbers are positive."""
    positive = least == 0.0
    start, unit = (np.log(centre), np.ones(len(centre))) if positive else (centre, spread)

    def number(x: Array, rows: Any) -> Array:
        y = start[rows] + unit[rows] * x
        with np.errstate(over="ignore"):
            return np.asarray(np.exp(y) if positive else y)

    def excess(x: Array, given: Array) -> Array:
        rows = given.astype(np.int64)
        return distribution(number(x, rows).ravel(), rows.ravel()).reshape(x.shape) - level

    every = np.arange(len(centre), dtype=np.float64)  # rows, which the search leaves out where it is done
    ends = bracket_root(excess, -np.ones(len(every)), np.ones(len(every)), args=(every,), maxiter=_LONGEST).bracket
    found = find_root(excess, ends, args=(every,), tolerances={"xrtol": 1e-10, "xatol": 1e-12}).x
    return number(found, slice(None))
