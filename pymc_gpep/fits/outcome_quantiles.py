"""Quantiles of observations at new points, of a mixture over hyperparameters, by their distribution functions."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize.elementwise import find_root

from pymc_gpep.array_types import Array
from pymc_gpep.likelihoods.likelihood import Likelihood

__all__ = ["Part", "checked_levels", "outcome_quantiles"]

type _Distribution = Callable[[Array, Any], Array]
"""Probabilities that observations at some rows do not exceed numbers."""

_LONGEST = 1100  # doublings, over the range of floating-point numbers


class Part(NamedTuple):
    """The predictions at one node of the hyperparameters, a part of a mixture."""

    weight: float
    likelihood: Likelihood
    mean: Array
    """Means of the latent values (m, c)."""
    cov: Array
    """Covariances of the latent values (m, c, c)."""


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
    step = np.ones(len(centre))
    low, high = -step, step.copy()
    for _ in range(_LONGEST):
        above, below = excess(low, every) > 0.0, excess(high, every) < 0.0
        if not (above.any() or below.any()):
            break
        step = 2.0 * step
        low, high = np.where(above, low - step, low), np.where(below, high + step, high)
    found = find_root(excess, (low, high), args=(every,), tolerances={"xrtol": 1e-10, "xatol": 1e-12}).x
    return number(found, slice(None))
