"""Checks of arguments before any computation: an error for a wrong type or an unknown name."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

_NAMED = 5  # Largest number of rows, variables or levels that a message names.


def check_whole(name: str, value: Any, least: int | None = 0) -> None:
    """Raise a TypeError unless the argument `name` is a whole number, and a ValueError if it is less than `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral):  # bool is an Integral in Python
        raise TypeError(f"{name} must be a whole number, but is {value!r}.")
    if least is not None and value < least:
        raise ValueError(f"{name} must be at least {least}, but is {value}.")


def check_number(name: str, value: Any) -> None:
    """Raise a TypeError unless the argument `name` is a number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, but is {value!r}.")


def check_switches(**switches: Any) -> None:
    """Raise a TypeError unless each of these arguments is True or False."""
    for name, value in switches.items():
        if not isinstance(value, bool | np.bool_):
            raise TypeError(f"{name} must be True or False, but is {value!r}.")


def as_names(option: str, value: Any) -> tuple[str, ...]:
    """Return the names in the value of an option. A string is a single name; None means no names."""
    names = (value,) if isinstance(value, str) else () if value is None else value
    if not isinstance(names, Iterable) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"{option} must be a list of names, but is {value!r}.")
    return tuple(names)


def check_name(option: str, value: Any, known: Iterable[str], of: str = "") -> None:
    """Raise a ValueError unless the value of an option is a valid name.

    Parameters
    ----------
    option : str
        Name of the option.
    value : Any
    known : iterable of str
        Values that the option may have, in the order of the message.
    of : str
        Words that follow the names in the message, such as " for a softmax likelihood".
    """
    names = list(known)
    if not isinstance(value, str) or value not in names:
        quoted = [repr(each) for each in names]
        listed = " or ".join(quoted) if len(quoted) <= 2 else f"one of {', '.join(quoted)}"
        raise ValueError(f"{option} is {value!r}, but must be {listed}{of}.{did_you_mean([value], names)}")


def did_you_mean(names: Iterable[Any], known: Iterable[Any]) -> str:
    """Return the words "Did you mean" and the closest valid names, for a message; empty if no valid name is close."""
    there = sorted({each for each in known if isinstance(each, str)})
    meant = (_nearest(name.lower(), there) for name in names if isinstance(name, str))
    found = dict.fromkeys(repr(each) for one in meant for each in one)
    return f" Did you mean {' and '.join(found)}?" if found else ""


def _nearest(name: str, known: list[str]) -> list[str]:
    """Return a list with the closest valid name, else the first valid name with this prefix; case is ignored."""
    lower = {each.lower(): each for each in known}
    close = get_close_matches(name, lower, n=1) or [each for each in lower if name and each.startswith(name)][:1]
    return [lower[each] for each in close]


def few_of(names: Iterable[Any]) -> str:
    """Return the first names, separated by commas, and the number of further names, for a message."""
    each = [str(name) for name in names]
    return ", ".join(each[:_NAMED]) + f" and {len(each) - _NAMED} more" * (len(each) > _NAMED)


def rows_text(bad: NDArray[np.bool_]) -> str:
    """Return a text that lists rows, for messages."""
    rows = np.flatnonzero(bad)
    return f"row{'s' * (rows.size > 1)} {few_of(rows)}"


def plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with NumPy scalars converted to Python numbers, which files can store."""
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in options.items()}
