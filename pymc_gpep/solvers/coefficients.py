"""Rows of coefficients J (n, q), dense or sparse, and products with site precisions."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import dsyrk

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.gaussians.sparse_rows import (
    entry_between,
    entry_covariances,
    entry_gram,
    entry_products,
    entry_sums,
    entry_variances,
    row_combinations,
)


class SitePrecisions(Protocol):
    """Site precisions Π_i (c, c) of n points, see `pymc_gpep.gaussians.sites.Sites`."""

    def block(self, k: int, other: int) -> Array | None:
        """Return the entries (n,) of Π for two functions; None if they are 0."""
        ...

    def product(self, f: Array, /) -> Array:
        """Return Π f (..., c, n), for f of the same shape."""
        ...


_NUMBERS = 4_000_000  # Largest number of entries of a square block: 32 MB.
_CACHED = 400_000  # Number of entries of a block that stays in the cache for several passes: 3 MB.
_MOST_ENTRIES = 40  # Largest number of entries of a row for which loops over entries are faster than matrix products.
_SHARE = 0.25  # Largest share of nonzero entries in a row of the sparse form.
_WORTH = 0.25  # Smallest share of sparse rows at which they are stored separately from full rows.


class Coefficients(ABC):
    """Coefficients J (n, q). For c functions they are (cn, q), with the rows of a function together."""

    functions: int = 1
    """Number of functions, c."""

    @abstractmethod
    def gram(self, weights: Array) -> Array:
        """Return JᵀwJ (q, q), valid in its lower triangle, for w (n,)."""

    @abstractmethod
    def products(self, numbers: Array) -> Array:
        """Return J v (n,), for v (q,)."""

    @abstractmethod
    def sums(self, weights: Array) -> Array:
        """Return Jᵀ w (q,), for w (n,)."""

    @abstractmethod
    def variances(self, root: Array) -> Array:
        """Return the diagonal (n,) of J RᵀR Jᵀ, for R (p, q)."""

    @abstractmethod
    def combined(self, matrix: Array) -> Array:
        """Return J S (n, p), for S (q, p)."""

    @abstractmethod
    def some(self, rows: NDArray[np.int64]) -> Array:
        """Return the rows (s, q) of J with indices `rows`."""

    def coupled_gram(self, precisions: SitePrecisions) -> Array:
        """Return JᵀΠJ (q, q), where Π has a block (c, c) for each point."""
        block = precisions.block(0, 0)
        assert block is not None
        lower = np.tril(self.gram(block))
        return lower + np.tril(lower, -1).T

    def covariances(self, root: Array) -> Array:
        """Return the blocks (n, c, c) of J RᵀR Jᵀ for each point, for R (p, q)."""
        return self.variances(root)[:, None, None]

    def between(self, weights: Array, other: "Coefficients") -> Array:
        """Return JᵀwK (q, q′), for rows J and K of two functions and w (n,)."""
        every = np.arange(len(weights))
        return np.asarray(self.some(every).T @ (weights[:, None] * other.some(every)))

    def covariances_with(self, matrix: Array, other: "Coefficients") -> Array | None:
        """Return the diagonal (n,) of J S Kᵀ, for rows J and K of two functions and S (q, q′).

        Return None if `variances` of both functions together are faster.
        """
        return None

    def outer(self, left: Array, right: Array) -> Array:
        """Return the derivative of lᵀ J r with respect to the stored parts of J, for l (n,) and r (q,)."""
        return np.outer(left, right)

    def weighted(self, weights: Array, matrix: Array) -> Array:
        """Return the derivative of ½ tr(S JᵀwJ) with respect to the parts of J, for w (n,) and symmetric S (q, q)."""
        found = self.combined(matrix)
        found *= weights[:, None]
        return found

    def coupled_weighted(self, precisions: SitePrecisions, matrix: Array) -> Array:
        """Return the derivative of ½ tr(S JᵀΠJ) with respect to the parts of J, for symmetric S (q, q)."""
        found = self.combined(matrix)
        by_function = found.reshape(self.functions, -1, found.shape[1])
        for column in range(found.shape[1]):
            by_function[:, :, column] = precisions.product(by_function[:, :, column])
        return found


def blocks_of_rows(n: int, width: int) -> Iterator[slice]:
    """Yield slices of n rows that fit into the cache, or larger square blocks if they fit into memory."""
    width = max(width, 1)
    step = max(1, _CACHED // width, min(width, _NUMBERS // width))
    return (slice(start, min(start + step, n)) for start in range(0, n, step))


class _Full(Coefficients):
    """Coefficients as a dense array (n, q)."""

    def __init__(self, j: Array) -> None:
        self._j = j

    def gram(self, weights: Array) -> Array:
        q = self._j.shape[1]
        gram = np.zeros((q, q), order="F")
        for rows in blocks_of_rows(*self._j.shape):
            scaled = np.sqrt(np.abs(weights[rows]))[:, None] * self._j[rows]
            # BLAS takes the transpose of a C-ordered array without a copy.
            gram = dsyrk(1.0, scaled.T, 1.0, gram, lower=1, overwrite_c=1)
            if (negative := weights[rows] < 0.0).any():
                gram = dsyrk(-2.0, scaled[negative].T, 1.0, gram, lower=1, overwrite_c=1)
        return np.asarray(gram)

    def products(self, numbers: Array) -> Array:
        return np.asarray(self._j @ numbers)

    def sums(self, weights: Array) -> Array:
        return np.asarray(self._j.T @ weights)

    def variances(self, root: Array) -> Array:
        found = np.empty(len(self._j))
        for rows in blocks_of_rows(*self._j.shape):
            half = self._j[rows] @ root.T
            np.einsum("ij,ij->i", half, half, out=found[rows])
        return found

    def combined(self, matrix: Array) -> Array:
        return np.asarray(self._j @ matrix)

    def some(self, rows: NDArray[np.int64]) -> Array:
        return self._j[rows]


class Entries(Coefficients):
    """Coefficients by nonzero entries, see `pymc_gpep.kernels.gaussians.sparse_rows`."""

    def __init__(self, cells: NDArray[np.int64], values: Array, q: int) -> None:
        self.cells, self.values, self.q = cells, values, q

    def gram(self, weights: Array) -> Array:
        gram = np.zeros((self.q, self.q))
        entry_gram(self.cells, self.values, np.ascontiguousarray(weights), gram)
        return gram

    def products(self, numbers: Array) -> Array:
        out = np.empty(len(self.cells))
        entry_products(self.cells, self.values, np.ascontiguousarray(numbers), out)
        return out

    def sums(self, weights: Array) -> Array:
        out = np.zeros(self.q)
        entry_sums(self.cells, self.values, np.ascontiguousarray(weights), out)
        return out

    def variances(self, root: Array) -> Array:
        if self.cells.size <= len(root):
            half = (root.T[self.cells] * self.values[..., None]).sum(axis=1)
            return np.asarray(np.einsum("ij,ij->i", half, half))
        out = np.empty(len(self.cells))
        entry_variances(self.cells, self.values, np.ascontiguousarray(root.T @ root), out)
        return out

    def between(self, weights: Array, other: Coefficients) -> Array:
        if not isinstance(other, Entries):
            return super().between(weights, other)
        out = np.zeros((self.q, other.q))
        entry_between(self.cells, self.values, np.ascontiguousarray(weights), other.cells, other.values, out)
        return out

    def covariances_with(self, matrix: Array, other: Coefficients) -> Array | None:
        if not isinstance(other, Entries):
            return None
        out = np.empty(len(self.cells))
        entry_covariances(self.cells, self.values, np.ascontiguousarray(matrix), other.cells, other.values, out)
        return out

    def combined(self, matrix: Array) -> Array:
        out = np.zeros((len(self.cells), matrix.shape[1]))
        row_combinations(self.cells, self.values, np.ascontiguousarray(matrix), out)
        return out

    def some(self, rows: NDArray[np.int64]) -> Array:
        full = np.zeros((len(rows), self.q))
        np.add.at(full, (np.arange(len(rows))[:, None], self.cells[rows]), self.values[rows])
        return full


class _Parted(Coefficients):
    """Coefficients as a dense array, except for rows with few entries, for example factors of single effects."""

    def __init__(self, sparse: NDArray[np.bool_], full: _Full, entries: Entries) -> None:
        self._rows = np.flatnonzero(~sparse), np.flatnonzero(sparse)
        self._parts = full, entries
        self._sparse, self._place = sparse, np.where(sparse, np.cumsum(sparse), np.cumsum(~sparse)) - 1
        # Last weights and JᵀwJ of the full rows. They are reused if only weights of sparse rows change.
        self._last: tuple[Array, Array] | None = None

    def _joined(self, parts: Iterator[Array]) -> Array:
        full, entries = parts
        found = np.empty((len(self._sparse), *full.shape[1:]))
        for rows, own in zip(self._rows, (full, entries), strict=True):
            found[rows] = own
        return found

    def gram(self, weights: Array) -> Array:
        full, entries = (weights[rows] for rows in self._rows)
        if (last := self._last) is None or not np.array_equal(last[0], full):
            last = self._last = full, self._parts[0].gram(full)
        return last[1] + self._parts[1].gram(entries)

    def products(self, numbers: Array) -> Array:
        return self._joined(part.products(numbers) for part in self._parts)

    def sums(self, weights: Array) -> Array:
        full, entries = (part.sums(weights[rows]) for rows, part in zip(self._rows, self._parts, strict=True))
        return full + entries

    def variances(self, root: Array) -> Array:
        return self._joined(part.variances(root) for part in self._parts)

    def combined(self, matrix: Array) -> Array:
        return self._joined(part.combined(matrix) for part in self._parts)

    def some(self, rows: NDArray[np.int64]) -> Array:
        chosen, place = self._sparse[rows], self._place[rows]
        full, entries = (part.some(place[own]) for part, own in zip(self._parts, (~chosen, chosen), strict=True))
        found = np.empty((len(place), full.shape[1]))
        found[~chosen], found[chosen] = full, entries
        return found


class Composed(Coefficients):
    """Coefficients J = A B with constant rows A (n, r) and a small B (r, q). Derivatives are with respect to B."""

    def __init__(self, rows: Coefficients, root: Array) -> None:
        self._rows, self._root = rows, root
        self.functions = rows.functions

    def gram(self, weights: Array) -> Array:
        return np.asarray(self._root.T @ self._symmetric(weights) @ self._root)

    def coupled_gram(self, precisions: SitePrecisions) -> Array:
        return np.asarray(self._root.T @ self._rows.coupled_gram(precisions) @ self._root)

    def covariances(self, root: Array) -> Array:
        return self._rows.covariances(root @ self._root.T)

    def coupled_weighted(self, precisions: SitePrecisions, matrix: Array) -> Array:
        return np.asarray(self._rows.coupled_gram(precisions) @ (self._root @ matrix))

    def _symmetric(self, weights: Array) -> Array:
        lower = np.tril(self._rows.gram(weights))
        return np.asarray(lower + np.tril(lower, -1).T)

    def products(self, numbers: Array) -> Array:
        return self._rows.products(self._root @ numbers)

    def sums(self, weights: Array) -> Array:
        return np.asarray(self._root.T @ self._rows.sums(weights))

    def variances(self, root: Array) -> Array:
        return self._rows.variances(root @ self._root.T)

    def combined(self, matrix: Array) -> Array:
        return self._rows.combined(self._root @ matrix)

    def some(self, rows: NDArray[np.int64]) -> Array:
        return np.asarray(self._rows.some(rows) @ self._root)

    def outer(self, left: Array, right: Array) -> Array:
        return np.outer(self._rows.sums(left), right)

    def weighted(self, weights: Array, matrix: Array) -> Array:
        gram = self._symmetric(np.maximum(weights, 0.0)) - self._symmetric(np.maximum(-weights, 0.0))
        return np.asarray(gram @ (self._root @ matrix))


def from_entries(cells: NDArray[np.int64], values: Array, q: int) -> Coefficients:
    """Return coefficients from entries (n, k) in ascending order; as a dense array if rows have many entries."""
    if cells.shape[1] <= min(_MOST_ENTRIES, _SHARE * q):
        return Entries(np.ascontiguousarray(cells), np.ascontiguousarray(values), q)
    full = np.zeros((len(cells), q))
    np.add.at(full, (np.arange(len(cells))[:, None], cells), values)
    return coefficients(full)


def coefficients(j: Array) -> Coefficients:
    """Return coefficients from an array (n, q). If many rows have few entries, these rows are stored as entries."""
    there = j != 0.0
    counts = there.sum(axis=1)
    sparse = counts <= min(_MOST_ENTRIES, _SHARE * j.shape[1])
    if sparse.all():
        return _entries(j, there, int(counts.max(initial=0)))
    few = int(sparse.sum())
    if few < _WORTH * len(j):
        return _Full(j)
    most = int(counts[sparse].max())
    return _Parted(sparse, _Full(np.ascontiguousarray(j[~sparse])), _entries(j[sparse], there[sparse], most))


def _entries(j: Array, there: NDArray[np.bool_], most: int) -> Entries:
    """Return rows (n, q) as sparse entries. `there` is the mask of entries, of which each row has at most `most`."""
    rows, columns = np.nonzero(there)
    place = np.arange(rows.size) - np.searchsorted(rows, np.arange(len(j)))[rows]
    cells, values = np.zeros((len(j), max(most, 1)), dtype=np.int64), np.zeros((len(j), max(most, 1)))
    cells[rows, place], values[rows, place] = columns, j[rows, columns]
    return Entries(cells, values, j.shape[1])


class OwnRows(NamedTuple):
    """Rows of one function, with its nonzero columns only."""

    rows: Coefficients
    """Coefficients J in the nonzero columns, (n, s)."""
    columns: NDArray[np.int64]
    """Ascending positions (s,) of the nonzero columns among all columns."""


class FunctionRows(Coefficients):
    """Coefficients (cn, q) of c functions at n points. Each function stores only its nonzero columns."""

    def __init__(self, own: Sequence[OwnRows], q: int) -> None:
        self._own, self._q = list(own), q
        self.functions = len(self._own)
        self._n = len(self._own[0].rows.products(np.zeros(len(self._own[0].columns))))

    def gram(self, weights: Array) -> Array:
        gram = np.zeros((self._q, self._q))
        for (rows, columns), w in zip(self._own, self._split(weights), strict=True):
            gram[np.ix_(columns, columns)] += np.tril(rows.gram(w))
        return gram

    def coupled_gram(self, precisions: SitePrecisions) -> Array:
        gram = np.zeros((self._q, self._q))
        for k, (rows, columns) in enumerate(self._own):
            for other, (others, its) in enumerate(self._own[:k]):
                if (block := precisions.block(k, other)) is not None:
                    between = rows.between(block, others)
                    gram[np.ix_(columns, its)] += between
                    gram[np.ix_(its, columns)] += between.T
            if (block := precisions.block(k, k)) is not None:
                lower = np.tril(rows.gram(block))
                gram[np.ix_(columns, columns)] += lower + np.tril(lower, -1).T
        return gram

    def products(self, numbers: Array) -> Array:
        return np.concatenate([rows.products(numbers[columns]) for rows, columns in self._own])

    def sums(self, weights: Array) -> Array:
        found = np.zeros(self._q)
        for (rows, columns), w in zip(self._own, self._split(weights), strict=True):
            found[columns] += rows.sums(w)
        return found

    def variances(self, root: Array) -> Array:
        return np.concatenate([rows.variances(root[:, columns]) for rows, columns in self._own])

    def covariances(self, root: Array) -> Array:
        c, matrix = self.functions, root.T @ root
        found = np.empty((self._n, c, c))
        left: list[tuple[int, int]] = []
        for k, (rows, columns) in enumerate(self._own):
            found[:, k, k] = rows.variances(root[:, columns])
            for other, (others, its) in enumerate(self._own[:k]):
                between = rows.covariances_with(matrix[np.ix_(columns, its)], others)
                if between is None:
                    left.append((k, other))
                else:
                    found[:, k, other] = found[:, other, k] = between
        if left:
            for some in blocks_of_rows(self._n, self.functions * len(root)):
                places = np.arange(some.start, some.stop)
                halves = [rows.some(places) @ root[:, columns].T for rows, columns in self._own]
                for k, other in left:
                    between = np.einsum("ij,ij->i", halves[k], halves[other])
                    found[some, k, other] = found[some, other, k] = between
        return found

    def combined(self, matrix: Array) -> Array:
        return np.concatenate([rows.combined(matrix[columns]) for rows, columns in self._own])

    def some(self, rows: NDArray[np.int64]) -> Array:
        function, place = np.divmod(np.asarray(rows), self._n)
        found = np.zeros((len(function), self._q))
        for k, (own, columns) in enumerate(self._own):
            here = np.flatnonzero(function == k)
            found[np.ix_(here, columns)] = own.some(place[here])
        return found

    def _split(self, weights: Array) -> Array:
        return weights.reshape(self.functions, self._n)


def rows_of_functions(j: Array) -> Coefficients:
    """Return coefficients from an array (c, n, q). Rows with few entries are stored as entries."""
    if len(j) == 1:
        return coefficients(j[0])
    found = []
    for own in j:
        columns = _columns(np.flatnonzero((own != 0.0).any(axis=0)))
        found.append(OwnRows(coefficients(np.ascontiguousarray(own[:, columns])), columns))
    return FunctionRows(found, j.shape[2])


def rows_from_entries(entries: Sequence[tuple[NDArray[np.int64], Array]], q: int) -> Coefficients:
    """Return coefficients from entries (n, k) of each function in ascending order; dense if rows have many."""
    if len(entries) == 1:
        return from_entries(*entries[0], q)
    found = []
    for cells, values in entries:
        there = values != 0.0
        columns = _columns(np.unique(cells[there]))
        places = np.where(there, np.searchsorted(columns, cells), 0)
        found.append(OwnRows(from_entries(places, values, len(columns)), columns))
    return FunctionRows(found, q)


def _columns(found: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the nonzero columns of a function; column 0 if all columns are zero."""
    return found if found.size else np.zeros(1, np.int64)
