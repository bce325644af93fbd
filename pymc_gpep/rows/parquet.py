"""Columns of Parquet files, read by row groups."""

from collections.abc import Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


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
