"""Quasi-Newton steps to a maximum: an estimate of the inverse curvature, and a line search.

The first estimate H of the inverse curvature uses given curvatures. BFGS updates H by pairs of a step and the decrease
of the gradient over the step. A step is H g for the gradient g. It is independent of units if the first H is.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array

_PAIRS = 10  # At least this number of pairs is stored; with more parameters, one pair for each.
_MOST_PAIRS = 50
_SIGNIFICANT = 1e-10  # A pair with a smaller cosine between step and change of the gradient is not stored.
_COLLINEAR = 1e-10  # Smaller eigenvalues of a given curvature, scaled to a unit diagonal, are raised to this value.
_UNKNOWN = 1e-4  # The same limit for a curvature that is estimated from a search.


class Curvature(NamedTuple):
    """Curvature of a log posterior in some of its parameters."""

    which: NDArray[np.bool_]
    """Mask (d,) of the k parameters with a given curvature."""
    matrix: Array
    """Approximation of minus the second derivatives in these parameters, (k, k)."""


def root_of_inverse(matrix: Array, least: float = _COLLINEAR) -> Array:
    """Return a root R (k, k) of the inverse curvature R Rᵀ. Relative eigenvalues below `least` are raised to `least`.

    Relative eigenvalues belong to the curvature scaled to a unit diagonal, so they do not depend on units.
    """
    scale = np.sqrt(np.where(matrix.diagonal() > 0.0, matrix.diagonal(), 1.0))
    values, vectors = np.linalg.eigh(matrix / np.outer(scale, scale))
    found: Array = vectors / np.sqrt(np.maximum(values, least)) / scale[:, None]
    return found


class Metric:
    """Estimate H of the inverse curvature of a function, updated by BFGS.

    Parameters
    ----------
    size : int
        Number of parameters, d.
    units : array (d, d), optional
        Root of the first estimate, up to a factor. The first step determines the factor.

    Attributes
    ----------
    units : array (d, d) or None
    """

    def __init__(self, size: int, units: Array | None = None) -> None:
        self._size, self.units = size, units
        self._known = np.zeros(size, dtype=bool)
        self._root = np.empty((0, 0))
        self._factor: float | None = None
        self._pairs: list[tuple[Array, Array, float]] = []

    @property
    def pairs(self) -> int:
        """Number of stored pairs of steps and changes of the gradient."""
        return len(self._pairs)

    @property
    def known(self) -> NDArray[np.bool_]:
        """Mask (d,) of the parameters with a curvature from `begin`."""
        return self._known

    def begin(self, curvature: Curvature) -> None:
        """Set the curvature of some parameters, for the first estimate."""
        self._known, self._root = curvature.which, root_of_inverse(curvature.matrix)

    def forget(self) -> None:
        """Drop all stored pairs."""
        self._pairs.clear()
        self._factor = None

    def times(self, gradient: Array) -> Array:
        """Return the quasi-Newton step H g (d,) for the gradient g (d,)."""
        left, weights = gradient.copy(), []
        for step, fall, share in reversed(self._pairs):
            weights.append(share * float(step @ left))
            left -= weights[-1] * fall
        found = self._first(left)
        for (step, fall, share), weight in zip(self._pairs, reversed(weights), strict=True):
            found += step * (weight - share * float(fall @ found))
        return found

    def _first(self, gradient: Array) -> Array:
        """Return the first estimate of H times a gradient (d,)."""
        found = gradient.copy() if self.units is None else self.units @ (gradient @ self.units)
        others = ~self._known
        if self._factor is not None:
            found *= self._factor
        elif self.units is None and (length := float(np.linalg.norm(gradient[others]))) > 1.0:
            found /= length
        found[self._known] = self._root @ (gradient[self._known] @ self._root)
        return found

    def learn(self, step: Array, fall: Array) -> None:
        """Store the pair of a step (d,) and the decrease of the gradient over the step (d,)."""
        product = float(step @ fall)
        if not product > _SIGNIFICANT * float(np.linalg.norm(step) * np.linalg.norm(fall)):
            return
        others = ~self._known
        mine, its = step[others], fall[others]
        if self.units is not None:
            if self._factor is None:
                self._factor = product / float(np.square(fall @ self.units).sum())
        elif (along := float(mine @ its)) > 0.0:
            self._factor = along / float(its @ its)
        self._pairs.append((step, fall, 1.0 / product))
        del self._pairs[: -min(max(self._size, _PAIRS), _MOST_PAIRS)]

    def matrix(self) -> Array:
        """Return the estimate H as a matrix (d, d)."""
        return np.array([self.times(unit) for unit in np.eye(self._size)]).reshape(self._size, self._size)


def units_of(steps: list[tuple[Array, Array]]) -> Array | None:
    """Return a root (d, d) of the inverse curvature, estimated from pairs of step and decrease; None without pairs."""
    if not steps:
        return None
    curvature = min(step @ fall / (step @ step) for step, fall in steps) * np.eye(steps[0][0].size)
    for step, fall in steps:
        image = curvature @ step
        curvature += np.outer(fall, fall) / (step @ fall) - np.outer(image, image) / (step @ image)
    return root_of_inverse(curvature, _UNKNOWN)


_RISE, _FLATTER = 1e-3, 0.9  # Wolfe conditions: smallest rise and largest final slope, relative to the first slope.
_TRIALS, _FEW_TRIALS = 20, 4
_LEAST, _MOST = 2.0, 100.0  # A step that is too short is multiplied by a factor in this range.
_INSIDE = 0.1  # A trial is at least this share of its bracket away from both ends.
_BEFORE_WALL = 0.3  # If the end of a bracket has no finite value, the next trial is at this share of the bracket.

type Look = Callable[[float], tuple[float, float]]
"""Function of a fraction of a step. It returns the rise of the log posterior and its slope; NaN after a failure."""


def line_search(look: Look, slope: float, few: bool = False) -> float:
    """Return a fraction of a step that satisfies the Wolfe conditions; 0 if the search fails.

    Parameters
    ----------
    look : Look
    slope : float
        Slope along the step at its start. The slope is positive.
    few : bool
        Whether to try only a few step lengths, for a small expected gain.
    """
    left, right = (0.0, 0.0, slope), (np.inf, np.nan, np.nan)
    at = 1.0
    for _ in range(_FEW_TRIALS if few else _TRIALS):
        rise, there = look(at)
        good = np.isfinite(rise) and np.isfinite(there) and rise >= _RISE * at * slope
        if good and there <= _FLATTER * slope:
            return at
        if good:
            left = (at, rise, there)
        else:
            right = (at, rise, there)
        at = _longer(left, slope) if np.isinf(right[0]) else _between(left, right)
        if not left[0] < at < right[0]:
            break
    return left[0]


def _longer(left: tuple[float, float, float], slope: float) -> float:
    """Return a larger fraction of the step, by the secant method on the slopes."""
    at, _, there = left
    wanted = at * slope / (slope - there) if there < slope else np.inf
    return float(np.clip(wanted, _LEAST * at, _MOST * at))


def _between(left: tuple[float, float, float], right: tuple[float, float, float]) -> float:
    """Return a fraction between two trials, at the maximum of the cubic polynomial through both."""
    (a, rise_a, slope_a), (b, rise_b, slope_b) = left, right
    width, share = b - a, 0.5
    if not np.isfinite(rise_b + slope_b):
        return a + _BEFORE_WALL * width
    bend = 3.0 * (rise_b - rise_a) / width - slope_a - slope_b
    square = bend * bend - slope_a * slope_b
    if square >= 0.0 and (below := slope_a - slope_b + 2.0 * (root := float(np.sqrt(square)))) > 0.0:
        share = 1.0 - (root - slope_b - bend) / below
    return a + width * float(np.clip(share, _INSIDE, 1.0 - _INSIDE))
