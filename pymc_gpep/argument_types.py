"""Arguments of the wrong type, refused before any work."""

from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np

__all__ = ["check_number", "check_switches", "check_whole", "plain"]


def check_whole(name: str, value: Any, least: int | None = 0) -> None:
    """Raise a TypeError unless an argument of this name is a whole number, a ValueError if it is less than `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral):  # True is 1 to Python, but nobody's number
        raise TypeError(f"{name} must be a whole number, but is {value!r}.")
    if least is not None and value < least:
        raise ValueError(f"{name} must be at least {least}, but is {value}.")


def check_number(name: str, value: Any) -> None:
    """Raise a TypeError unless an argument of this name is a number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, but is {value!r}.")


def check_switches(**switches: Any) -> None:
    """Raise a TypeError unless arguments of these names are True or False."""
    for name, value in switches.items():
        if not isinstance(value, bool | np.bool_):
            raise TypeError(f"{name} must be True or False, but is {value!r}.")


def plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options with NumPy's scalars as Python's, which can be written to a file and look as they do there."""
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in options.items()}
