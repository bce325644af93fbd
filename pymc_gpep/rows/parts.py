"""Some rows of others, as those of one part of many, and rows with the first columns alone."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.rows.in_memory import InMemory
from pymc_gpep.rows.rows import Rows


class FirstColumns:
    """Rows with fewer inputs.

    Parameters
    ----------
    rows : Rows
    n_inputs : int
        Number of columns to keep.
    check : function
        Function of inputs (B, d) with all columns, and the number of the first row. It raises a `RowError` for a row
        that cannot be used. All inputs are given to it as they are read.
    """

    def __init__(self, rows: Rows, n_inputs: int, check: Callable[[Array, int], None]) -> None:
        self._rows, self._check = rows, check
        self.n_inputs = n_inputs
        self.n_rows, self.chunk = rows.n_rows, rows.chunk

    def inputs(self, rows: slice) -> Array:
        """Inputs (B, n_inputs)."""
        found = self._rows.inputs(rows)
        self._check(found, rows.start + int(getattr(self._rows, "first", 0)))
        return found[:, : self.n_inputs]

    def labels(self, rows: slice) -> NDArray[np.int64]:
        """Observations there, (B,)."""
        return self._rows.labels(rows)


class RowRange:
    """Rows that follow one another.

    Parameters
    ----------
    rows : Rows
    between : slice
        Which of them, start to stop.
    first : int, optional
        Number of its first row in messages, if not the first of `between`.
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
        """Inputs (B, d)."""
        return self._rows.inputs(slice(self._start + rows.start, self._start + rows.stop))

    def labels(self, rows: slice) -> NDArray[np.int64]:
        """Observations there, (B,)."""
        return self._rows.labels(slice(self._start + rows.start, self._start + rows.stop))


def rows_between(rows: Rows, between: slice) -> RowRange:
    """Some rows, and nothing of the others: of what is in memory a copy is kept."""
    if not isinstance(rows, InMemory):
        return RowRange(rows, between)
    own = InMemory(rows.inputs(between).copy(), rows.labels(between).copy())
    return RowRange(own, slice(0, own.n_rows), between.start)
