"""The interface of arrays that are not in memory, from which rows are read."""

from typing import Any, Protocol

from numpy.typing import NDArray

ENTRIES = 250_000
"""Numbers that are read together where nothing else says how many: 2 MB, of which batches hold some at a time."""


class StoredArrays(Protocol):
    """An array (n,) or (n, d) that is read by slices of its rows.

    One file for each kind. A kind that says nothing of where it is read from in a pickle cannot be sent to others.
    """

    @property
    def name(self) -> str:
        """File, or whatever tells a user where it is; empty if nothing does."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(n,) or (n, d)."""

    @property
    def chunk(self) -> int:
        """Rows that are read as cheaply as any of them alone; 1 where that is any slice."""

    def read(self, rows: slice) -> NDArray[Any]:
        """The values of rows start to stop, step 1."""


class StoredKind(Protocol):
    """A kind of arrays that are not in memory."""

    def of(self, array: Any) -> StoredArrays | None:
        """Return an array as one of this kind; None if it is of another."""


def rows_together(stored: int, columns: int) -> int:
    """Rows to read at a time, a multiple of those that are stored together."""
    return stored * max(1, ENTRIES // (stored * max(columns, 1)))
