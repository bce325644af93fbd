"""How tests make graphs."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from pytensor.compile.mode import Mode
from pytensor.graph.rewriting.db import RewriteDatabaseQuery

from pymc_gpep.structure.interpreted import INTERPRETED
from pymc_gpep.structure.numpy_rewrites import NUMPY_REWRITES

__all__ = ["HARDLY_REWRITTEN", "hardly_rewritten", "rewritten"]

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
