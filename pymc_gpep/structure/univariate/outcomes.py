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
_SAME = 1e-7
_NORMALISED = 1e-4  # error of ∫ p dy


def _beginning(log_density: _LogDensity, f: Array, round_off: bool) -> tuple[Array, Array, Array, Array]:
    """Bounds about a mode, the place itself and log p there (n,), among numbers of many sizes."""
    with np.errstate(over="ignore"):
        likely = np.stack([f, np.exp(np.minimum(f, 40.0)), expit(f), -f])
    places = np.concatenate([np.repeat(_TRIED[:, None], f.size, 1), likely])
    places = np.sort(np.round(places) if round_off else places, axis=0)
    values = log_density(places)
    values = np.where(np.isfinite(values), values, -np.inf)
    best, at = values.argmax(axis=0), np.arange(f.size)
    last = len(places) - 1
    return (
        places[np.maximum(best - 1, 0), at],
        places[np.minimum(best + 1, last), at],
        places[best, at],
        values[best, at],
    )


def _mode(log_density: _LogDensity, f: Array, round_off: bool) -> tuple[Array, Array]:
    """The mode of an observation and log p there, by golden sections."""
    low, high, best, top = _beginning(log_density, f, round_off)
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
    """Mean of a real observation, and of its square, (2, n), given latent values (n,); NaN where they cannot be had."""
    with np.errstate(all="ignore"):
        mode, top = _mode(log_density, f, round_off=False)
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
                done = (np.abs(total - before) <= _SAME * (np.abs(total) + 1e-12)).all(axis=0)
                done &= np.abs(total[0] - 1.0) < _NORMALISED
                out = np.where(done & np.isnan(out), total[1:] / total[0], out)
                if done.all():
                    break
            before = total
            count *= 2
    return out


def count_moments(log_density: _LogDensity, f: Array) -> Array:
    """The same of counts or other whole numbers."""
    with np.errstate(all="ignore"):
        mode, top = _mode(log_density, f, round_off=True)
        low, high = _whole_ends(log_density, mode, top)
        steps = np.maximum(1.0, np.ceil((high - low + 1.0) / _MOST_COUNTS))
        longest = int(((high - low) // steps).max(initial=0.0)) + 1
        y = low + steps * np.arange(longest)[:, None]
        value = log_density(y)
        p = np.where(np.isfinite(value) & (y <= high), np.exp(value), 0.0) * steps
        total = p.sum(axis=0)
        moments = np.stack([(p * y).sum(axis=0), (p * y * y).sum(axis=0)]) / total
    return np.where(np.abs(total - 1.0) < _NORMALISED, moments, np.nan)


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
