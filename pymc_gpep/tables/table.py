"""Tables as people have them, taken apart into columns: data frames of pandas and polars, and arrays."""

import datetime
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pymc_gpep.array_types import Array


class Values(NamedTuple):
    """Values of one column.

    Attributes
    ----------
    name : str
    numbers : array (n,) or None
        Numbers, NaN where one is missing; None in a column of categories.
    categories : array (n,) of object or None
        Labels, None where one is missing; None in a column of numbers.
    """

    name: str
    numbers: Array | None
    categories: NDArray[Any] | None

    @property
    def size(self) -> int:
        """Number of rows."""
        values = self.numbers if self.categories is None else self.categories
        return 0 if values is None else len(values)


def is_frame(table: Any) -> bool:
    """Whether a table is a data frame, whose columns have names and types of their own."""
    return hasattr(table, "columns") and hasattr(table, "shape") and hasattr(table, "__getitem__")


def read_table(table: Any) -> list[Values]:
    """Take a table apart into columns.

    Numbers and booleans are numbers; strings and pandas' or polars' categories are categories.

    Parameters
    ----------
    table : DataFrame, dict of str to array, or array (n, d)
        Columns of an array are called `x0`, `x1` and so on.

    Raises
    ------
    TypeError
        If a column has values that are neither numbers nor strings.
    ValueError
        If an array does not have two axes, or two columns have the same name.
    """
    if isinstance(table, Mapping):
        table = pd.DataFrame(dict(table))
    if is_frame(table):
        _refuse_repeated([str(name) for name in table.columns])
        return [_of_series(str(name), table[name]) for name in table.columns]
    array = np.asarray(table)
    if array.ndim != 2:
        raise ValueError(f"A table must be (rows, columns), but has shape {array.shape}.")
    return [_of_array(f"x{j}", array[:, j]) for j in range(array.shape[1])]


def _refuse_repeated(names: list[str]) -> None:
    repeated = [name for k, name in enumerate(names) if name in names[:k]]
    if repeated:
        raise ValueError(f"The table has two columns of the name {repeated[0]!r}.")


def _of_series(name: str, series: Any) -> Values:
    """Columns of a frame know by their type whether they are categories, also where these are numbers."""
    kind = str(series.dtype)
    if kind.startswith(("category", "Categorical", "Enum")):
        return Values(name, None, _labels(name, series.to_numpy()))
    if kind.lower().startswith(("datetime", "timedelta", "period", "date", "duration", "time")):
        raise _times(name, kind)
    if isinstance(series, pd.Series) and pd.api.types.is_numeric_dtype(series.dtype):  # with its own missing value
        if series.dtype.kind == "c":
            raise TypeError(f"Column {name!r} has complex numbers.")
        return Values(name, series.to_numpy(dtype=np.float64, na_value=np.nan), None)
    return _of_array(name, series.to_numpy())


def _of_array(name: str, values: NDArray[Any]) -> Values:
    if values.dtype.kind in "biuf":
        return Values(name, values.astype(np.float64), None)
    if values.dtype.kind in "US":
        return Values(name, None, values.astype(object))
    if values.dtype.kind != "O":
        raise TypeError(f"Column {name!r} has values of the type {values.dtype}, neither numbers nor strings.")
    present = [value for value in values if not _is_missing(value)]
    if all(isinstance(value, str | bytes) for value in present) and present:
        return Values(name, None, _labels(name, values))
    if present and all(isinstance(value, _TIMES) for value in present):
        raise _times(name, type(present[0]).__name__)
    try:
        return Values(name, np.array([np.nan if _is_missing(value) else float(value) for value in values]), None)
    except (TypeError, ValueError):
        raise _refused(name, values) from None


_TIMES = (datetime.date, datetime.time, datetime.timedelta, np.datetime64, np.timedelta64, pd.Period)


def _times(name: str, kind: str) -> TypeError:
    return TypeError(f"Column {name!r} has times ({kind}). Give the model numbers, such as days since a date.")


def _refused(name: str, values: NDArray[Any]) -> TypeError:
    """Return the error about a column of objects that are neither all numbers nor all strings."""
    given = [(row, value) for row, value in enumerate(values) if not _is_missing(value)]
    others = [(row, value) for row, value in given if not isinstance(value, int | float | np.number | np.bool_)]
    row, other = next(((row, value) for row, value in others if not isinstance(value, str | bytes)), others[0])
    must = "argument must be a string or a number"
    if isinstance(other, str | bytes):
        return TypeError(
            f"Column {name!r} has numbers and strings, such as {other!r} in row {row}. Each {must}, and all must be of "
            "one kind: column.astype(str) for categories, or pd.to_numeric(column) for numbers."
        )
    return TypeError(
        f"Column {name!r} has a {type(other).__name__} in row {row}, {other!r}. Each {must}: make numbers or strings "
        "of the column, or leave it out."
    )


def _labels(name: str, values: NDArray[Any]) -> NDArray[Any]:
    labels = np.empty(len(values), dtype=object)
    labels[:] = [None if _is_missing(value) else value for value in values]
    return labels


def _is_missing(value: Any) -> bool:
    return (
        value is None
        or value is pd.NA
        or value is pd.NaT
        or (isinstance(value, float | np.floating) and bool(np.isnan(value)))
    )
