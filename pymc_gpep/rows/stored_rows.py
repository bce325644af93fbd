"""The contract of arrays in storage, and the rows that are read from them."""

from collections.abc import Callable
from math import lcm
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.rows.rows import check_finite, whole_labels

ENTRIES = 250_000
"""Default number of values in one read, 2 MB. Batches keep several reads in memory."""


class StoredArrays(Protocol):
    """An array (n,) or (n, d) that is read by slices of its rows.

    Each kind of storage has a file of its own. Other processes can read the rows only if a pickle contains their place.
    """

    @property
    def name(self) -> str:
        """Path of the file, for messages; empty if the rows are in memory."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(n,) or (n, d)."""

    @property
    def chunk(self) -> int:
        """Number of rows that storage reads together; 1 if reading a slice costs no more than its rows."""

    def read(self, rows: slice) -> NDArray[Any]:
        """The values of rows start to stop, step 1."""


class StoredKind(Protocol):
    """A kind of arrays that are not in memory."""

    def of(self, array: Any) -> StoredArrays | None:
        """Return an array as one of this kind; None if it is of another."""


def rows_together(stored: int, columns: int) -> int:
    """Rows to read at a time, a multiple of those that are stored together."""
    return stored * max(1, ENTRIES // (stored * max(columns, 1)))


class StoredRows:
    """Inputs and labels that are stored somewhere.

    Parameters
    ----------
    inputs : StoredArrays
        Inputs, of shape (n, d).
    labels : StoredArrays
        Labels, of shape (n,).

    Raises
    ------
    ValueError
        If shapes do not agree, or if there are no rows. Reading raises a `RowError` where inputs are not finite or
        labels are not whole numbers.
    """

    def __init__(self, inputs: StoredArrays, labels: StoredArrays) -> None:
        if len(inputs.shape) != 2 or labels.shape != inputs.shape[:1] or not inputs.shape[0]:
            raise ValueError(
                "Inputs must be (n, d) and labels (n,) with n > 0, but these have the shapes "
                f"{inputs.shape} and {labels.shape}."
            )
        self.n_rows, self.n_inputs = inputs.shape
        self.chunk = min(self.n_rows, rows_together(_together(inputs, labels), self.n_inputs))
        self._inputs, self._labels = _ByChunks(inputs), _ByChunks(labels)

    @property
    def name(self) -> str:
        """Where the inputs are stored; empty if nothing says it."""
        return self._inputs.stored.name

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of the inputs; none where they have no names."""
        return tuple(getattr(self._inputs.stored, "columns", ()))

    def inputs(self, rows: slice) -> Array:
        """Inputs (B, d) of rows start to stop."""
        values: Array = np.asarray(self._inputs.read(rows), dtype=np.float64)
        check_finite(values, self.columns, rows.start, self.name)
        return values

    def labels(self, rows: slice) -> NDArray[np.int64]:
        """Observations there, (B,)."""
        return whole_labels(self._labels.read(rows), rows.start, self.label_name)

    @property
    def label_name(self) -> str:
        """Where the labels are stored; empty if nothing says it."""
        return self._labels.stored.name


class _ByChunks:
    """Keeps the chunk that was read last: who reads in other steps would read it again and again."""

    def __init__(self, stored: StoredArrays) -> None:
        self.stored = stored
        self._step = stored.chunk
        self._last: tuple[int, NDArray[Any]] | None = None

    def read(self, rows: slice) -> NDArray[Any]:
        step, n = self._step, self.stored.shape[0]
        if step == 1 or rows.start >= rows.stop or _is_whole(rows, step, n):
            return self.stored.read(rows)
        parts = []
        for begin in range(rows.start - rows.start % step, rows.stop, step):
            chunk = slice(max(rows.start - begin, 0), min(rows.stop - begin, step))
            parts.append(self._chunk(begin)[chunk])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _chunk(self, begin: int) -> NDArray[Any]:
        last = self._last
        if last is None or last[0] != begin:
            last = begin, self.stored.read(slice(begin, min(begin + self._step, self.stored.shape[0])))
            self._last = last
        return last[1]

    def __reduce__(self) -> tuple[Callable[..., "_ByChunks"], tuple[StoredArrays]]:
        return type(self), (self.stored,)


def _is_whole(rows: slice, step: int, n: int) -> bool:
    return rows.start % step == 0 and (rows.stop % step == 0 or rows.stop == n)


def _together(inputs: StoredArrays, labels: StoredArrays) -> int:
    """Rows that both have in whole chunks; those of the inputs where that would be too many."""
    both = lcm(inputs.chunk, labels.chunk)
    return both if both * inputs.shape[1] <= ENTRIES else inputs.chunk
