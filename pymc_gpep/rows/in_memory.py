"""Rows that are arrays in memory."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.rows.errors import check_finite, whole_labels

__all__ = ["InMemory"]


class InMemory:
    """Inputs and labels as arrays.

    Parameters
    ----------
    inputs : array (n, d)
        A data frame has names of columns as well.
    labels : array (n,)

    Attributes
    ----------
    columns : tuple of str
        Names of the columns of the inputs; none where they have no names.

    Raises
    ------
    TypeError
        If labels are no numbers.
    ValueError
        If shapes do not agree, or if there are no rows.
    RowError
        If inputs are not finite or labels are not whole numbers.
    """

    def __init__(self, inputs: ArrayLike, labels: ArrayLike) -> None:
        self.columns: tuple[str, ...] = tuple(map(str, getattr(inputs, "columns", ())))
        self._inputs: Array = np.asarray(inputs, dtype=np.float64)
        observed = np.asarray(labels)
        if self._inputs.ndim != 2 or observed.shape != self._inputs.shape[:1] or not observed.size:
            raise ValueError(
                "inputs must be (n, d) and labels (n,) with n > 0, but these have the shapes "
                f"{self._inputs.shape} and {observed.shape}."
            )
        check_finite(self._inputs, self.columns)
        self._labels: NDArray[np.int64] = whole_labels(observed)

    @property
    def n_rows(self) -> int:
        """Number of rows, n."""
        return len(self._inputs)

    @property
    def n_inputs(self) -> int:
        """Columns of the inputs, d."""
        return self._inputs.shape[1]

    @property
    def chunk(self) -> int:
        """All rows: they are in memory."""
        return self.n_rows

    def inputs(self, rows: slice) -> Array:
        """Inputs (B, d), a view."""
        return self._inputs[rows]

    def labels(self, rows: slice) -> NDArray[np.int64]:
        """Observations there, (B,), a view."""
        return self._labels[rows]
