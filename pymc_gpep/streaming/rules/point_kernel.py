"""What a rule says of the points of a batch as arrays: the same as its graph, by a loop of machine code."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array

__all__ = ["ArrayTerms", "PointKernel"]


class ArrayTerms(NamedTuple):
    """As `PointTerms`, of arrays."""

    value: Array
    """(B,)."""
    in_mean: Array
    """(B, d)."""
    in_variance: Array
    """(B, d)."""


class PointKernel:
    """Terms of points whose factors see d normal latent values each.

    Parameters
    ----------
    compute : function
        Of means and variances (B, d), labels (B,), where integrals were the last time (B,), which it overwrites, and
        the arrays of `ArrayTerms`, which it overwrites.
    """

    def __init__(self, compute: Callable[..., None]) -> None:
        self._compute = compute

    def of(self, labels: NDArray[np.int64]) -> Callable[[Array, Array], ArrayTerms]:
        """The terms of points with these labels (B,), from means and variances (B, d), again and again."""
        places = np.zeros(len(labels))

        def terms(mean: Array, variance: Array) -> ArrayTerms:
            found = ArrayTerms(np.empty(len(mean)), np.empty_like(mean), np.empty_like(mean))
            self._compute(mean, variance, labels, places, *found)
            return found

        return terms
