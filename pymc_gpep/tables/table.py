"""Data frames and arrays as lists of columns, and the encoding of a column as inputs of a Gaussian process."""

import datetime
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pymc_gpep.argument_types import few_of, rows_text
from pymc_gpep.array_types import Array


class Values(NamedTuple):
    """Values of one column.

    Attributes
    ----------
    name : str
    numbers : array (n,) or None
        Numbers, NaN for a missing number; None if the column is categorical.
    categories : array (n,) of object or None
        Labels, None for a missing label; None if the column is numeric.
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
    """Return whether a table is a data frame with named and typed columns."""
    return hasattr(table, "columns") and hasattr(table, "shape") and hasattr(table, "__getitem__")


def read_table(table: Any) -> list[Values]:
    """Return the columns of a table as a list.

    Columns of numbers and booleans are numeric. Columns of strings, and categorical columns of pandas or polars, are
    categorical.

    Parameters
    ----------
    table : DataFrame, dict of str to array, or array (n, d)
        Columns of an array have the names `x0`, `x1` and so on.

    Raises
    ------
    TypeError
        If a column has values that are neither numbers nor strings.
    ValueError
        If an array does not have two axes, or if two columns have the same name.
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
    """Return a column of a frame.

    The column is categorical if its dtype is categorical, even if the categories are numbers.
    """
    kind = str(series.dtype)
    if kind.startswith(("category", "Categorical", "Enum")):
        return Values(name, None, _labels(name, series.to_numpy()))
    if kind.lower().startswith(("datetime", "timedelta", "period", "date", "duration", "time")):
        raise _times(name, kind)
    if isinstance(series, pd.Series) and pd.api.types.is_numeric_dtype(series.dtype):  # Values may be pd.NA.
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
    """Return the error for a column that mixes numbers, strings or other objects."""
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
        f"Column {name!r} has a {type(other).__name__} in row {row}, {other!r}. Each {must}: convert the column to "
        "numbers or strings, or leave it out."
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


type Missing = Literal["error", "impute"]
type Unseen = Literal["error", "new"]

_SEVERAL = 20  # With fewer rows, `column_of` does not warn of many categories.
_NEARLY = 0.9  # A column with more categories per row probably contains names of rows.


@dataclass(frozen=True)
class Column(ABC):
    """Encoding of a column as inputs of a Gaussian process.

    Attributes
    ----------
    name : str
    missing : {"error", "impute"}
        With "error" missing values raise an error. With "impute" they become the mean of the training rows, or a
        separate category.
    """

    name: str
    missing: Missing

    @property
    @abstractmethod
    def width(self) -> int:
        """Number of inputs of the column."""

    @abstractmethod
    def encode(self, values: Values) -> Array:
        """Return inputs (n, width) of rows with these values.

        Raises
        ------
        ValueError
            If a value is infinite. If a value is missing, or is an unseen category, and the options make this an error.
        TypeError
            If the column changes from numbers to categories, or from categories to numbers.
        """

    def _refuse_missing(self, absent: Any) -> None:
        """Raise a ValueError that lists the rows with a missing value, given by the mask `absent`."""
        if np.any(absent) and self.missing == "error":
            raise ValueError(
                f"Column {self.name!r} has a missing value, NaN, in {rows_text(absent)}. Drop such rows, or take "
                "missing='impute'."
            )


@dataclass(frozen=True)
class NumberColumn(Column):
    """A column of numbers or booleans: one standardised input.

    Attributes
    ----------
    mean, deviation : float
        Mean and standard deviation of the training rows. A constant column has the deviation 0; its input is 0 in all
        rows.
    """

    mean: float
    deviation: float

    @property
    def width(self) -> int:
        return 1

    def encode(self, values: Values) -> Array:
        numbers = values.numbers
        if numbers is None:
            raise TypeError(f"Column {self.name!r} has categories, and had numbers in training.")
        absent = np.isnan(numbers)
        self._refuse_missing(absent)
        _refuse_infinite(self.name, numbers)
        if not self.deviation:
            return np.zeros((len(numbers), 1))
        scaled = np.where(absent, 0.0, (numbers - self.mean) / self.deviation)
        return scaled[:, None]


@dataclass(frozen=True)
class CategoryColumn(Column):
    """A column of categories: an indicator input (0 or 1) for each category, and one for new categories.

    Two rows of different categories have the distance √2 in these inputs.

    Attributes
    ----------
    levels : tuple
        Categories of the training rows, sorted. The last is None if missing values form a category.
    unseen : {"error", "new"}
        Whether unseen categories raise an error, or share one additional category.
    """

    levels: tuple[Any, ...]
    unseen: Unseen

    @property
    def width(self) -> int:
        return len(self.levels) + 1

    def encode(self, values: Values) -> Array:
        labels = values.categories
        if labels is None:
            assert values.numbers is not None
            # A column in which all values are missing may have any type.
            strings = all(isinstance(level, str) for level in self.levels if level is not None)
            if strings and not np.isnan(values.numbers).all():
                raise TypeError(f"Column {self.name!r} has numbers, and had categories in training.")
            labels = np.array([None if np.isnan(x) else x for x in values.numbers], dtype=object)
        if None not in self.levels:
            self._refuse_missing(np.array([label is None for label in labels]))
        place = {level: k for k, level in enumerate(self.levels)}
        new = sorted({str(label) for label in labels if label not in place and label is not None})
        if new and self.unseen == "error":
            raise ValueError(
                f"Column {self.name!r} has a category that training rows did not have: {few_of(map(repr, new))}. With "
                "unseen='new' such rows share a new level."
            )
        inputs = np.zeros((len(labels), self.width))
        inputs[np.arange(len(labels)), [place.get(label, len(self.levels)) for label in labels]] = 1.0
        return inputs


def column_of(values: Values, missing: Missing, unseen: Unseen) -> Column:
    """Return the encoding of a column, as determined by the training rows.

    Raises
    ------
    ValueError
        If a number is infinite; if all values are missing; if a value is missing, and `missing` is "error".
    """
    if values.numbers is not None:
        _refuse_infinite(values.name, values.numbers)
        present = values.numbers[~np.isnan(values.numbers)]
        if not present.size:
            raise ValueError(f"Column {values.name!r} has only missing values, NaN. Leave out the column.")
        column: Column = NumberColumn(values.name, missing, *mean_and_deviation(present))
    else:
        assert values.categories is not None
        labels = [label for label in values.categories if label is not None]
        levels = tuple(dict.fromkeys(labels))
        try:
            levels = tuple(sorted(levels))
        except TypeError:  # Labels of different types cannot be sorted.
            levels = tuple(sorted(levels, key=str))
        if len(labels) >= _SEVERAL and len(levels) > _NEARLY * len(labels):
            warnings.warn(
                f"Column {values.name!r} has {len(levels)} categories in {len(labels)} rows, like names of rows. A "
                "category of one row does not predict new rows, and each category is a column of the inputs. Leave the "
                f"column out: table.drop(columns={values.name!r}).",
                skip_file_prefixes=(str(Path(__file__).parents[1]),),
            )
        absent = len(labels) < len(values.categories)
        column = CategoryColumn(
            values.name, missing, (*levels, None) if absent and missing == "impute" else levels, unseen
        )
    column.encode(values)
    return column


def _refuse_infinite(name: str, numbers: Array) -> None:
    if (bad := np.isinf(numbers)).any():
        raise ValueError(f"Column {name!r} has an infinite value, inf, in {rows_text(bad)}. Drop such rows.")


def of_size_one(numbers: Array, axis: int | None = None) -> tuple[Array, NDArray[np.int32]]:
    """Divide numbers by a power of two, so that the largest has a size from ½ to 1. Return them and the exponent.

    With an `axis` each column has a separate power. The division is exact, and squares of the result do not overflow.
    """
    _, exponent = np.frexp(np.abs(numbers).max(axis=axis))
    return np.ldexp(numbers, -exponent), exponent


def mean_and_deviation(numbers: Array) -> tuple[float, float]:
    """Return mean and standard deviation of numbers (n,). Squares of the numbers may overflow or underflow.

    If all numbers are equal, the deviation is exactly 0.
    """
    scaled, exponent = of_size_one(numbers)
    deviation = scaled.std() if np.ptp(scaled) > 0.0 else 0.0
    return float(np.ldexp(scaled.mean(), exponent)), float(np.ldexp(deviation, exponent))
