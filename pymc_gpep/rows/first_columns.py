"""Rows whose inputs are the first columns of those of other rows."""

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.rows.rows import Rows

__all__ = ["FirstColumns"]


class FirstColumns:
    """Rows with fewer inputs.

    Parameters
    ----------
    rows : Rows
    n_inputs : int
        Number of columns to keep.
    """

    def __init__(self, rows: Rows, n_inputs: int) -> None:
        self._rows = rows
        self.n_inputs = n_inputs
        self.n_rows, self.chunk = rows.n_rows, rows.chunk

    def inputs(self, rows: slice) -> Array:
        """Inputs (B, n_inputs)."""
        return self._rows.inputs(rows)[:, : self.n_inputs]

    def labels(self, rows: slice) -> NDArray[np.int64]:
        """Observations there, (B,)."""
        return self._rows.labels(rows)
