"""Record of the rows of a fit. The file of the fit stores this record, not the rows."""

import hashlib
from typing import NamedTuple

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.rows.rows import Rows

_LOOKED_AT = 16  # A checksum uses this number of rows.


def fingerprint(rows: Rows) -> str:
    """Return a checksum of the number of rows and of a sample of rows. The sample has the first and the last row."""
    found = hashlib.sha256(f"{rows.n_rows}, {rows.n_inputs}".encode())
    for row in np.unique(np.linspace(0, rows.n_rows - 1, _LOOKED_AT).astype(np.int64)):
        here = slice(int(row), int(row) + 1)
        found.update(np.ascontiguousarray(rows.inputs(here), "<f8").tobytes())
        found.update(rows.labels(here).astype("<i8").tobytes())
    return found.hexdigest()


class FormerRows(NamedTuple):
    """Record of the rows of a fit. Values of the rows are not in the file of the fit.

    `checksum` is the `fingerprint` of the rows, and `name` their former location.
    """

    n_rows: int
    n_inputs: int
    checksum: str
    name: str = ""

    @classmethod
    def of(cls, rows: Rows) -> "FormerRows":
        """Return the record of `rows`."""
        if isinstance(rows, cls):
            return rows
        return cls(rows.n_rows, rows.n_inputs, fingerprint(rows), getattr(rows, "name", ""))

    @property
    def chunk(self) -> int:
        """Number of rows in a chunk. It is not used, since the rows cannot be read."""
        return 1

    def inputs(self, rows: slice) -> Array:
        """Raise an error: the rows are not available."""
        raise self._absent()

    def labels(self, rows: slice) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Raise an error: the rows are not available."""
        raise self._absent()

    def _absent(self) -> ValueError:
        where = f" They were read from {self.name}." if self.name else ""
        return ValueError(
            f"The {self.n_rows} rows of this fit came from data=..., but the file of the fit has no rows.{where}"
        )
