"""Observations that are no classes, counts and real numbers, checked before anything is done with them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.likelihoods.observed_classes import some_of, without_marks

_LARGEST = 2**53
_NAMED = 5  # rows in a message


def checked_counts(given: NDArray[Any], name: str) -> NDArray[np.int64]:
    """Return counts (n,) as int64.

    Raises
    ------
    ValueError
        If they are not 0, 1, 2, ..., or larger than floating-point numbers can tell apart.
    """
    numbers = given.dtype.kind in "biuf"
    wrong = (given < 0) | (given != np.round(given)) if numbers else np.full(len(given), True)
    if wrong.any():
        raise ValueError(
            f"{name} must be counts, 0, 1, 2, ..., but among them are {some_of(given[wrong])}.{without_marks(given)}"
        )
    if (given > _LARGEST).any():
        raise ValueError(f"{name} must be counts up to {_LARGEST}, but run up to {given.max()}.")
    return np.ascontiguousarray(given, np.int64)


def checked_numbers(given: NDArray[Any], name: str, *, positive: bool = False) -> Array:
    """Return real numbers (n,) as float64.

    Raises
    ------
    ValueError
        If they are not finite, or not positive where they must be.
    """
    numbers = given.dtype.kind in "biuf"
    wrong = ~np.isfinite(given) if numbers else np.full(len(given), True)
    if positive and numbers:
        wrong |= ~(given > 0.0)
    if wrong.any():
        wanted = "positive numbers" if positive else "finite numbers"
        marked = without_marks(given) if positive else ""
        raise ValueError(f"{name} must be {wanted}, but among them are {some_of(given[wrong])}.{marked}")
    return np.ascontiguousarray(given, np.float64)


def rows_text(bad: NDArray[np.bool_]) -> str:
    """Rows by their numbers, as a message names them."""
    rows = np.flatnonzero(bad)
    named = ", ".join(map(str, rows[:_NAMED]))
    return f"row{'s' * (rows.size > 1)} {named}" + (f" and {rows.size - _NAMED} more" if rows.size > _NAMED else "")
