"""Sites of all rows, as they are in q(v): with the features that they were made with."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError

from pymc_gpep.array_types import Array
from pymc_gpep.solvers.common_shift import SiteSums, own_features_shift, shared_features_shift
from pymc_gpep.solvers.inducing import Features, row_blocks
from pymc_gpep.solvers.whitened_posterior import whitened_posterior

__all__ = ["StoredSites"]


class StoredSites:
    """Sites exp(ν x − ½ t x²), x = wᵀv, of n rows with d of them each; none of a row that has not come yet.

    Features take four bytes a number, and a site eighteen: n (4 q M + 18 d) bytes in all.

    Parameters
    ----------
    rows, per_row : int
        n and d.
    functions, sets, size : int
        c, q and M; q is 1 where all functions have the same features, else c.
    differences : bool
        Whether the likelihood sees differences of functions only.
    """

    def __init__(self, rows: int, per_row: int, functions: int, sets: int, size: int, differences: bool) -> None:
        self._count = functions
        self._differences = differences
        self._precision = np.zeros((rows, per_row))
        self._location = np.zeros((rows, per_row))
        self._features = np.zeros((rows, sets, size), np.float32)
        self._functions = np.zeros((rows, per_row), np.int16)

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays themselves, by name."""
        return {
            "site_precision": self._precision,
            "site_location": self._location,
            "site_features": self._features,
            "site_functions": self._functions,
        }

    def of(self, rows: NDArray[np.int64]) -> tuple[Array, Array, NDArray[np.float32]]:
        """t and ν (B, d) and w (B, q, M) of some rows."""
        return self._precision[rows], self._location[rows], self._features[rows]

    def put(
        self,
        rows: NDArray[np.int64],
        precision: Array,
        location: Array,
        features: NDArray[Any],
        functions: NDArray[np.int64],
    ) -> None:
        """Keep others of B rows: t, ν, w, and which function each acts on, (B, d)."""
        self._precision[rows], self._location[rows] = precision, location
        self._features[rows], self._functions[rows] = features, functions

    def natural(self) -> tuple[Array, Array]:
        """S = Σ t w wᵀ (c, M, M) and h = Σ ν w (c, M)."""
        size = self._features.shape[2]
        precision, location = np.zeros((self._count, size, size)), np.zeros((self._count, size))
        for _, sums in self._blocks():
            w = sums.features.w
            precision += (w * sums.precision[:, None]) @ w.swapaxes(1, 2)
            location += (w @ sums.location[:, :, None])[:, :, 0]
        return precision, location

    def settled(self) -> tuple[Array, Array]:
        """Return the same, without the rounding errors of sums that were changed step by step.

        Where a likelihood sees differences of functions only, sites are first moved with the best function common to
        all. Steps would come to it slowly. See `pymc_gpep.solvers.common_shift`.
        """
        precision, location = self.natural()
        if not self._differences:
            return precision, location
        try:
            posterior = whitened_posterior(precision, location)
        except LinAlgError:
            return precision, location
        if self._features.shape[1] == 1:
            _, common = shared_features_shift(posterior, precision, location)
        else:
            _, common = own_features_shift(posterior, self._each)
        for rows, sums in self._blocks():
            self._location[rows] += self._precision[rows] * common(sums)[:, None]
        return self.natural()

    def _each[R](self, work: Callable[[SiteSums], R]) -> Iterator[R]:
        return (work(sums) for _, sums in self._blocks())

    def _blocks(self) -> Iterator[tuple[slice, SiteSums]]:
        """Rows, and what their sites are together on each function."""
        n, sets, size = self._features.shape
        for rows in row_blocks(n, sets * size):
            w = self._features[rows].transpose(1, 2, 0).astype(np.float64)
            acts = self._functions[rows][..., None] == np.arange(self._count)
            t, nu = (np.einsum("bd,bdc->cb", of[rows], acts) for of in (self._precision, self._location))
            yield rows, SiteSums(Features(w, np.empty(0), np.empty(0)), t, nu)
