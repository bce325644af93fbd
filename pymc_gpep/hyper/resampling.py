"""Draws of equal weight from weighted ones, with little noise."""

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array

DRAWS = 4096
"""Number of draws that represent a density."""

_BITS = 62  # Bits of a place on a curve through all points.


def along_curve(points: Array) -> NDArray[np.int64]:
    """Order (m,) of points (m, d) along a curve that fills the space: that of the interleaved bits of their ranks."""
    m, d = points.shape
    bits = max(1, min(_BITS // d, int(m).bit_length()))
    cells = (points.argsort(axis=0).argsort(axis=0) << bits) // m
    key = np.zeros(m, dtype=np.int64)
    for bit in range(bits):
        for axis in range(d):
            key |= ((cells[:, axis] >> bit) & 1) << (bit * d + axis)
    return np.argsort(key, kind="stable")


def resampled(log_weights: Array, points: Array, random_seed: int, count: int) -> NDArray[np.int64]:
    """Indices (count,) of points (m, d) by their log weights (m,): systematic resampling along a curve, shuffled."""
    rng = np.random.default_rng(random_seed)
    order = along_curve(points)
    share = np.cumsum(np.exp(log_weights[order] - log_weights.max()))
    places = np.searchsorted(share / share[-1], (np.arange(count) + rng.random()) / count)
    return order[rng.permutation(np.minimum(places, len(order) - 1))]
