"""The contract of rows that a fit reads in small batches, and errors that name a row."""

from collections.abc import Sequence
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
    """Labels (B,) as whole numbers, of rows that are counted from `begin` on.

    Raises
    ------
    TypeError
        If they are no numbers.
    RowError
        If one is not whole.
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
    memory. So a slice that is a chunk is read often, and any other slice seldom.
    """

    @property
    def n_rows(self) -> int:
        """Number of rows, n."""

    @property
    def n_inputs(self) -> int:
        """Columns of the inputs, d."""

    @property
    def chunk(self) -> int:
        """Rows that are cheap to read together, and small enough to have several times in memory; n if all are."""

    def inputs(self, rows: slice) -> Array:
        """Inputs (B, d) of rows start to stop, step 1. Not to be written to."""

    def labels(self, rows: slice) -> NDArray[np.int64]:
        """Observations there, (B,)."""
