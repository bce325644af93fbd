"""The pattern of a sparse symmetric matrix and of its factor, found once for all matrices that have it."""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csc_array
from scipy.sparse.csgraph import connected_components, reverse_cuthill_mckee
from scipy.sparse.linalg import splu

from pymc_gpep.kernels.linalg.sparse_factor import count_rows, fill_rows, find_slots

_DENSE = 100  # columns with all entries, from which on dense matrices are faster

type Indices = NDArray[np.int64]


class FactorPattern:
    """Where P (q, q) and the L of P = L D Lᵀ have entries, rows and columns in an order that leaves L sparse.

    Parameters
    ----------
    q : int
    first, second : array
        Rows and columns of entries of P, on either side of the diagonal; the diagonal itself may be left out.

    Attributes
    ----------
    order : array (q,)
        Which row of P stands at each place.
    starts, rows, row_starts, row_columns, row_places : array
        See `pymc_gpep.kernels.linalg.sparse_factor`.
    dense : int
        The column from which on L has all entries, q where these are few.
    """

    def __init__(self, q: int, first: Indices, second: Indices) -> None:
        ones = np.ones(2 * len(first))
        there = coo_array((ones, (np.r_[first, second], np.r_[second, first])), shape=(q, q)).tocsc()
        self.components = connected_components(there, directed=False)[1]
        self.order, counts = _best_order(there)
        self._place = np.argsort(self.order)
        self.starts = np.concatenate([[0], np.cumsum(counts)])
        self.flops = _flops(counts)
        before, columns = _earlier(there, self.order)
        parent, seen, ends = np.empty((3, q), np.int64)
        count_rows(before, columns, self.starts[-1], parent, np.zeros(q, np.int64), seen)
        self.rows, self.row_columns, self.row_places = np.empty((3, self.starts[-1]), np.int64)
        self.row_starts = np.empty(q + 1, np.int64)
        full = np.flatnonzero(counts != np.arange(q - 1, -1, -1))
        begin = int(full[-1]) + 1 if full.size else 0
        self.dense = begin if q - begin >= _DENSE else q
        fill_rows(
            before, columns, parent, self.starts, self.rows, self.row_starts, self.row_columns, self.row_places, seen,
            ends,
        )  # fmt: skip

    @property
    def size(self) -> int:
        """Number of rows, q."""
        return len(self.order)

    @property
    def entries(self) -> int:
        """Number of entries of L with its diagonal."""
        return self.size + len(self.rows)

    def slots(self, first: Indices, second: Indices) -> Indices:
        """Return the slots of entries of P, the last one of all for those that L has not."""
        found = np.empty(np.shape(first), np.int64)
        places = [np.ascontiguousarray(self._place[each].ravel()) for each in (first, second)]
        find_slots(self.starts, self.rows, *places, found.reshape(-1))
        return found

    @cached_property
    def corner(self) -> tuple[Indices, Indices]:
        """Columns and rows below the diagonal of the last block, which L has all entries of, in their order."""
        return np.triu_indices(self.size - self.dense, 1)

    @property
    def nothing(self) -> int:
        """The slot of entries that L has not."""
        return self.entries


def pairs_of_rows(cells: Indices) -> tuple[Indices, Indices]:
    """Return both cells (n, k(k + 1)/2) of the pairs of entries (n, k) of each row, as kernels count them."""
    own, other = np.tril_indices(cells.shape[1])
    return cells[:, own], cells[:, other]


def _orders(there: csc_array) -> list[Indices]:
    """Orders that may leave the factor sparse: by least degree, as it is, and along a band."""
    q = there.shape[0]
    degree = np.asarray(there.sum(axis=0)).ravel() + 1.0
    matrix = csc_array(there + coo_array((degree, (np.arange(q), np.arange(q))), shape=(q, q)))
    least = splu(matrix, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True}).perm_c
    band = reverse_cuthill_mckee(there.tocsr(), symmetric_mode=True)
    return [np.argsort(least), np.arange(q), np.asarray(band, np.int64)]


def _earlier(there: csc_array, order: Indices) -> tuple[Indices, Indices]:
    """Return for each row of P in an order which earlier columns it has entries in."""
    place = np.argsort(order)
    entries = there.tocoo()
    row, column = place[entries.row], place[entries.col]
    below = row > column
    row, column = row[below], column[below]
    by_row = np.argsort(row, kind="stable")
    return np.searchsorted(row[by_row], np.arange(there.shape[0] + 1)), np.ascontiguousarray(column[by_row])


def _best_order(there: csc_array) -> tuple[Indices, Indices]:
    """Return the order that leaves L fewest entries, with the numbers of rows of its columns."""
    best, fewest = None, np.iinfo(np.int64).max
    for order in _orders(there):
        parent, seen = np.empty((2, len(order)), np.int64)
        counts = np.zeros(len(order), np.int64)
        if count_rows(*_earlier(there, order), fewest, parent, counts, seen):
            best, fewest = (order, counts), int(counts.sum()) - 1
        if fewest < 0:
            break
    assert best is not None
    return best


def _flops(counts: Indices) -> float:
    """Products that a factorisation takes."""
    return float((counts.astype(np.float64) ** 2).sum())
