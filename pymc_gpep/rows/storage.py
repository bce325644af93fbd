"""`gpep.open_rows`, and the storage that it reads: HDF5, Dask, memory maps, Parquet, Zarr."""

import mmap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property
from math import lcm
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.argument_types import did_you_mean
from pymc_gpep.array_types import Array
from pymc_gpep.rows.in_memory import InMemory
from pymc_gpep.rows.rows import Rows, check_finite, whole_labels


class ArrayLike:
    """Any array-like object with shape, dtype and slices.

    Parameters
    ----------
    array : object
        Object with `shape` and `dtype`. Its slices of rows convert to NumPy arrays. If it has `chunks`, a length for
        each axis as in h5py, the rows of a chunk are read together.
    """

    def __init__(self, array: Any) -> None:
        self._array = array
        self.shape: tuple[int, ...] = tuple(int(length) for length in array.shape)
        chunks = getattr(array, "chunks", None)
        self.chunk = int(chunks[0]) if chunks and isinstance(chunks[0], int | np.integer) else 1
        self.name = _name(array)

    @classmethod
    def of(cls, array: Any) -> Self | None:
        """Return an array in this form; None for an object without shape, dtype or slices."""
        known = all(hasattr(array, name) for name in ("shape", "dtype", "__getitem__"))
        return cls(array) if known else None

    def read(self, rows: slice) -> NDArray[Any]:
        """Return the values of a slice of rows."""
        with _damage(f"{self.name} is damaged") if self.name else nullcontext():
            return np.asarray(self._array[rows])

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the constructor and its arguments, for pickle. For a dataset of h5py, these open the file again."""
        if type(self._array).__module__.startswith("h5py."):
            return _open_again, (type(self._array.file), self._array.file.filename, self._array.name)
        return type(self), (self._array,)


def _open_again(opened: Any, filename: str, name: str) -> ArrayLike:
    return ArrayLike(opened(filename, "r")[name])


def _name(array: Any) -> str:
    filename = getattr(getattr(array, "file", None), "filename", None)
    return f"{filename}{array.name}" if filename else ""


class DaskArray:
    """A `dask.array.Array`, read chunk by chunk.

    Raises
    ------
    ValueError
        If the number of rows is unknown.
    """

    def __init__(self, array: Any) -> None:
        lengths = array.chunks[0]
        if any(np.isnan(length) for length in lengths):
            raise ValueError(
                f"The dask array {array.name!r} has an unknown number of rows. Call its compute_chunk_sizes() first."
            )
        self._array = array
        self.shape: tuple[int, ...] = tuple(int(length) for length in array.shape)
        self.chunk = int(max(lengths, default=1))
        self.name = f"the dask array {array.name!r}"

    @classmethod
    def of(cls, array: Any) -> Self | None:
        """Return the array in this form; None for an array of another library."""
        kind = type(array)
        return cls(array) if kind.__module__.startswith("dask.array") and hasattr(array, "dask") else None

    def read(self, rows: slice) -> NDArray[Any]:
        """Return the values of a slice of rows.

        The values are computed in this thread, since the thread may belong to a Dask worker.
        """
        return np.asarray(self._array[rows].compute(scheduler="synchronous"))


class MemoryMap(NamedTuple):
    """Position of a memory map in its file.

    Rows are read from the file, not through the map. The operating system would keep pages of a map in memory until
    another process needs the memory.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int
    """Bytes before the first row."""
    chunk: int = 1

    @classmethod
    def of(cls, array: Any) -> Self | None:
        """Return the array in this form; None for a map with unsaved changes or with other strides."""
        if not isinstance(array, np.memmap) or not array.flags.c_contiguous or array.mode == "c":
            return None
        filename, mapped = array.filename, getattr(array, "_mmap", None)
        if filename is None or mapped is None:
            return None
        first = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY  # The map begins at this byte of the file.
        offset = first + array.ctypes.data - np.frombuffer(mapped, np.uint8).ctypes.data
        return cls(str(Path(filename).resolve()), array.shape, array.dtype, int(offset))

    def read(self, rows: slice) -> NDArray[Any]:
        """Return the values of a slice of rows."""
        columns = self.shape[1:]
        width = int(np.prod(columns, dtype=np.int64))
        start = self.offset + rows.start * width * self.dtype.itemsize
        count = (rows.stop - rows.start) * width
        found = np.fromfile(self.name, self.dtype, count, offset=start)
        if found.size < count:
            raise ValueError(f"{self.name} has fewer rows than when it was opened: it ends before row {rows.stop - 1}.")
        return found.reshape(-1, *columns)


def parquet_files(path: str | PathLike[str]) -> tuple[str, ...]:
    """Return the files of a data set: the file itself, or the files of a folder in the order of their names.

    Raises
    ------
    FileNotFoundError
        If the path is neither a Parquet file nor a folder of Parquet files.
    """
    at = Path(path).resolve()
    files = sorted(str(file) for file in at.rglob("*.parquet")) if at.is_dir() else [str(at)]
    if not files or not Path(files[0]).exists():
        raise FileNotFoundError(f"The path {at} has no Parquet file.")
    return tuple(files)


def column_names(files: Sequence[str]) -> list[str]:
    """Return the names of the columns of the first file. Raise a ValueError if this is not a Parquet file."""
    return list(_open(files[0]).schema_arrow.names)


class ParquetColumns:
    """Columns of consecutive Parquet files.

    Parameters
    ----------
    files : sequence of str
    columns : sequence of str
    flat : bool
        Whether a single column is read as an array (n,), not (n, 1).
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
        """Return the values of a slice of rows."""
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
            self._opened.clear()  # At most one file is open.
            self._opened[place] = _open(self._files[place])
        with _damage(f"{self._files[place]} is damaged"):
            table = self._opened[place].read_row_group(group, columns=list(self.columns))
        if sorted(table.column_names) != sorted(set(self.columns)):
            wanted = ", ".join(map(repr, self.columns))
            raise ValueError(f"{self._files[place]} must have one column of each name {wanted}.")
        return np.column_stack([self._numbers(table, name) for name in self.columns])

    def _numbers(self, table: Any, name: str) -> NDArray[Any]:
        values: NDArray[Any] = table.column(name).to_numpy()
        if values.dtype.kind not in "biuf":
            kind = table.schema.field(name).type
            if self._flat:
                raise TypeError(
                    f"{self.name}: column {name!r}, the labels, must be of whole numbers 0 ... c−1, but is {kind}. "
                    "Store such numbers in its place: codes, names = pandas.factorize(labels, sort=True)."
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
        from pyarrow.parquet import ParquetFile
    except ImportError as missing:
        raise ImportError('Parquet files are read by pyarrow: pip install "pymc-gpep[pyarrow]".') from missing
    with _damage(
        f"{file} is not a Parquet file, or is damaged",
        "A single path in data must be that of a Parquet file or folder. For files of NumPy give both paths, "
        'data=("X.npy", "y.npy").',
    ):
        return ParquetFile(file, page_checksum_verification=True)


@contextmanager
def _damage(what: str, advice: str = "Take another copy of the file.") -> Iterator[None]:
    """Context manager for reading a file. It replaces errors of a library by a ValueError with the text `what`."""
    try:
        yield
    except Exception as error:  # Each library raises other errors for damaged files.
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno):
            raise
        raise ValueError(f"{what}: {str(error).rstrip('.')}. {advice}") from error


class ZarrArray:
    """A `zarr.Array` that is read shard by shard, or chunk by chunk if it has no shards."""

    def __init__(self, array: Any) -> None:
        self._array = array
        self.shape: tuple[int, ...] = tuple(array.shape)
        self.chunk = int((getattr(array, "shards", None) or array.chunks)[0])
        self.name = "/".join(part for part in (str(array.store), str(array.path)) if part)

    @classmethod
    def of(cls, array: Any) -> Self | None:
        """Return the array in this form; None for an array of another library."""
        kind = type(array)
        return cls(array) if kind.__module__.split(".")[0] == "zarr" and kind.__name__ == "Array" else None

    def read(self, rows: slice) -> NDArray[Any]:
        """Return the values of a slice of rows."""
        with _damage(f"{self.name} is damaged"):
            return np.asarray(self._array[rows])


ENTRIES = 250_000
"""Default number of values in one read: 2 MB. Fits by batches keep several reads in memory."""


class StoredArrays(Protocol):
    """An array (n,) or (n, d) that is read by slices of its rows.

    Each kind of storage has a separate class. A pickle must contain the location of the rows, so that other processes
    can read them.
    """

    @property
    def name(self) -> str:
        """Path of the file, for messages; empty if the rows are in memory."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape (n,) or (n, d)."""

    @property
    def chunk(self) -> int:
        """Number of rows that storage reads together; 1 if a slice of any length can be read without further rows."""

    def read(self, rows: slice) -> NDArray[Any]:
        """Return the values of a slice of rows with step 1."""


class StoredKind(Protocol):
    """A kind of storage."""

    def of(self, array: Any) -> StoredArrays | None:
        """Return an array in this form; None for an array of another kind."""


def rows_together(stored: int, columns: int) -> int:
    """Return the number of rows in one read. It is a multiple of the number of rows that are stored together."""
    return stored * max(1, ENTRIES // (stored * max(columns, 1)))


class StoredRows:
    """Inputs and labels in storage.

    Parameters
    ----------
    inputs : StoredArrays
        Inputs, of shape (n, d).
    labels : StoredArrays
        Labels, of shape (n,).

    Raises
    ------
    ValueError
        If shapes do not agree, or if there are no rows. Reading rows raises a `RowError` if inputs are not
        finite or labels are not whole numbers.
    """

    def __init__(self, inputs: StoredArrays, labels: StoredArrays) -> None:
        if len(inputs.shape) != 2 or labels.shape != inputs.shape[:1] or not inputs.shape[0]:
            where = " and ".join(dict.fromkeys(filter(None, (inputs.name, labels.name))))
            raise ValueError(
                "Inputs must be (n, d) and labels (n,) with n > 0, but these have the shapes "
                f"{inputs.shape} and {labels.shape}{where and f' in {where}'}."
            )
        self.n_rows, self.n_inputs = inputs.shape
        self.chunk = min(self.n_rows, rows_together(_together(inputs, labels), self.n_inputs))
        self._inputs, self._labels = _ByChunks(inputs), _ByChunks(labels)

    @property
    def name(self) -> str:
        """Location of the inputs; empty if unknown."""
        return self._inputs.stored.name

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of the inputs; empty if the columns have no names."""
        return tuple(getattr(self._inputs.stored, "columns", ()))

    def inputs(self, rows: slice) -> Array:
        """Return inputs (B, d) of a slice of rows."""
        values: Array = np.asarray(self._inputs.read(rows), dtype=np.float64)
        check_finite(values, self.columns, rows.start, self.name)
        return values

    def labels(self, rows: slice) -> NDArray[np.int64]:
        """Return labels (B,) of a slice of rows."""
        return whole_labels(self._labels.read(rows), rows.start, self.label_name)

    @property
    def label_name(self) -> str:
        """Location of the labels; empty if unknown."""
        return self._labels.stored.name


class _ByChunks:
    """Reader that keeps the last chunk in memory. Small reads then read a chunk only once."""

    def __init__(self, stored: StoredArrays) -> None:
        self.stored = stored
        self._step = stored.chunk
        self._last: tuple[int, NDArray[Any]] | None = None

    def read(self, rows: slice) -> NDArray[Any]:
        step, n = self._step, self.stored.shape[0]
        if step == 1 or rows.start >= rows.stop or _is_whole(rows, step, n):
            return self.stored.read(rows)
        parts = []
        for begin in range(rows.start - rows.start % step, rows.stop, step):
            chunk = slice(max(rows.start - begin, 0), min(rows.stop - begin, step))
            parts.append(self._chunk(begin)[chunk])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _chunk(self, begin: int) -> NDArray[Any]:
        last = self._last
        if last is None or last[0] != begin:
            last = begin, self.stored.read(slice(begin, min(begin + self._step, self.stored.shape[0])))
            self._last = last
        return last[1]

    def __reduce__(self) -> tuple[Callable[..., "_ByChunks"], tuple[StoredArrays]]:
        return type(self), (self.stored,)


def _is_whole(rows: slice, step: int, n: int) -> bool:
    return rows.start % step == 0 and (rows.stop % step == 0 or rows.stop == n)


def _together(inputs: StoredArrays, labels: StoredArrays) -> int:
    """Return a number of rows that is a multiple of the chunks of inputs and of labels.

    If this number is too large, return the number of rows in a chunk of inputs.
    """
    both = lcm(inputs.chunk, labels.chunk)
    return both if both * inputs.shape[1] <= ENTRIES else inputs.chunk


STORED: tuple[StoredKind, ...] = (
    MemoryMap,
    ZarrArray,
    DaskArray,
    ArrayLike,
)
"""Kinds of storage. The first kind that accepts an array reads it."""


def open_rows(data: Any, label: str | None = None, columns: Sequence[str] | None = None) -> Rows:
    """Open rows of data. A fit reads these rows block by block.

    Parameters
    ----------
    data : pair of array_like, or path, or Rows
        Inputs (n, d) and labels (n,). Each is a NumPy array, in memory or mapped, or an array of Zarr, Dask or h5py. It
        may also be another object with `shape`, `dtype` and slices, or the path of a NumPy file, `"X.npy"`. For
        Parquet, `data` is the path of a file or of a folder of files. It may also be a pair of such a path and the name
        of the column of labels.
    label : str, optional
        Name of the column of labels, for Parquet.
    columns : sequence of str, optional
        Names of the columns of inputs, for Parquet. The default is all columns except the labels.

    Returns
    -------
    Rows
        Rows for `pm.fit(..., data=rows)`.

    Raises
    ------
    TypeError
        If `data` has an unsupported type.
    FileNotFoundError
        If a path does not exist.
    ValueError
        If shapes do not agree, or if there are no rows. If a file is not a Parquet file, or lacks a column. Later, a
        `RowError` is raised if a row is read with inputs that are not finite or a label that is not a whole number.

    Examples
    --------
    >>> gpep.open_rows((X, y)).n_rows
    30
    """
    if isinstance(data, tuple | list) and len(data) == 2:
        data = tuple(_mapped(each) if _is_path(each) and Path(each).suffix == ".npy" else each for each in data)
        if _is_path(data[0]) and isinstance(data[1], str):
            data, label = data
    if _is_path(data):
        return _of_parquet(data, label, columns)
    if label is not None or columns is not None:
        raise TypeError("label and columns name columns of a Parquet file, but data is not a Parquet file.")
    if isinstance(data, Rows):
        return data
    if not isinstance(data, tuple | list) or len(data) != 2:
        raise TypeError(
            f"data must be a pair of arrays (inputs, labels), a pair (path, column of labels), or the rows that "
            f"pymc_gpep.open_rows returns, but is a {type(data).__name__}."
        )
    inputs, labels = (_stored(each) for each in data)
    if inputs is None:
        return InMemory(*data)
    return StoredRows(inputs, labels or ArrayLike(np.asarray(data[1])))


def _stored(array: Any) -> StoredArrays | None:
    """Return the array in its kind of storage; None for arrays in memory."""
    if isinstance(array, np.ndarray) and not isinstance(array, np.memmap):
        return None
    return next((found for kind in STORED if (found := kind.of(array)) is not None), None)


def _mapped(path: str | PathLike[str]) -> np.ndarray:
    try:
        with _damage(f"{path} is not a NumPy file, or is damaged"):
            return np.lib.format.open_memmap(path, mode="r")
    except FileNotFoundError:
        raise FileNotFoundError(f"data have the path {str(path)!r}, which does not exist.") from None


def _is_path(data: Any) -> bool:
    return isinstance(data, str | PathLike)


def _of_parquet(path: str | PathLike[str], label: str | None, columns: Sequence[str] | None) -> StoredRows:
    files = parquet_files(path)
    names = column_names(files)
    if label is None:
        raise ValueError(f"Name the column of labels in {files[0]}, data=(path, name). The columns are {names}.")
    inputs = [name for name in names if name != label] if columns is None else list(columns)
    if missing := sorted({label, *inputs} - set(names)):
        listed = ", ".join(map(repr, missing))
        raise ValueError(f"{files[0]} has no column {listed}. Its columns are {names}.{did_you_mean(missing, names)}")
    return StoredRows(ParquetColumns(files, inputs), ParquetColumns(files, [label], flat=True))
