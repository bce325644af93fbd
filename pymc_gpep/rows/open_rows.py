"""`gpep.open_rows`: the rows of data that a user passes."""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from pymc_gpep.argument_types import did_you_mean
from pymc_gpep.rows.in_memory import InMemory
from pymc_gpep.rows.rows import Rows
from pymc_gpep.rows.storage import (
    ArrayLike,
    DaskArray,
    MemoryMap,
    ParquetColumns,
    ZarrArray,
    column_names,
    parquet_files,
)
from pymc_gpep.rows.stored_rows import StoredArrays, StoredKind, StoredRows

STORED: tuple[StoredKind, ...] = (
    MemoryMap,
    ZarrArray,
    DaskArray,
    ArrayLike,
)
"""Kinds of arrays that are not in memory. The first that takes an array reads it."""


def open_rows(data: Any, label: str | None = None, columns: Sequence[str] | None = None) -> Rows:
    """Rows that are read block by block.

    Parameters
    ----------
    data : pair of array_like, or path, or Rows
        Inputs (n, d) and labels (n,). Each is an array of NumPy, in memory or mapped, of Zarr, Dask or h5py. Any other
        object that has `shape` and `dtype` and is read by slices will do. So will the path of a file of NumPy's,
        `"X.npy"`, which is mapped. For Parquet, `data` is the path of a file or of a folder of files. It may also be a
        pair of such a path and the name of the column of labels.
    label : str, optional
        Name of the column of labels, for Parquet.
    columns : sequence of str, optional
        Names of the columns of inputs, for Parquet; all others if not given.

    Returns
    -------
    Rows

    Raises
    ------
    TypeError
        If `data` is something else.
    FileNotFoundError
        If there is no file at a path.
    ValueError
        If shapes do not agree, or if there are no rows. If a file is not a Parquet file, or has no such column. Reading
        a row whose inputs are not finite, or whose label is not a whole number, raises a `RowError`.

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
            f"data must be a pair of arrays (inputs, labels), a pair (path, column of labels), or what "
            f"pymc_gpep.open_rows returns, but is a {type(data).__name__}."
        )
    inputs, labels = (_stored(each) for each in data)
    if inputs is None:
        return InMemory(*data)
    return StoredRows(inputs, labels or ArrayLike(np.asarray(data[1])))


def _stored(array: Any) -> StoredArrays | None:
    """Return None for arrays in memory."""
    if isinstance(array, np.ndarray) and not isinstance(array, np.memmap):
        return None
    return next((found for kind in STORED if (found := kind.of(array)) is not None), None)


def _mapped(path: str | PathLike[str]) -> np.ndarray:
    try:
        return np.load(path, mmap_mode="r")
    except FileNotFoundError:
        raise FileNotFoundError(f"data have the path {str(path)!r}, but there is no such file.") from None


def _is_path(data: Any) -> bool:
    return isinstance(data, str | PathLike)


def _of_parquet(path: str | PathLike[str], label: str | None, columns: Sequence[str] | None) -> StoredRows:
    files = parquet_files(path)
    names = column_names(files)
    if label is None:
        raise ValueError(f"data are {files[0]}: say which column has the labels, data=(path, name). It has {names}.")
    inputs = [name for name in names if name != label] if columns is None else list(columns)
    if missing := sorted({label, *inputs} - set(names)):
        listed = ", ".join(map(repr, missing))
        raise ValueError(f"{files[0]} has no column {listed}, but {names}.{did_you_mean(missing, names)}")
    return StoredRows(ParquetColumns(files, inputs), ParquetColumns(files, [label], flat=True))
