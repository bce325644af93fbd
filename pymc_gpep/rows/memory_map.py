"""Arrays in a file that NumPy maps into memory: `np.memmap`, and `np.load(..., mmap_mode="r")`."""

import mmap
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray


class MemoryMap(NamedTuple):
    """Where the rows of a map stand in its file, one after the other.

    They are read from there, and not through the map: what is touched of a map stays in memory until somebody else
    needs that.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int
    """Bytes before the first row."""
    chunk: int = 1

    @classmethod
    def of(cls, array: Any) -> Self | None:
        """A map as it stands in its file; None for what was written to the map alone, or has other strides."""
        if not isinstance(array, np.memmap) or not array.flags.c_contiguous or array.mode == "c":
            return None
        filename, mapped = array.filename, getattr(array, "_mmap", None)
        if filename is None or mapped is None:
            return None
        first = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY  # where the map begins
        offset = first + array.ctypes.data - np.frombuffer(mapped, np.uint8).ctypes.data
        return cls(str(Path(filename).resolve()), array.shape, array.dtype, int(offset))

    def read(self, rows: slice) -> NDArray[Any]:
        """The values of rows start to stop."""
        columns = self.shape[1:]
        width = int(np.prod(columns, dtype=np.int64))
        start = self.offset + rows.start * width * self.dtype.itemsize
        count = (rows.stop - rows.start) * width
        found = np.fromfile(self.name, self.dtype, count, offset=start)
        if found.size < count:
            raise ValueError(f"{self.name} has fewer rows than when it was opened: it ends before row {rows.stop - 1}.")
        return found.reshape(-1, *columns)
