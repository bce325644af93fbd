"""Rows that are arrays in memory, ranges of other rows, and rows without their last columns."""

import hashlib
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.rows.rows import Rows, check_finite, whole_labels

_COPIED = 2**28  # Inputs are copied up to this number of bytes.
_LOOKED_AT = 64  # A checksum of inputs that are not copied uses this number of rows.


class InMemory:
    """Inputs and labels in memory.

    The arrays are copied, so that later changes of the arrays do not change a fit. Inputs of more than 256 MiB are not
    copied. If such inputs change later, `inputs` raises an error.

    Parameters
    ----------
    inputs : array (n, d)
        Inputs. The columns of a data frame keep their names.
    labels : array (n,)

    Attributes
    ----------
    columns : tuple of str
        Names of the columns of the inputs; empty if the columns have no names.

    Raises
    ------
    TypeError
        If labels are not numbers.
    ValueError
        If shapes do not agree, or if there are no rows.
    RowError
        If inputs are not finite or labels are not whole numbers.
    """

    def __init__(self, inputs: ArrayLike, labels: ArrayLike) -> None:
        self.columns: tuple[str, ...] = tuple(map(str, getattr(inputs, "columns", ())))
        self._inputs: Array = np.asarray(inputs, dtype=np.float64)
        if copied := self._inputs.nbytes <= _COPIED:
            self._inputs = np.array(self._inputs)
        observed = np.array(labels)
        if self._inputs.ndim != 2 or observed.shape != self._inputs.shape[:1] or not observed.size:
            raise ValueError(
                "inputs must be (n, d) and labels (n,) with n > 0, but these have the shapes "
                f"{self._inputs.shape} and {observed.shape}."
            )
        check_finite(self._inputs, self.columns)
        self._labels: NDArray[np.int64] = whole_labels(observed)
        self._checksum = None if copied else self._values()

    @property
    def n_rows(self) -> int:
        """Number of rows, n."""
        return len(self._inputs)

    @property
    def n_inputs(self) -> int:
        """Number of columns of the inputs, d."""
        return self._inputs.shape[1]

    @property
    def chunk(self) -> int:
        """Number of rows in a chunk: all rows, since they are in memory."""
        return self.n_rows

    def inputs(self, rows: slice) -> Array:
        """Return inputs (B, d) of a slice of rows, as a view.

        Raises
        ------
        ValueError
            If the array of inputs has changed since it was passed.
        """
        if self._checksum is not None and self._values() != self._checksum:
            raise ValueError(
                "The inputs of data=(inputs, labels) have changed in place since the fit. "
                "Undo the change, or fit again. A fit to data=(inputs.copy(), labels) is safe from such changes."
            )
        return self._inputs[rows]

    def _values(self) -> bytes:
        """Return a checksum of the inputs of a sample of rows. The sample has the first and the last row."""
        some = np.linspace(0, self.n_rows - 1, min(_LOOKED_AT, self.n_rows)).astype(np.int64)
        return hashlib.sha256(self._inputs[some].tobytes()).digest()

    def labels(self, rows: slice) -> NDArray[np.int64]:
        """Return labels (B,) of a slice of rows, as a view."""
        return self._labels[rows]


class FirstColumns:
    """Rows with the first columns of the inputs of other rows.

    Parameters
    ----------
    rows : Rows
    n_inputs : int
        Number of columns to keep.
    check : function
        Function of inputs (B, d) with all columns, and of the number of the first row. It checks all inputs that are
        read, and raises a `RowError` for an invalid row.
    """

    def __init__(self, rows: Rows, n_inputs: int, check: Callable[[Array, int], None]) -> None:
        self._rows, self._check = rows, check
        self.n_inputs = n_inputs
        self.n_rows, self.chunk = rows.n_rows, rows.chunk

    def inputs(self, rows: slice) -> Array:
        """Return inputs (B, n_inputs)."""
        found = self._rows.inputs(rows)
        self._check(found, rows.start + int(getattr(self._rows, "first", 0)))
        return found[:, : self.n_inputs]

    def labels(self, rows: slice) -> NDArray[np.int64]:
        """Return labels (B,)."""
        return self._rows.labels(rows)


class RowRange:
    """A range of consecutive rows of other rows.

    Parameters
    ----------
    rows : Rows
    between : slice
        The range, from start to stop.
    first : int, optional
        Number of the first row in messages; by default the start of the range.
    """

    def __init__(self, rows: Rows, between: slice, first: int | None = None) -> None:
        self._rows = rows
        self._start: int = between.start
        self.first = self._start if first is None else first
        self.n_rows: int = between.stop - between.start
        self.n_inputs = rows.n_inputs
        self.chunk = min(rows.chunk, self.n_rows)
        self.label_name = str(getattr(rows, "label_name", ""))

    def inputs(self, rows: slice) -> Array:
        """Return inputs (B, d)."""
        return self._rows.inputs(slice(self._start + rows.start, self._start + rows.stop))

    def labels(self, rows: slice) -> NDArray[np.int64]:
        """Return labels (B,)."""
        return self._rows.labels(slice(self._start + rows.start, self._start + rows.stop))


def rows_between(rows: Rows, between: slice) -> RowRange:
    """Return a range of rows. Rows in memory are copied, so that other rows need not stay in memory."""
    if not isinstance(rows, InMemory):
        return RowRange(rows, between)
    own = InMemory(rows.inputs(between).copy(), rows.labels(between).copy())
    return RowRange(own, slice(0, own.n_rows), between.start)
