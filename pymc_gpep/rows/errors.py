"""What is wrong with a row, and where that row is."""

from collections.abc import Sequence
from typing import Any

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
