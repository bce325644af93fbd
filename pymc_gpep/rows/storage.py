"""Kinds of storage that rows are read from: HDF5 and array-like objects, Dask, memory maps, Parquet, Zarr."""

import mmap
from collections.abc import Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, Self

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


def parquet_files(path: str | PathLike[str]) -> tuple[str, ...]:
    """The files of a data set: one, or those in a folder in the order of their names.

    Raises
    ------
    FileNotFoundError
        If there is no Parquet file at the path.
    """
    at = Path(path).resolve()
    files = sorted(str(file) for file in at.rglob("*.parquet")) if at.is_dir() else [str(at)]
    if not files or not Path(files[0]).exists():
        raise FileNotFoundError(f"There is no Parquet file at {at}.")
    return tuple(files)


def column_names(files: Sequence[str]) -> list[str]:
    """Names of the columns of the first of some files; a ValueError if that is no Parquet file."""
    return list(_open(files[0]).schema_arrow.names)


class ParquetColumns:
    """Columns of one or more files, which follow one another.

    Parameters
    ----------
    files : sequence of str
    columns : sequence of str
    flat : bool
        Whether the one column is an array (n,) and not (n, 1).
    """

    def __init__(self, files: Sequence[str], columns: Sequence[str], flat: bool = False) -> None:
        self._given = tuple(files), tuple(columns), flat
        self._files, self.columns, self._flat = self._given
        groups = [
            (place, group, metadata.row_group(group).num_rows)
            for place, file in enumerate(files)
            for metadata in (_open(file).metadata,)
            for group in range(metadata.num_row_groups)
        ]
        self._groups = [group for group in groups if group[2]]
        self._ends = np.cumsum([length for *_, length in self._groups], dtype=np.int64)
        n = int(self._ends[-1]) if len(self._ends) else 0
        self.shape: tuple[int, ...] = (n,) if flat else (n, len(columns))
        self.chunk = max((length for *_, length in self._groups), default=1)
        self.name = files[0] if len(files) == 1 else str(Path(files[0]).parent)

    @cached_property
    def _opened(self) -> dict[int, Any]:
        return {}

    def read(self, rows: slice) -> NDArray[Any]:
        """The values of rows start to stop."""
        first, last = np.searchsorted(self._ends, [rows.start, rows.stop - 1], side="right")
        parts = []
        for at in range(first, last + 1):
            begin = int(self._ends[at]) - self._groups[at][2]
            own = slice(max(rows.start - begin, 0), min(rows.stop, int(self._ends[at])) - begin)
            parts.append(self._group(at)[own])
        found = np.concatenate(parts)
        return found[:, 0] if self._flat else found

    def _group(self, at: int) -> NDArray[Any]:
        place, group, _ = self._groups[at]
        if place not in self._opened:
            self._opened.clear()  # one open file at a time
            self._opened[place] = _open(self._files[place])
        table = self._opened[place].read_row_group(group, columns=list(self.columns))
        return np.column_stack([self._numbers(table, name) for name in self.columns])

    def _numbers(self, table: Any, name: str) -> NDArray[Any]:
        values: NDArray[Any] = table.column(name).to_numpy()
        if values.dtype.kind not in "biuf":
            kind = table.schema.field(name).type
            if self._flat:
                raise TypeError(
                    f"{self.name}: column {name!r}, the labels, must be of whole numbers 0 ... c−1, but is {kind}. "
                    "Store such numbers in its place, for example those of pandas.factorize(labels, sort=True)."
                )
            raise TypeError(
                f"{self.name}: column {name!r} must be of numbers, but is {kind}. Leave it out with "
                "data=gpep.open_rows(path, label, columns=[...]), or store numbers in its place."
            )
        return values

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._given


def _open(file: str) -> Any:
    try:
        from pyarrow import ArrowInvalid
        from pyarrow.parquet import ParquetFile
    except ImportError as missing:
        raise ImportError('Parquet files are read by pyarrow: pip install "pymc-gpep[pyarrow]".') from missing
    try:
        return ParquetFile(file)
    except ArrowInvalid as error:
        raise ValueError(
            f"{file} is not a Parquet file, or is a damaged one: {str(error).rstrip('.')}. A single path in data must "
            'be that of a Parquet file or folder. For files of NumPy give both paths, data=("X.npy", "y.npy").'
        ) from None


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
