"""How tests make graphs."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from pytensor.compile.mode import Mode
from pytensor.graph.rewriting import basic
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.graph.utils import MetaType, Scratchpad

from pymc_gpep.structure.interpreted import INTERPRETED
from pymc_gpep.structure.numpy_rewrites import NUMPY_REWRITES

__all__ = ["HARDLY_REWRITTEN", "hardly_rewritten", "made_faster", "rewritten"]

HARDLY_REWRITTEN = Mode(INTERPRETED.linker, RewriteDatabaseQuery(include=["merge"])).register(*NUMPY_REWRITES)
"""Graphs as they were written, which are made in a third of the time and evaluated in three times as much."""
_AS_FOR_USERS = dict(vars(INTERPRETED))


@contextmanager
def hardly_rewritten() -> Iterator[None]:
    """Graphs of fits, and those that PyTensor makes without a mode, are left as they were written.

    Wherever `INTERPRETED` was imported to, it is the same object, and gets what the other mode consists of.
    """
    with patch.dict(vars(INTERPRETED), vars(HARDLY_REWRITTEN), clear=True):
        yield


@contextmanager
def rewritten() -> Iterator[None]:
    """Within `hardly_rewritten`, graphs are those that users have."""
    with patch.dict(vars(INTERPRETED), _AS_FOR_USERS, clear=True):
        yield


def made_faster() -> None:
    """Have PyTensor do three things at less cost, with the same results, to the end of the process.

    They take a tenth of the time of the tests. Tags of variables are copied with each node. Each question for a type
    goes through abstract classes, though PyTensor's have no virtual subclasses. Each function that is made orders the
    types anew that rewrites ask for.
    """
    Scratchpad.__getattribute__ = object.__getattribute__
    Scratchpad.__copy__ = _copied
    MetaType.__instancecheck__ = type.__instancecheck__
    ordered = functools.cache(basic._compose_mro)
    basic._compose_mro = lambda kind, types: ordered(kind, frozenset(types))


def _copied(tag: Any) -> Any:
    copy = object.__new__(type(tag))
    vars(copy).update(vars(tag))
    return copy
