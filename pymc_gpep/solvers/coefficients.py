"""Rows of coefficients J (n, q), in full or by their entries, and what is computed of them for n rows at a time."""

from abc import ABC, abstractmethod

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
from pymc_gpep.solvers.site_precisions import SitePrecisions

_FEW = 40  # entries of a row, up to which loops over them are faster than products of matrices
_SHARE = 0.25  # of all, at most


class Coefficients(ABC):
    """Rows J (n, q); of c functions (cn, q), those of one function after those of another."""

    functions: int = 1
    """Number of functions, c."""

    @abstractmethod
    def gram(self, weights: Array) -> Array:
        """Return JᵀwJ (q, q), whose lower triangle counts, of w (n,)."""

    @abstractmethod
    def products(self, numbers: Array) -> Array:
        """Return J v (n,), of v (q,)."""

    @abstractmethod
    def sums(self, weights: Array) -> Array:
        """Return Jᵀ w (q,), of w (n,)."""

    @abstractmethod
    def variances(self, root: Array) -> Array:
        """Return the diagonal (n,) of J RᵀR Jᵀ, of R (p, q)."""

    @abstractmethod
    def combined(self, matrix: Array) -> Array:
        """Return J S (n, p), of S (q, p)."""

    @abstractmethod
    def some(self, rows: NDArray[np.int64]) -> Array:
        """Return J at some rows, (s, q)."""

    def coupled_gram(self, precisions: SitePrecisions) -> Array:
        """Return JᵀΠJ (q, q), with blocks of Π over the functions of a point."""
        block = precisions.block(0, 0)
        assert block is not None
        lower = np.tril(self.gram(block))
        return lower + np.tril(lower, -1).T

    def covariances(self, root: Array) -> Array:
        """Return the blocks (n, c, c) of J RᵀR Jᵀ over the functions of a point, of R (p, q)."""
        return self.variances(root)[:, None, None]

    def between(self, weights: Array, other: "Coefficients") -> Array:
        """Return JᵀwK (q, q′), of rows J and K of two functions and w (n,)."""
        every = np.arange(len(weights))
        return np.asarray(self.some(every).T @ (weights[:, None] * other.some(every)))

    def covariances_with(self, matrix: Array, other: "Coefficients") -> Array | None:
        """Return the diagonal (n,) of J S Kᵀ, of rows J and K of two functions and S (q, q′).

        None where half matrices are faster.
        """
        return None

    def outer(self, left: Array, right: Array) -> Array:
        """Return the derivative of lᵀ J r in what J is made of, with l (n,) and r (q,)."""
        return np.outer(left, right)

    def weighted(self, weights: Array, matrix: Array) -> Array:
        """Return the derivative of ½ tr(S JᵀwJ) in what J is made of, with w (n,) and a symmetric S (q, q)."""
        found = self.combined(matrix)
        found *= weights[:, None]
        return found

    def coupled_weighted(self, precisions: SitePrecisions, matrix: Array) -> Array:
        """Return the derivative of ½ tr(S JᵀΠJ) in what J is made of, with a symmetric S (q, q)."""
        found = self.combined(matrix)
        by_function = found.reshape(self.functions, -1, found.shape[1])
        for column in range(found.shape[1]):
            by_function[:, :, column] = precisions.times(by_function[:, :, column])
        return found


class _Full(Coefficients):
    """All of J."""

    def __init__(self, j: Array) -> None:
        self._j = j

    def gram(self, weights: Array) -> Array:
        scaled = np.sqrt(np.abs(weights))[:, None] * self._j
        # The transpose of a C-ordered array is what BLAS takes without a copy.
        gram = np.asarray(dsyrk(1.0, scaled.T, lower=1))
        if (negative := weights < 0.0).any():
            gram -= 2.0 * dsyrk(1.0, scaled[negative].T, lower=1)
        return gram

    def products(self, numbers: Array) -> Array:
        return np.asarray(self._j @ numbers)

    def sums(self, weights: Array) -> Array:
        return np.asarray(self._j.T @ weights)

    def variances(self, root: Array) -> Array:
        half = self._j @ root.T
        return np.einsum("ij,ij->i", half, half)

    def combined(self, matrix: Array) -> Array:
        return np.asarray(self._j @ matrix)

    def some(self, rows: NDArray[np.int64]) -> Array:
        return self._j[rows]


class Entries(Coefficients):
    """Entries that are not 0, see `pymc_gpep.kernels.gaussians.sparse_rows`."""

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


class Composed(Coefficients):
    """J = A B, with rows A (n, r) that never change and the small B (r, q) that J is made of."""

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
    """Make coefficients of entries (n, k) in ascending order, in full where rows have many of them."""
    if cells.shape[1] <= min(_FEW, _SHARE * q):
        return Entries(np.ascontiguousarray(cells), np.ascontiguousarray(values), q)
    full = np.zeros((len(cells), q))
    np.add.at(full, (np.arange(len(cells))[:, None], cells), values)
    return _Full(full)


def coefficients(j: Array) -> Coefficients:
    """Make coefficients of an array (n, q), by entries where rows have few of them."""
    there = j != 0.0
    most = int(there.sum(axis=1).max(initial=0))
    if most > min(_FEW, _SHARE * j.shape[1]):
        return _Full(j)
    rows, columns = np.nonzero(there)
    place = np.arange(rows.size) - np.searchsorted(rows, np.arange(len(j)))[rows]
    cells, values = np.zeros((len(j), max(most, 1)), dtype=np.int64), np.zeros((len(j), max(most, 1)))
    cells[rows, place], values[rows, place] = columns, j[rows, columns]
    return Entries(cells, values, j.shape[1])
