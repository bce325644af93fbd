"""Terms of the points of a batch by a rule, in arrays: a loop of machine code in place of its graph."""

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
        It takes means and variances (B, d), labels (B,), the places of the last integrals (B,), and the arrays of
        `ArrayTerms`. It overwrites the places and these arrays.
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
