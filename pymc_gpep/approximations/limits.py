"""Options of an approximation, their limits, and their entries in docstrings.

The limits of an option are the metadata of its field: `field(default=4, metadata=at_least(0))`.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from inspect import cleandoc
from typing import Any, NamedTuple

import numpy as np

from pymc_gpep.argument_types import check_whole, did_you_mean
from pymc_gpep.kernels.status import TOO_LARGE
from pymc_gpep.solvers.problem import Derivatives, Found, Problem

_KEY = "limit"
_PARAMETERS = r"Parameters\n----------\n(.*?)(?:\n\n(?=\S)|\Z)"


class _Limit(NamedTuple):
    holds: Callable[[Any], bool]
    must: str
    """Text on the allowed values for messages, such as "positive"."""
    suggestion: Callable[[Any], str] = lambda _: ""
    """Function that returns the end of a message about an invalid value."""


type Metadata = dict[str, _Limit]


def at_least(least: float) -> Metadata:
    """Return the metadata of an option that must be at least `least`."""
    return {_KEY: _Limit(lambda value: value >= least, f"at least {least}")}


def positive() -> Metadata:
    """Return the metadata of an option that must be positive."""
    return {_KEY: _Limit(lambda value: value > 0, "positive")}


def fraction() -> Metadata:
    """Return the metadata of an option that must be in (0, 1]."""
    return {_KEY: _Limit(lambda value: 0 < value <= 1, "in (0, 1]")}


def one_of(*names: str, elsewhere: Mapping[str, str] | None = None) -> Metadata:
    """Return the metadata of an option that must be one of `names`; `elsewhere` maps further names to `names`."""
    others = elsewhere or {}

    def suggestion(value: Any) -> str:
        return did_you_mean([others.get(value, value)], names) if isinstance(value, str) else ""

    return {_KEY: _Limit(lambda value: value in names, f"one of {', '.join(map(repr, names))}", suggestion)}


def check_limits(options: Any) -> None:
    """Check the fields of a dataclass that have limits. None is allowed if it is the default.

    Raises
    ------
    ValueError
        If the value of an option is outside its limit.
    TypeError
        If a value has the wrong type: it cannot be compared with its limit, or is not an integer.
    """
    for option in fields(options):
        limit = option.metadata.get(_KEY)
        value = getattr(options, option.name)
        if limit is None or (value is None and option.default is None):
            continue
        if option.type in (int, int | None):
            check_whole(option.name, value, None)
        refusal = f"{option.name} must be {limit.must}, but is {value!r}.{limit.suggestion(value)}"
        try:
            holds = bool(limit.holds(value))
        except (TypeError, ValueError):
            raise TypeError(refusal) from None
        if not holds:
            raise ValueError(refusal)


def documented(kind: type, base: type | None = None) -> str | None:
    """Return the docstring of a class, extended by the documentation of options of its base class.

    Options that the docstring documents are not changed. By default, `base` is the first base class. If Python runs
    without docstrings, None is returned.
    """
    above, own = (base or kind.__mro__[1]).__doc__, kind.__doc__
    if not above or not own:
        return own
    own = cleandoc(own)
    parts = re.split(_PARAMETERS, own, maxsplit=1, flags=re.DOTALL)
    if len(parts) == 1:
        head, *rest = re.split(r"(?m)^(?=[A-Z][a-z]+\n---)", own, maxsplit=1)
        parts = [head, "", "".join(rest)]
    options = options_of(above) | options_of(own)
    listed = "".join(options.values())
    return f"{parts[0].rstrip()}\n\nParameters\n----------\n{listed}\n{parts[2]}".rstrip() + "\n"


def options_of(documentation: str) -> dict[str, str]:
    """Return the entries of parameters in a docstring, by name."""
    found = re.search(_PARAMETERS, cleandoc(documentation), flags=re.DOTALL)
    entries = re.split(r"(?m)^(?=[\w, ]+ : )", found[1])[1:] if found else []
    return {entry.split(" : ")[0]: entry.rstrip() + "\n" for entry in entries}


def refused(problem: Problem, max_size: int) -> Found | None:
    """Return a failed result if more than `max_size` latent values would need a covariance matrix; else None."""
    c, n = problem.mean.shape
    if not problem.prior.square or c * n <= max_size:
        return None
    b, mean = np.full((2, c, n), np.nan)
    w, cov = np.full((2, n, c, c), np.nan)
    return Found(np.nan, TOO_LARGE, b, mean, cov, w, lambda: Derivatives(np.empty(0), b))
