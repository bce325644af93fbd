"""Precision of effects and of a nearest-neighbour process: pattern, products and solves.

The value at a place is a regression on earlier neighbours, see `pymc_gpep.kernels.gaussians.neighbours`. Determinant
and root of the precision follow without a factorisation.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csc_array

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.gaussians.neighbours import (
    maximin_order,
    more_neighbours,
    nearest,
    pull_regressions,
    regressions,
    solve_backward,
    solve_forward,
)
from pymc_gpep.kernels.linalg.sparse_factor import find_slots
from pymc_gpep.solvers.coefficients import Coefficients, blocks_of_rows
from pymc_gpep.solvers.sparse_precision import FactorPattern, SparsePrecision, pairs_of_rows

type Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class NeighbourSets:
    """Neighbours of ordered places, and the pairs of places that their regressions use.

    Attributes
    ----------
    cells : array (p, m)
        Neighbours of each place among the earlier places, padded with 0.
    counts : array (p,)
        Number of neighbours of each place.
    """

    cells: Indices
    counts: Indices

    @property
    def size(self) -> int:
        """Number of places, p."""
        return len(self.cells)

    @classmethod
    def chosen(cls, cells: Indices) -> Self:
        """Return the sets for neighbours (p, m). Place k uses only the first k neighbours if k < m."""
        return cls(cells, np.minimum(np.arange(len(cells)), cells.shape[1]))

    def extended(self, x: Array, m: int) -> Self:
        """Return sets with at most m neighbours. Added neighbours are near, and need no entries in a factor.

        Parameters
        ----------
        x : array (p, d)
            Places.
        m : int
        """
        pattern = FactorPattern(self.size, self.first, self.second, x)
        cells, counts = np.zeros((self.size, m), np.int64), self.counts.copy()
        cells[:, : self.cells.shape[1]] = self.cells
        positions = np.argsort(pattern.order)
        more_neighbours(np.ascontiguousarray(x), cells, counts, pattern.starts, pattern.rows, pattern.order, positions)
        return type(self)(cells, counts)

    def regressions(self, entries: Array) -> tuple[Array, Array]:
        """Return regressions b (p, m) and residual variances d (p,), from the entries of a covariance at the pairs."""
        return regressions_of(entries, self.slots, self.counts, self.cells.shape[1])

    def pulled(self, entries: Array, b: Array, of_b: Array, of_d: Array) -> Array:
        """Transform derivatives in regressions b and residual variances d to derivatives in covariance entries."""
        found = np.zeros_like(entries)
        pull_regressions(entries, self.slots, self.counts, b, of_b, of_d, found)
        return found

    @cached_property
    def _columns(self) -> csc_array:
        """Matrix with an entry for each pair of distinct places, row > column."""
        p, m = self.cells.shape
        one, other = pairs_of_rows(np.concatenate([np.arange(p)[:, None], self.cells], axis=1))
        used = (np.tril_indices(m + 1)[0] <= self.counts[:, None]) & (one != other)
        one, other = one[used], other[used]
        rows, columns = np.maximum(one, other), np.minimum(one, other)
        found = coo_array((np.ones(len(rows), bool), (rows, columns)), shape=(p, p)).tocsc()
        found.sort_indices()
        return found

    @cached_property
    def first(self) -> Indices:
        """Rows of the pairs of places: the diagonal, then one triangle."""
        return np.concatenate([np.arange(self.size), self._columns.indices])

    @cached_property
    def second(self) -> Indices:
        """Columns of pairs of places."""
        own = np.arange(self.size)
        return np.concatenate([own, np.repeat(own, np.diff(self._columns.indptr))])

    @cached_property
    def slots(self) -> Indices:
        """Indices of the pairs of each place and its neighbours, (p, (m + 1)(m + 2)/2), in the order of the kernels."""
        p, m = self.cells.shape
        starts, rows = (each.astype(np.int64) for each in (self._columns.indptr, self._columns.indices))
        one, other = pairs_of_rows(np.concatenate([np.arange(p)[:, None], self.cells], axis=1))
        found = np.empty(one.shape, np.int64)
        find_slots(starts, rows, one.ravel(), other.ravel(), found.reshape(-1))
        found[np.tril_indices(m + 1)[0] > self.counts[:, None]] = 0
        return found


def regressions_of(entries: Array, slots: Indices, counts: Indices, m: int) -> tuple[Array, Array]:
    """Return regressions b (p, m) and residual variances d (p,), see `pymc_gpep.kernels.gaussians.neighbours`."""
    b, d = np.empty((len(counts), m)), np.empty(len(counts))
    regressions(entries, slots, counts, b, d)
    return b, d


_LEAF = 8  # Largest number of places in a leaf of the tree.


class PlaceTree:
    """Tree of boxes of places. Box k has the halves 2k + 1 and 2k + 2, and all leaves have equal depth.

    Parameters
    ----------
    x : array (p, d)
        Places.
    """

    def __init__(self, x: Array) -> None:
        self._index, starts = np.arange(len(x)), np.array([0, len(x)])
        boxes: list[tuple[Array, Array, Indices]] = []
        while True:
            moved = x[self._index]
            low, high = (each.reduceat(moved, starts[:-1]) for each in (np.minimum, np.maximum))
            boxes.append((low, high, np.minimum.reduceat(self._index, starts[:-1])))
            if np.diff(starts).max() <= _LEAF:
                break
            box = np.repeat(np.arange(len(low)), np.diff(starts))
            along = moved[np.arange(len(x)), (high - low).argmax(axis=1)[box]]
            self._index = self._index[np.lexsort((along, box))]
            middle = (starts[:-1] + starts[1:]) // 2
            starts = np.sort(np.r_[starts, middle])
        low, high, self._first = (np.concatenate(each) for each in zip(*boxes, strict=True))
        self._boxes = starts, low, high
        self._x = np.ascontiguousarray(x[self._index])

    def maximin(self) -> Indices:
        """Return the order (p,) in which each place is the farthest from all earlier places."""
        order = np.empty(len(self._x), np.int64)
        maximin_order(self._x, *self._boxes, order)
        return self._index[order]

    def nearest(self, x: Array, m: int, before: Indices) -> Indices:
        """Return the m nearest places (s, m) to each place of x (s, d), among the first `before` (s,) places."""
        cells = np.zeros((len(x), m), np.int64)
        nearest(np.ascontiguousarray(x), before, self._x, self._index, self._first, *self._boxes, cells)
        return cells


def continued(values: Array, noise: Array, cells: Indices, b: Array) -> Array:
    """Return values (t, s) at s new places: noise plus b (s, m) times the values at neighbours.

    `values` (t, p) are at p earlier places. `cells` (s, m) are positions of neighbours among all p + s places.
    """
    p, every = values.shape[1], np.concatenate([values, noise], axis=1)
    cells, b = (np.concatenate([np.zeros((p, b.shape[1]), each.dtype), each]) for each in (cells, b))
    solve_forward(cells, np.where(np.arange(len(b)) < p, 0, b.shape[1]), b, every)
    return every[:, p:]


class NeighbourPrecision:
    """Block-diagonal precision Q: a block of effects, then (I − B)ᵀ D⁻¹ (I − B) of a nearest-neighbour process.

    Parameters
    ----------
    sets : NeighbourSets
    effects : SparsePrecision or None
        Precision of the effects; None without effects.
    b : array (p, m)
    d : array (p,)
    """

    def __init__(self, sets: NeighbourSets, effects: SparsePrecision | None, b: Array, d: Array) -> None:
        self._sets, self._effects, self._b, self._d = sets, effects, b, d
        self._begin = 0 if effects is None else effects.pattern.size

    @property
    def log_det(self) -> float:
        """Log determinant of Q."""
        own = 0.0 if self._effects is None else self._effects.log_det
        return own - float(np.log(self._d).sum())

    def _parts(self, right: Array) -> tuple[Array, Array]:
        rows = np.atleast_2d(np.asarray(right, np.float64))
        return rows[:, : self._begin], np.array(rows[:, self._begin :], order="C")

    def _joined(self, effects: Array, values: Array, shape: tuple[int, ...]) -> Array:
        return np.concatenate([effects, values], axis=1).reshape(shape)

    def solve(self, right: Array) -> Array:
        """Return Q⁻¹ r for r (q,), or for each row of r (m, q)."""
        effects, values = self._parts(right)
        solve_backward(self._sets.cells, self._sets.counts, self._b, values)
        values *= self._d
        solve_forward(self._sets.cells, self._sets.counts, self._b, values)
        return self._joined(effects if self._effects is None else self._effects.solve(effects), values, right.shape)

    def halved(self, right: Array) -> Array:
        """Return rows (m, q) whose inner products are rᵀQ⁻¹s, for the rows r and s of `right` (m, q)."""
        effects, values = self._parts(right)
        solve_backward(self._sets.cells, self._sets.counts, self._b, values)
        values *= np.sqrt(self._d)
        return self._joined(effects if self._effects is None else self._effects.halved(effects), values, right.shape)

    def spread(self, noise: Array) -> Array:
        """Return draws of N(0, Q⁻¹) from standard normals (m, q)."""
        effects, values = self._parts(noise)
        values *= np.sqrt(self._d)
        solve_forward(self._sets.cells, self._sets.counts, self._b, values)
        return self._joined(effects if self._effects is None else self._effects.spread(effects), values, noise.shape)

    def variances(self, rows: Coefficients) -> Array:
        """Return the diagonal (m,) of T Q⁻¹ Tᵀ, for any rows T (m, q)."""
        q = self._begin + len(self._d)
        m = len(rows.products(np.zeros(q)))
        parts = [np.zeros(0)]
        for some in blocks_of_rows(m, q):
            parts.append((self.halved(rows.some(np.arange(m)[some])) ** 2).sum(axis=1))
        return np.concatenate(parts)
