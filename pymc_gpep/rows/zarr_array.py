"""Arrays in a Zarr store."""

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray


class ZarrArray:
    """A `zarr.Array`, read by its chunks, or its shards where it has them."""

    def __init__(self, array: Any) -> None:
        self._array = array
        self.shape: tuple[int, ...] = tuple(array.shape)
        self.chunk = int((getattr(array, "shards", None) or array.chunks)[0])
        self.name = "/".join(part for part in (str(array.store), str(array.path)) if part)

    @classmethod
    def of(cls, array: Any) -> Self | None:
        """Return None for an array that is not Zarr's."""
        kind = type(array)
        return cls(array) if kind.__module__.split(".")[0] == "zarr" and kind.__name__ == "Array" else None

    def read(self, rows: slice) -> NDArray[Any]:
        """The values of rows start to stop."""
        return np.asarray(self._array[rows])
