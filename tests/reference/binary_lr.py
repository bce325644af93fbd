"""Label regression (Nickisch and Rasmussen 2008, section 8): a Gaussian process regressed on labels −1 and +1."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tests.reference.binary_gaussian import BinaryGaussian, jensen_bound
from tests.reference.binary_links import Link

__all__ = ["binary_lr"]

Array = NDArray[np.float64]


def binary_lr(K: Array, y: Array, m: Array, link: Link, noise: float) -> BinaryGaussian:
    """The posterior under noise of the given standard deviation. The evidence is its Jensen bound (8)."""
    n = y.size
    alpha = np.linalg.solve(K + noise**2 * np.eye(n), y - m)
    w = np.full(n, noise**-2)
    return BinaryGaussian.of(K, m, alpha, w, jensen_bound(K, y, m, alpha, w, link))
