"""Rows that are arrays in memory."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pymc_gpep.array_types import Array

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
        If shapes do not agree, if there are no rows, or if inputs are not finite or labels no whole numbers.
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
        if (bad := ~np.isfinite(self._inputs).all(axis=1)).any():
            raise ValueError(
                f"inputs must be finite, but {np.count_nonzero(bad)} of {len(bad)} rows have values that are not; the "
                f"first is row {int(np.flatnonzero(bad)[0])}."
            )
        if observed.dtype.kind not in "biuf":
            raise TypeError(
                f"labels must be whole numbers 0 ... c−1, but are of type {observed.dtype}. Code them, for example "
                "with pandas.factorize(labels, sort=True)."
            )
        self._labels: NDArray[np.int64] = observed.astype(np.int64)
        if (wrong := self._labels != observed).any():
            raise ValueError(
                f"labels must be whole numbers, but {np.count_nonzero(wrong)} are not; the first is row "
                f"{int(np.flatnonzero(wrong)[0])}."
            )

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
