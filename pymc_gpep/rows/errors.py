"""What is wrong with a row, and where that row is."""

from typing import Any

__all__ = ["RowError"]


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
