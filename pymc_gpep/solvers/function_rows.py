"""Rows of coefficients of several functions, those of one function after those of another."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.solvers.coefficients import Coefficients, coefficients, from_entries
from pymc_gpep.solvers.site_precisions import SitePrecisions

_NUMBERS = 4_000_000  # held of some rows at a time, 32 MB


class OwnRows(NamedTuple):
    """The rows of one function."""

    rows: Coefficients
    """J, (n, s)."""
    columns: NDArray[np.int64]
    """Places (s,) of its columns among those of all functions, ascending."""


class FunctionRows(Coefficients):
    """Rows J (cn, q) of c functions at n points, of which each function has columns that are not 0."""

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
            for some in self._blocks(len(root)):
                places = np.arange(some.start, some.stop)
                halves = [rows.some(places) @ root[:, columns].T for rows, columns in self._own]
                for k, other in left:
                    between = np.einsum("ij,ij->i", halves[k], halves[other])
                    found[some, k, other] = found[some, other, k] = between
        return found

    def _blocks(self, size: int) -> Iterator[slice]:
        step = max(1, _NUMBERS // max(self.functions * size, 1))
        for start in range(0, self._n, step):
            yield slice(start, min(start + step, self._n))

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
    """Make coefficients of an array (c, n, q), by entries where rows have few of them."""
    if len(j) == 1:
        return coefficients(j[0])
    found = []
    for own in j:
        columns = _columns(np.flatnonzero((own != 0.0).any(axis=0)))
        found.append(OwnRows(coefficients(np.ascontiguousarray(own[:, columns])), columns))
    return FunctionRows(found, j.shape[2])


def rows_from_entries(entries: Sequence[tuple[NDArray[np.int64], Array]], q: int) -> Coefficients:
    """Make coefficients of entries (n, k) of each function in ascending order, in full where rows have many."""
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
    """Columns of a function; a function that is 0 has one, too."""
    return found if found.size else np.zeros(1, np.int64)
