"""The contract of rows that a fit reads in small batches or chunks, and errors that name a row."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pymc_gpep.array_types import Array


class RowError(ValueError):
    """A row that cannot be used, found while rows are read.

    Attributes
    ----------
    row : int
        Number of the row, counted from 0.
    fit : Fit or None
        Fit as far as it was learned when the row was met; None if nothing was learned.

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
    """Raise a RowError if inputs (B, d) are not finite, of rows that are counted from `begin` on."""
    bad = ~np.isfinite(inputs)
    if bad.any():
        row, at = np.argwhere(bad)[0]
        column = repr(columns[at]) if columns else at
        raise RowError(
            f"has {inputs[row, at]} in column {column}, but inputs must be finite. Leave such rows out, of the labels "
            "as well.",
            begin + int(row),
            name,
        )


def whole_labels(labels: NDArray[Any], begin: int = 0, name: str = "") -> NDArray[np.int64]:
    """Return labels (B,) as whole numbers, for rows with numbers from `begin` on.

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

    Code that takes them in another order reads whole chunks, rows [i · chunk, (i + 1) · chunk), and reorders these in
    memory. So whole chunks are read often, other slices rarely.
    """

    @property
    def n_rows(self) -> int:
        """Number of rows, n."""

    @property
    def n_inputs(self) -> int:
        """Columns of the inputs, d."""

    @property
    def chunk(self) -> int:
        """Number of rows that are cheap to read together, and fit into memory several times; n if all rows do."""

    def inputs(self, rows: slice) -> Array:
        """Inputs (B, d) of rows start to stop, step 1. They must not be modified."""

    def labels(self, rows: slice) -> NDArray[np.int64]:
        """Observations of the rows, (B,)."""


def chunks(rows: Rows) -> Iterator[slice]:
    """The chunks of some rows, in their order."""
    n, size = rows.n_rows, rows.chunk
    return (slice(start, min(start + size, n)) for start in range(0, n, size))


def column_deviations(rows: Rows) -> Array:
    """Standard deviations of the columns of the inputs (d,), in one pass.

    Means and sums of squares are joined as in Chan, Golub and LeVeque (1983, Am. Stat. 37): means far from 0 lose no
    digits.
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
    """Return inputs (count, d) of rows drawn without replacement; all rows in order if `count` is not smaller."""
    return inputs_at(rows, sample_numbers(rows.n_rows, count, rng))


def sample_numbers(n: int, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the indices of the sampled rows among n, (count,) or (n,)."""
    return np.arange(n) if count >= n else rng.choice(n, count, replace=False)


def inputs_at(rows: Rows, wanted: NDArray[np.int64]) -> Array:
    """Inputs of some rows, in the order of their indices."""
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
