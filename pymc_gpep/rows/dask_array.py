"""Arrays of Dask, computed where they are read."""

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray


class DaskArray:
    """A `dask.array.Array`, read by its chunks.

    Raises
    ------
    ValueError
        If it does not know how many rows it has.
    """

    def __init__(self, array: Any) -> None:
        lengths = array.chunks[0]
        if any(np.isnan(length) for length in lengths):
            raise ValueError(
                f"The dask array {array.name!r} does not know its number of rows. Call its compute_chunk_sizes() first."
            )
        self._array = array
        self.shape: tuple[int, ...] = tuple(int(length) for length in array.shape)
        self.chunk = int(max(lengths, default=1))
        self.name = f"the dask array {array.name!r}"

    @classmethod
    def of(cls, array: Any) -> Self | None:
        """Return None for an array that is not Dask's."""
        kind = type(array)
        return cls(array) if kind.__module__.startswith("dask.array") and hasattr(array, "dask") else None

    def read(self, rows: slice) -> NDArray[Any]:
        """The values of rows start to stop, computed in this thread: it may be one of a worker of Dask."""
        return np.asarray(self._array[rows].compute(scheduler="synchronous"))
