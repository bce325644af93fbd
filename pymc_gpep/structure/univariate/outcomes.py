"""Moments of an observation given its latent value, by integrating a density or summing probabilities."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from pymc_gpep.array_types import Array

__all__ = ["count_moments", "number_moments"]

type _LogDensity = Callable[[NDArray[Any]], Array]
"""log p (k, n) of observations (k, n)."""

_TRIED = np.concatenate([[0.0], *(sign * np.geomspace(1e-6, 1e8, 57) for sign in (-1.0, 1.0))])
_DROP = 60.0  # of a log density from its mode to what does not count
_LONGEST = 1100  # doublings
_GOLDEN = 0.5 * (np.sqrt(5.0) - 1.0)
_FEWEST, _MOST = 32, 1024  # nodes on either side of a mode
_MOST_COUNTS = 4096  # that are summed one by one
_PARTS = 8  # of the counts at a time, to save memory
_NEAR = 512  # counts on either side of a mode, by ever larger steps
_SAME = 1e-7
_NORMALISED = 1e-4  # error of ∫ p dy


def _places(f: Array, round_off: bool) -> Array:
    """Numbers of many sizes (k, n), sorted, among them what an observation is likely to be."""
    with np.errstate(over="ignore"):
        likely = np.stack([f, np.exp(np.minimum(f, 40.0)), expit(f), -f])
    places = np.concatenate([np.repeat(_TRIED[:, None], f.size, 1), likely])
    return np.asarray(np.sort(np.round(places) if round_off else places, axis=0))


def _mode(log_density: _LogDensity, places: Array, values: Array, round_off: bool) -> tuple[Array, Array]:
    """The mode of an observation about the best of some places, and log p there, by golden sections."""
    at, columns, last = values.argmax(axis=0), np.arange(values.shape[1]), len(places) - 1
    low, high = (places[np.clip(at + step, 0, last), columns] for step in (-1, 1))
    best, top = places[at, columns], values[at, columns]
    for _ in range(60):
        width = high - low
        inner = np.stack([high - _GOLDEN * width, low + _GOLDEN * width])
        left, right = np.nan_to_num(log_density(np.round(inner) if round_off else inner), nan=-np.inf, posinf=-np.inf)
        for place, value in ((inner[0], left), (inner[1], right)):
            better = value > top
            best, top = np.where(better, np.round(place) if round_off else place, best), np.where(better, value, top)
        # The half that has the best place seen.
        keep_left = best < inner[1] if round_off else np.where(left == right, best < inner[1], left > right)
        low, high = np.where(keep_left, low, inner[0]), np.where(keep_left, inner[1], high)
        if (high - low <= 1e-9 * (np.abs(high) + np.abs(low))).all():
            break
    return best, top


def _ends(log_density: _LogDensity, mode: Array, top: Array, step: Array) -> tuple[Array, Array]:
    """Where nothing counts to either side of a mode, or the support ends."""
    ends = []
    for sign in (-1.0, 1.0):
        inside, reach = np.zeros_like(mode), step.copy()
        for _ in range(_LONGEST):
            value = log_density((mode + sign * reach)[None])[0]
            short = np.isfinite(value) & (value > top - _DROP) & (reach < 1e250)
            if not short.any():
                break
            inside = np.where(short, reach, inside)
            reach = np.where(short, 2.0 * reach, reach)
        for _ in range(80):  # by halving, to the end of the support itself
            middle = 0.5 * (inside + reach)
            counts = np.isfinite(log_density((mode + sign * middle)[None])[0])
            inside, reach = np.where(counts, np.maximum(middle, inside), inside), np.where(counts, reach, middle)
        ends.append(mode + sign * reach)
    return ends[0], ends[1]


def _width(log_density: _LogDensity, mode: Array, top: Array) -> Array:
    """About how far from the mode log p is 1 less."""
    found = np.maximum(1.0, np.abs(mode)) * 0.1
    for _ in range(_LONGEST):
        value = np.nan_to_num(log_density(mode + np.stack([-found, found])), nan=-np.inf, posinf=-np.inf)
        fallen = top - value.max(axis=0)
        factor = np.where(fallen > 3.0, 0.5, np.where((fallen < 0.1) & (found < 1e200), 2.0, 1.0))
        if (factor == 1.0).all() or (found < 1e-250).any():
            break
        found = found * factor
    return found


def number_moments(log_density: _LogDensity, f: Array) -> Array:
    """Mean of a real observation, and of its square, (2, n), given latent values (n,); NaN where they cannot be had.

    The value of p at 0 is a probability, as in hurdle models, where the integral lacks just this.
    """
    with np.errstate(all="ignore"):
        places = _places(f, round_off=False)
        values = np.nan_to_num(log_density(places), nan=-np.inf, posinf=-np.inf)
        at_zero = np.exp(np.where(places == 0.0, values, -np.inf).max(axis=0))
        values = np.where(places == 0.0, -np.inf, values)
        mode, top = _mode(log_density, places, values, round_off=False)
        low, high = _ends(log_density, mode, top, _width(log_density, mode, top))
        out = np.full((2, f.size), np.nan)
        before: Array | None = None
        count = _FEWEST
        while count <= _MOST:
            t = np.linspace(-4.5, 4.5, count)[:, None]
            u = 0.5 * np.pi * np.sinh(t)
            part = expit(2.0 * u)  # of the way from one end, of which few digits are lost at either
            slope = np.pi * np.cosh(t) * part * expit(-2.0 * u) * (t[1] - t[0])
            total: Any = 0.0
            for end in (low, high):
                length = end - mode
                y = np.where(part < 0.5, mode + length * part, end - length * expit(-2.0 * u))
                value = log_density(y)
                p = np.where(np.isfinite(value), np.exp(value), 0.0) * slope * np.abs(length)
                total = total + np.stack([p.sum(0), (p * y).sum(0), (p * y * y).sum(0)])
            if before is not None:
                size = np.stack([total[0], np.sqrt(total[0] * total[2]), total[2]])  # a mean may be 0
                done = (np.abs(total - before) <= _SAME * (size + 1e-12)).all(axis=0)
                wholes = np.stack([total[0], total[0] + at_zero])
                right = np.abs(wholes - 1.0) < _NORMALISED
                done &= right.any(axis=0)
                whole = np.where(right[0], *wholes)
                out = np.where(done & np.isnan(out), total[1:] / whole, out)
                if done.all():
                    break
            before = total
            count *= 2
    return out


def count_moments(log_density: _LogDensity, f: Array) -> Array:
    """The same of counts or other whole numbers, which may have two modes, as where there are more zeros."""
    with np.errstate(all="ignore"):
        places = _places(f, round_off=True)
        values = np.nan_to_num(log_density(places), nan=-np.inf, posinf=-np.inf)
        mode, top = _mode(log_density, places, values, round_off=True)
        ends = _whole_ends(log_density, mode, top)
        beyond = np.where((places < ends[0]) | (places > ends[1]), _peaks(values), -np.inf)
        other, its_top = _mode(log_density, places, beyond, round_off=True)
        windows = [(mode, *ends)]
        if (counts := its_top > top - _DROP).any():
            other = np.where(counts, other, mode)
            windows.append((other, *_whole_ends(log_density, other, top)))
        low = np.stack([each[1] for each in windows]).min(axis=0)
        high = np.stack([each[2] for each in windows]).max(axis=0)
        longest = int(np.max(high - low, initial=0.0))
        if longest < _MOST_COUNTS:
            y = low + np.arange(longest + 1)[:, None]
        else:
            y = np.concatenate([_grid(*each) for each in windows])
        y = np.sort(np.minimum(y, high), axis=0)
        # Sums by the rule of trapezoids: a number of which both neighbours are there counts once.
        gaps = np.pad(np.diff(y, axis=0), ((1, 1), (0, 0)), constant_values=1.0)
        value = np.concatenate([log_density(part) for part in np.array_split(y, min(_PARTS, len(y)))])
        p = np.where(np.isfinite(value), np.exp(value), 0.0) * 0.5 * (gaps[1:] + gaps[:-1])
        total = p.sum(axis=0)
        mean = (p * y).sum(axis=0) / total
        square = (p * (y - mean) ** 2).sum(axis=0) / total + mean**2
    return np.where(np.abs(total - 1.0) < _NORMALISED, np.stack([mean, square]), np.nan)


def _peaks(values: Array) -> Array:
    """Values (k, n) at sorted places, -inf but for local maxima."""
    walled = np.pad(values, ((1, 1), (0, 0)), constant_values=-np.inf)
    return np.where((values > walled[:-2]) & (values >= walled[2:]), values, -np.inf)


def _grid(mode: Array, low: Array, high: Array) -> Array:
    """Whole numbers between ends at equal steps, and more of them near a mode and near the lower end."""
    step = np.maximum(1.0, np.ceil((high - low + 1.0) / _MOST_COUNTS))
    near = np.round(np.geomspace(1.0, np.maximum(high - low, 1.0), _NEAR))
    whole = low + step * np.arange(_MOST_COUNTS)[:, None]
    return np.clip(np.concatenate([whole, mode - near, mode[None], mode + near, low + near]), low, high)


def _whole_ends(log_density: _LogDensity, mode: Array, top: Array) -> tuple[Array, Array]:
    ends = []
    for sign in (-1.0, 1.0):
        reach = np.ones_like(mode)
        for _ in range(64):
            value = log_density((mode + sign * reach)[None])[0]
            short = np.isfinite(value) & (value > top - _DROP) & (reach < 1e9)
            if not short.any():
                break
            reach = np.where(short, 2.0 * reach, reach)
        ends.append(mode + sign * reach)
    return ends[0], ends[1]
