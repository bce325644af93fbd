"""The protocol of rows that a fit reads in batches or chunks, and errors for invalid rows."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pymc_gpep.array_types import Array


class RowError(ValueError):
    """Error for an invalid row. It is raised while rows are read.

    Attributes
    ----------
    row : int
        Number of the row, counted from 0.
    fit : Fit or None
        The fit before the step that read this row; None before the first step.

    Examples
    --------
    >>> try:
    ...     with model:
    ...         pm.fit(20, method="sparse_ep", batch_size=10, data=(X, y - 1))
    ... except gpep.RowError as error:
    ...     print(error.row)
    """

    def __init__(self, what: str, row: int, name: str = "") -> None:
        super().__init__(f"{f'{name}: ' if name else ''}row {row} {what}")
        self.row = row
        self.fit: Any = None


def check_finite(inputs: Array, columns: Sequence[str] = (), begin: int = 0, name: str = "") -> None:
    """Raise a RowError if inputs (B, d) are not finite. `begin` is the number of the first of these rows."""
    bad = ~np.isfinite(inputs)
    if bad.any():
        row, at = np.argwhere(bad)[0]
        column = repr(columns[at]) if columns else at
        raise RowError(
            f"has {inputs[row, at]} in column {column}, but inputs must be finite. Remove such rows from inputs "
            "and labels.",
            begin + int(row),
            name,
        )


def whole_labels(labels: NDArray[Any], begin: int = 0, name: str = "") -> NDArray[np.int64]:
    """Check labels (B,) and return them as integers. `begin` is the number of the first of these rows.

    Raises
    ------
    TypeError
        If labels are not numbers.
    RowError
        If a label is not a whole number.
    """
    if labels.dtype.kind == "O" and (missing := np.asarray(pd.isna(labels))).any():
        raise RowError("has no label.", begin + int(np.flatnonzero(missing)[0]), name)
    if labels.dtype.kind not in "biuf":
        where = f"{name}: " if name else ""
        raise TypeError(
            f"{where}labels must be whole numbers 0 ... c−1, but are of type {labels.dtype}. Code them, for example "
            "with pandas.factorize(labels, sort=True)."
        )
    if labels.dtype.kind == "f" and (wrong := ~(np.isfinite(labels) & (labels == np.rint(labels)))).any():
        row = int(np.flatnonzero(wrong)[0])
        raise RowError(f"has the label {labels[row]}, which is not a whole number.", begin + row, name)
    return labels.astype(np.int64)


@runtime_checkable
class Rows(Protocol):
    """Inputs and labels of n rows, read by slices.

    If rows are needed in another order, whole chunks are read, rows [i · chunk, (i + 1) · chunk), and reordered in
    memory. Most reads are therefore whole chunks.
    """

    @property
    def n_rows(self) -> int:
        """Number of rows, n."""

    @property
    def n_inputs(self) -> int:
        """Number of columns of the inputs, d."""

    @property
    def chunk(self) -> int:
        """Number of rows in a chunk: rows that storage can read together in little time.

        Several chunks fit into memory. If all rows are in memory, the number is n.
        """

    def inputs(self, rows: slice) -> Array:
        """Return inputs (B, d) of a slice of rows with step 1. The caller must not modify the array."""

    def labels(self, rows: slice) -> NDArray[np.int64]:
        """Return labels (B,) of a slice of rows with step 1."""


def chunks(rows: Rows) -> Iterator[slice]:
    """Yield the slice of rows of each chunk, in order."""
    n, size = rows.n_rows, rows.chunk
    return (slice(start, min(start + size, n)) for start in range(0, n, size))


def column_deviations(rows: Rows) -> Array:
    """Return the standard deviation of each column of the inputs (d,), in one pass over the rows.

    Means and sums of squares of chunks are combined as in Chan, Golub and LeVeque (1983, Am. Stat. 37). This is
    accurate also if means are far from 0.
    """
    count, mean, squares = 0, np.zeros(rows.n_inputs), np.zeros(rows.n_inputs)
    for chunk in chunks(rows):
        x = rows.inputs(chunk)
        total = count + len(x)
        own = x.mean(axis=0)
        apart = own - mean
        squares += ((x - own) ** 2).sum(axis=0) + apart**2 * (count * len(x) / total)
        mean += apart * (len(x) / total)
        count = total
    return np.sqrt(squares / count)


def sample_inputs(rows: Rows, count: int, rng: np.random.Generator) -> Array:
    """Return inputs (count, d) of rows drawn without replacement; all rows in order if `count` ≥ n."""
    return inputs_at(rows, sample_numbers(rows.n_rows, count, rng))


def sample_numbers(n: int, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return indices (count,) drawn from n rows without replacement; all n indices if `count` ≥ n."""
    return np.arange(n) if count >= n else rng.choice(n, count, replace=False)


def inputs_at(rows: Rows, wanted: NDArray[np.int64]) -> Array:
    """Return the inputs of the rows with these indices, in the order of the indices."""
    found = np.empty((len(wanted), rows.n_inputs))
    order = np.argsort(wanted)
    ends = np.searchsorted(wanted[order], [chunk.stop for chunk in chunks(rows)])
    begin = 0
    for chunk, end in zip(chunks(rows), ends, strict=True):
        if end > begin:
            here = order[begin:end]
            found[here] = rows.inputs(chunk)[wanted[here] - chunk.start]
        begin = end
    return found
