"""Rows that a sum of effects is wanted at: data that a user gives, in the types of the model, or rows of the model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pytensor.compile.sharedvalue import SharedVariable


@dataclass(frozen=True)
class NewData:
    """Data at new rows, which can be cut to some of them.

    Attributes
    ----------
    by_row : dict of str to array
        Data with an entry for each row, and inputs of processes where these are no data of the model.
    others : dict of str to array
        Data that all rows share.
    n_rows : int
    strange : dict of str to array (n_rows,)
        Which rows have a level that the model does not have, by the data that say the level.
    """

    by_row: Mapping[str, NDArray[Any]]
    others: Mapping[str, NDArray[Any]]
    n_rows: int
    strange: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.n_rows

    def __getitem__(self, rows: slice) -> "NewData":
        cut = {name: values[rows] for name, values in self.by_row.items()}
        strange = {name: mask[rows] for name, mask in self.strange.items()}
        return NewData(cut, self.others, len(range(*rows.indices(self.n_rows))), strange)


def repeated(rows: Any, count: int) -> Any:
    """Return a single new row as often as is wanted; several rows, and rows of the model, are returned as they are."""
    if len(rows) != 1 or count < 2 or isinstance(rows, OwnRows):
        return rows
    if not isinstance(rows, NewData):
        return np.repeat(rows, count, axis=0)
    by_row = {name: np.repeat(values, count, axis=0) for name, values in rows.by_row.items()}
    strange = {name: np.repeat(mask, count, axis=0) for name, mask in rows.strange.items()}
    return NewData(by_row, rows.others, count, strange)


@dataclass(frozen=True)
class OwnRows:
    """Some of the rows that the model has, by their positions."""

    positions: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, rows: slice) -> "OwnRows":
        return OwnRows(self.positions[rows])


def as_data(
    variable: SharedVariable, given: NDArray[Any], wide: NDArray[Any], shape: Sequence[int | str]
) -> NDArray[Any]:
    """Return values in the type of data of the model.

    Parameters
    ----------
    variable : SharedVariable
    given : array
        The array that a user gave, for messages.
    wide : array
        The same with all axes.
    shape : sequence of int or str
        Length of each axis; a name stands for any length.
    """
    fits = wide.ndim == len(shape) and all(
        isinstance(wanted, str) or size == wanted for size, wanted in zip(wide.shape, shape, strict=True)
    )
    if wide.dtype.kind not in "biuf" or not fits:
        raise ValueError(
            f"data[{variable.name!r}] must be numbers of shape ({', '.join(map(str, shape))}), but has type "
            f"{given.dtype} and shape {given.shape}."
        )
    converted = wide.astype(variable.type.dtype)
    if not np.isfinite(converted).all() or not np.allclose(converted, wide, rtol=1e-6):
        whole = "whole " * (np.dtype(variable.type.dtype).kind in "iub")
        raise ValueError(f"data[{variable.name!r}] must be finite {whole}numbers, as the model has them there.")
    return converted


def common_length(lengths: Mapping[str, int]) -> int:
    """Return the number of rows that data have which say them, of lengths by name; one row stands for all."""
    m = max(lengths.values(), default=1)
    if wrong := [name for name, length in lengths.items() if length not in (1, m)]:
        raise ValueError(f"data must have as many rows each, but have {lengths}: look at {wrong[0]!r}.")
    return m
