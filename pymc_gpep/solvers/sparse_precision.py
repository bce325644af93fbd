"""Sparse precision P₀ plus few dense columns, P = P₀ + V W⁻¹ Vᵀ: pattern, factor, solves, entries of the inverse.

With Y = P₀⁻¹V and M = W + VᵀY

    P⁻¹ = P₀⁻¹ − Y M⁻¹ Yᵀ,   log|P| = log|P₀| + log|M| − log|W|.

W is diagonal. W = 0 conditions on Vᵀx = 0 (kriging). A negative entry of W subtracts the term of a column from P₀; then
P may be indefinite although P₀ is positive definite.
"""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotrf, dpotri
from scipy.sparse import coo_array, csc_array
from scipy.sparse.csgraph import connected_components, reverse_cuthill_mckee
from scipy.sparse.linalg import splu

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.gaussians.sparse_rows import sparse_row_products, sparse_row_variances
from pymc_gpep.kernels.linalg.sparse_factor import (
    count_rows,
    factorise,
    fill_rows,
    fill_widened,
    find_slots,
    independent_set,
    place_in_runs,
    read_corner,
    selected_inverse,
    solve_lower,
    solve_upper,
    widen_runs,
    write_corner,
)
from pymc_gpep.solvers.coefficients import Coefficients, Entries
from pymc_gpep.solvers.dissection import dissected

_DENSE = 40  # Smallest number of full columns for which dense matrices are faster.
_FULL = 0.9  # Smallest share of nonzero entries of a block that can be stored as full.
_SMALL = 5000  # Largest number of rows with places for which all orders are compared.
_SLOWER = 17.0  # Time of a product outside the dense block, relative to a product by LAPACK.

type Indices = NDArray[np.int64]


class FactorPattern:
    """Positions of entries of P (q, q) and of L in P = L D Lᵀ, in an order for which L is sparse.

    Parameters
    ----------
    q : int
    first, second : array
        Rows and columns of entries of P, in either triangle; the diagonal may be omitted.
    places : array (q, d), optional
        Places of rows, if entries connect mostly close rows, see `pymc_gpep.solvers.dissection`.

    Attributes
    ----------
    order : array (q,)
        Row of P at each position.
    starts, rows : array
        See `pymc_gpep.kernels.linalg.sparse_factor`.
    dense : int
        First column of the block at the end of L that is stored as full, with explicit zeros; q if the block is small.
    work : float
        Number of products of a factorisation, weighted by time. A product in the dense block, by LAPACK, has weight 1.
    """

    def __init__(self, q: int, first: Indices, second: Indices, places: Array | None = None) -> None:
        ones = np.ones(2 * len(first))
        there = coo_array((ones, (np.r_[first, second], np.r_[second, first])), shape=(q, q)).tocsc()
        self.components = connected_components(there, directed=False)[1]
        self.order, counts = _in_runs(there, *_best_order(there, places))
        self._place = np.argsort(self.order)
        before, columns = _earlier(there, self.order)
        parent, seen, ends = np.empty((3, q), np.int64)
        count_rows(before, columns, counts.sum(), parent, np.zeros(q, np.int64), seen)
        begin = _last_block(counts)
        self.dense = begin if q - begin >= _DENSE else q
        counts[self.dense :] = np.arange(q - self.dense)[::-1]
        self.starts = np.concatenate([[0], np.cumsum(counts)])
        self.rows = np.empty(self.starts[-1], np.int64)
        fill_rows(before, columns, parent, self.starts, self.rows, seen, ends)
        for j in range(self.dense, q):
            self.rows[self.starts[j] : self.starts[j + 1]] = np.arange(j + 1, q)
        products = counts.astype(np.float64) ** 2
        self.work = float(_SLOWER * products[: self.dense].sum() + products[self.dense :].sum())
        if places is not None:
            self._widen()

    def _widen(self) -> None:
        """Merge runs of columns, see `widen_runs`."""
        counts = np.diff(self.starts)
        widen_runs(self.starts, self.rows, self.dense, counts)
        starts = np.concatenate([[0], np.cumsum(counts)])
        rows = np.empty(starts[-1], np.int64)
        fill_widened(self.starts, self.rows, self.dense, starts, rows)
        self.starts, self.rows = starts, rows

    @property
    def size(self) -> int:
        """Number of rows, q."""
        return len(self.order)

    @property
    def entries(self) -> int:
        """Number of entries of L with its diagonal."""
        return self.size + len(self.rows)

    def slots(self, first: Indices, second: Indices) -> Indices:
        """Return the slots of entries of P: positions among entries of L, or the last slot outside its pattern."""
        found = np.empty(np.shape(first), np.int64)
        places = [np.ascontiguousarray(self._place[each].ravel()) for each in (first, second)]
        find_slots(self.starts, self.rows, *places, found.reshape(-1))
        return found

    @property
    def nothing(self) -> int:
        """Slot of entries outside the pattern of L."""
        return self.entries


def pairs_of_rows(cells: Indices) -> tuple[Indices, Indices]:
    """Return both columns (n, k(k + 1)/2) of the pairs of entries of each row, given columns (n, k) of its entries."""
    own, other = np.tril_indices(cells.shape[1])
    return cells[:, own], cells[:, other]


def _bipartite_order(there: csc_array) -> tuple[Indices, Indices] | None:
    """Return an order that begins with an independent set, and the number of entries of each column of L.

    Return None unless the other columns of L are nearly full, in which case no order is much sparser. Effects of two
    crossed factors are an example.
    """
    q = there.shape[0]
    degree, within = np.diff(there.indptr), np.zeros(q, np.bool_)
    by_degree = np.argsort(degree, kind="stable")
    independent_set(there.indptr.astype(np.int64), there.indices.astype(np.int64), by_degree, within)
    order = np.concatenate([by_degree[within[by_degree]], by_degree[~within[by_degree]]])
    parent, seen = np.empty((2, q), np.int64)
    counts, most = np.zeros(q, np.int64), np.iinfo(np.int64).max
    count_rows(*_earlier(there, order), most, parent, counts, seen)
    rest = int((~within).sum())
    full = counts[q - rest :].sum() >= _FULL * rest * (rest - 1) / 2
    return (order, counts) if full and rest < q / 2 else None


def _orders(there: csc_array) -> list[Indices]:
    """Return candidate orders: minimum degree, original, reverse Cuthill-McKee, and reversed order."""
    q = there.shape[0]
    degree = np.asarray(there.sum(axis=0)).ravel() + 1.0
    matrix = csc_array(there + coo_array((degree, (np.arange(q), np.arange(q))), shape=(q, q)))
    least = splu(matrix, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True}).perm_c
    band = reverse_cuthill_mckee(there.tocsr(), symmetric_mode=True)
    return [np.argsort(least), np.arange(q), np.asarray(band, np.int64), np.arange(q)[::-1].copy()]


def _earlier(there: csc_array, order: Indices) -> tuple[Indices, Indices]:
    """Return the columns of entries left of the diagonal, by row of P in the given order: starts of rows, columns."""
    place = np.argsort(order)
    entries = there.tocoo()
    row, column = place[entries.row], place[entries.col]
    below = row > column
    row, column = row[below], column[below]
    by_row = np.argsort(row, kind="stable")
    return np.searchsorted(row[by_row], np.arange(there.shape[0] + 1)), np.ascontiguousarray(column[by_row])


def _best_order(there: csc_array, places: Array | None = None) -> tuple[Indices, Indices]:
    """Return the order with the fewest entries of L, and the number of entries of each column of L.

    Among orders with equally many entries, the last is returned. In the reversed order a random walk is factorised
    without rounding errors, since the pivots are the precisions of the steps.
    """
    orders = [] if places is None else [dissected(there.tocsr(), places)]
    if not orders and (crossed := _bipartite_order(there)) is not None:
        return crossed
    if not orders or there.shape[0] <= _SMALL:
        orders += _orders(there)
    best, fewest = None, np.iinfo(np.int64).max
    for order in orders:
        parent, seen = np.empty((2, len(order)), np.int64)
        counts = np.zeros(len(order), np.int64)
        if count_rows(*_earlier(there, order), fewest, parent, counts, seen):
            best, fewest = (order, counts), int(counts.sum())
    assert best is not None
    return best


def _last_block(counts: Indices) -> int:
    """Return the first column of the block at the end of L that is nearly full, given the entries of each column.

    The work of a factorisation is smallest if this block is stored as full.
    """
    full = np.arange(len(counts), dtype=np.float64)[::-1]
    before = np.concatenate([[0.0], np.cumsum(counts.astype(np.float64) ** 2)])[:-1]
    work = _SLOWER * before + np.cumsum((full**2)[::-1])[::-1]
    nearly = np.cumsum(counts[::-1])[::-1] >= _FULL * np.cumsum(full[::-1])[::-1]
    return int(np.argmin(np.where(nearly, work, np.inf)))


def _in_runs(there: csc_array, order: Indices, counts: Indices) -> tuple[Indices, Indices]:
    """Return an order in which columns of L with equal rows are adjacent. The number of entries of L does not change.

    The order is a postorder of the elimination tree. The child with the most rows is the last before its parent. The
    full columns at the end stay at the end.
    """
    q = len(order)
    begin = _last_block(counts)
    parent, seen = np.empty((2, q), np.int64)
    count_rows(*_earlier(there, order), np.iinfo(np.int64).max, parent, np.zeros(q, np.int64), seen)
    moved = np.empty(begin, np.int64)
    place_in_runs(np.where(parent < begin, parent, -1)[:begin], np.argsort(counts[:begin], kind="stable"), moved)
    moved = np.concatenate([moved, np.arange(begin, q)])
    return order[moved], counts[moved]


_ROWS = 500  # Number of right-hand sides in a batch.


class SparsePrecision:
    """Factorised precision P, see the module.

    Parameters
    ----------
    pattern : FactorPattern
    factor : array
        D and L of P₀ by slot.
    columns : array (p, q)
        The columns V, transposed.
    widths : array (p,)
        Diagonal of W.
    """

    def __init__(self, pattern: FactorPattern, factor: Array, columns: Array, widths: Array) -> None:
        self.pattern = pattern
        self._diagonal, self._lower = factor[: pattern.size], factor[pattern.size : -1]
        self._columns, self._widths = columns, widths
        self._pull = self._solve_sparse(columns)
        self._middle = np.diag(widths) + columns @ self._pull.T

    @classmethod
    def factorised(
        cls, pattern: FactorPattern, entries: Array, columns: Array, widths: Array
    ) -> "SparsePrecision | None":
        """Factorise P₀ from entries by slot, which are overwritten. Return None if P₀ is not positive definite."""
        q, p = pattern.size, pattern
        entries[-1] = 0.0
        diagonal, lower = entries[:q], entries[q:-1]
        done = factorise(p.starts, p.rows, p.dense, diagonal, lower)
        if not done or not np.isfinite(entries).all() or not _factorise_corner(pattern, diagonal, lower):
            return None
        return cls(pattern, entries, columns, widths)

    @property
    def log_det(self) -> float:
        """log|P| up to a constant, log|P₀| + log|M|."""
        return float(np.log(self._diagonal).sum()) + float(np.linalg.slogdet(self._middle)[1])

    def _solve_sparse(self, right: Array) -> Array:
        """Return P₀⁻¹ r for each row r of `right` (m, q)."""
        p = self.pattern
        x = np.ascontiguousarray(right[:, p.order])
        solve_lower(p.starts, p.rows, p.dense, self._lower, x)
        x /= self._diagonal
        solve_upper(p.starts, p.rows, p.dense, self._lower, x)
        found = np.empty_like(x)
        found[:, p.order] = x
        return found

    def solve(self, right: Array) -> Array:
        """Return P⁻¹ r for r (q,), or for each row r of (m, q)."""
        rows = np.atleast_2d(np.asarray(right, np.float64))
        found = self._solve_sparse(rows)
        if len(self._widths):
            found -= np.linalg.solve(self._middle, self._columns @ found.T).T @ self._pull
        return found.reshape(np.shape(right))

    # The root of P⁻¹ is F R. F is a root of P₀⁻¹, and R differs from the identity only in the span of Fᵀ V.

    @cached_property
    def _span(self) -> tuple[Array, Array]:
        """Directions U (q, p) and factors g (p,) of R = I − U diag(g) Uᵀ."""
        span, own = np.linalg.qr(self._lowered(self._columns).T)
        kept, turned = np.linalg.eigh(own @ np.linalg.solve(self._middle, own.T))
        return span @ turned, 1.0 - np.sqrt(np.maximum(1.0 - kept, 0.0))

    def _lowered(self, right: Array) -> Array:
        """Return Fᵀ r for each row r of `right` (m, q), where F Fᵀ = P₀⁻¹."""
        p = self.pattern
        x = np.ascontiguousarray(right[:, p.order])
        solve_lower(p.starts, p.rows, p.dense, self._lower, x)
        x /= np.sqrt(self._diagonal)
        return x

    def halved(self, right: Array) -> Array:
        """Return Rᵀ Fᵀ r for each row r of `right` (m, q). Inner products of results are rᵀP⁻¹s."""
        found = self._lowered(right)
        if len(self._widths):
            directions, factors = self._span
            found -= ((found @ directions) * factors) @ directions.T
        return found

    def spread(self, noise: Array) -> Array:
        """Return draws F R ε of N(0, P⁻¹) for each row ε of standard normals (m, q)."""
        x, p = np.array(noise, np.float64), self.pattern
        if len(self._widths):
            directions, factors = self._span
            x -= ((x @ directions) * factors) @ directions.T
        x /= np.sqrt(self._diagonal)
        solve_upper(p.starts, p.rows, p.dense, self._lower, x)
        found = np.empty_like(x)
        found[:, p.order] = x
        return found

    # Entries of the inverse on the pattern of L.

    @cached_property
    def selected(self) -> Array:
        """Entries of P₀⁻¹ by slot."""
        p = self.pattern
        entries = np.zeros(p.entries + 1)
        diagonal, lower = entries[: p.size], entries[p.size : -1]
        if p.dense < p.size:
            root = _corner(p, np.ones(p.size), self._lower)
            root *= np.sqrt(self._diagonal[p.dense :])
            inverse, _ = dpotri(root, lower=1, overwrite_c=1)
            _read_corner(p, inverse, np.ones(len(inverse)), diagonal, lower)
        selected_inverse(p.starts, p.rows, p.dense, self._diagonal, self._lower, diagonal, lower)
        return entries

    def _taken(self, cells: NDArray[np.int64], values: Array) -> tuple[Array, Array]:
        """Return A Y (n, p) and A Y M⁻¹ (Y, M: see the module), for rows A given by cells and values."""
        moved = np.einsum("ik,pik->ip", values, self._pull[:, cells])
        return moved, np.linalg.solve(self._middle, moved.T).T

    def row_variances(self, slots: NDArray[np.int64], cells: NDArray[np.int64], values: Array) -> Array:
        """Return the diagonal (n,) of A P⁻¹ Aᵀ, for rows A by cells and values (n, k), and slots of their pairs."""
        found = np.empty(len(values))
        sparse_row_variances(slots, values, self.selected, found)
        if len(self._widths):
            moved, taken = self._taken(cells, values)
            found -= (moved * taken).sum(axis=1)
            found = np.maximum(found, 0.0)  # Rounding may make the variance of a constrained row negative.
        return found

    def row_products(self, slots: NDArray[np.int64], cells: NDArray[np.int64], values: Array) -> Array:
        """Return P⁻¹ a_i (n, k) at the entries of each row a_i; arguments as for `row_variances`."""
        found = np.zeros_like(values)
        sparse_row_products(slots, values, self.selected, found)
        if len(self._widths):
            _, taken = self._taken(cells, values)
            found -= np.einsum("ip,pik->ik", taken, self._pull[:, cells])
        return found

    def variances(self, rows: Coefficients) -> Array:
        """Return the diagonal (m,) of T P⁻¹ Tᵀ, for rows T (m, q); by solves if the pattern lacks an entry."""
        m = len(rows.products(np.zeros(self.pattern.size)))
        found, left = np.zeros(m), np.arange(m)
        if isinstance(rows, Entries):
            one, other = pairs_of_rows(rows.cells)
            slots, components = self.pattern.slots(one, other), self.pattern.components
            own, its = np.tril_indices(rows.cells.shape[1])
            wanted = (rows.values[:, own] != 0.0) & (rows.values[:, its] != 0.0)
            # Entries of P⁻¹ between unconnected components are 0.
            lacks = (slots == self.pattern.nothing) & (components[one] == components[other])
            left = np.flatnonzero((wanted & lacks).any(axis=1))
            found = self.row_variances(slots, rows.cells, rows.values)
        for start in range(0, len(left), _ROWS):
            some = left[start : start + _ROWS]
            found[some] = (self.halved(rows.some(some)) ** 2).sum(axis=1)
        return found

    def entries(self, slots: NDArray[np.int64], first: NDArray[np.int64], second: NDArray[np.int64]) -> Array:
        """Return the entries (first, second) of P⁻¹, given their slots."""
        found = self.selected[slots]
        if len(self._widths):
            taken = np.linalg.solve(self._middle, self._pull)
            found = found - (self._pull[:, first] * taken[:, second]).sum(axis=0)
        return np.asarray(found)


def _corner(pattern: FactorPattern, diagonal: Array, lower: Array) -> Array:
    """Return the full last block of a matrix by slots, in Fortran order, valid in its lower triangle."""
    corner = np.empty((pattern.size - pattern.dense,) * 2)
    write_corner(diagonal[pattern.dense :], lower[pattern.starts[pattern.dense] :], corner)
    return corner.T


def _read_corner(pattern: FactorPattern, corner: Array, pivots: Array, diagonal: Array, lower: Array) -> None:
    """Overwrite the last block of a matrix by slots with `corner` (Fortran order), divided by pivots of columns."""
    read_corner(corner.T, pivots, diagonal[pattern.dense :], lower[pattern.starts[pattern.dense] :])


def _factorise_corner(pattern: FactorPattern, diagonal: Array, lower: Array) -> bool:
    """Overwrite the last block with D and L. Return whether it is positive definite."""
    if pattern.dense == pattern.size:
        return True
    root, failed = dpotrf(_corner(pattern, diagonal, lower), lower=1, overwrite_a=1)
    if failed:
        return False
    _read_corner(pattern, root, root.diagonal().copy(), diagonal, lower)
    diagonal[pattern.dense :] **= 2
    return bool(np.isfinite(diagonal).all())
