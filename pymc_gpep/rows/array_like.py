"""Arrays of other libraries that have a shape and a dtype and are read by slicing: HDF5 datasets and their like."""

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray


class ArrayLike:
    """Anything with shape, dtype and slices.

    Parameters
    ----------
    array : object
        With `shape` and `dtype`; NumPy makes an array of a slice of its rows. If it has `chunks`, a number for each
        axis as h5py has them, rows of a chunk are read together.
    """

    def __init__(self, array: Any) -> None:
        self._array = array
        self.shape: tuple[int, ...] = tuple(int(length) for length in array.shape)
        chunks = getattr(array, "chunks", None)
        self.chunk = int(chunks[0]) if chunks and isinstance(chunks[0], int | np.integer) else 1
        self.name = _name(array)

    @classmethod
    def of(cls, array: Any) -> Self | None:
        """Return None for an array without shape, dtype or slices."""
        known = all(hasattr(array, name) for name in ("shape", "dtype", "__getitem__"))
        return cls(array) if known else None

    def read(self, rows: slice) -> NDArray[Any]:
        """The values of rows start to stop."""
        return np.asarray(self._array[rows])

    def __reduce__(self) -> tuple[Any, ...]:
        """A dataset of h5py is opened again: it cannot be sent to another process."""
        if type(self._array).__module__.startswith("h5py."):
            return _open_again, (type(self._array.file), self._array.file.filename, self._array.name)
        return type(self), (self._array,)


def _open_again(opened: Any, filename: str, name: str) -> ArrayLike:
    return ArrayLike(opened(filename, "r")[name])


def _name(array: Any) -> str:
    filename = getattr(getattr(array, "file", None), "filename", None)
    return f"{filename}{array.name}" if filename else ""
