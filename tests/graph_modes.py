"""Modes of PyTensor's graphs in tests."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytensor
from pytensor.compile.mode import Mode
from pytensor.graph.rewriting.db import RewriteDatabaseQuery, SequenceDB
from pytensor.graph.utils import Scratchpad

from pymc_gpep.graphs.interpreted import INTERPRETED, NUMPY_REWRITES

__all__ = ["HARDLY_REWRITTEN", "hardly_rewritten", "interpret_graphs", "make_functions_quickly", "rewritten"]

HARDLY_REWRITTEN = Mode(INTERPRETED.linker, RewriteDatabaseQuery(include=["merge"])).register(*NUMPY_REWRITES)
"""Mode with few rewrites: graphs are made in a third of the time, and evaluated in three times the time."""
_AS_FOR_USERS = dict(vars(INTERPRETED))


@contextmanager
def hardly_rewritten() -> Iterator[None]:
    """Within this context, graphs of fits and graphs without a mode are hardly rewritten.

    Modules import the same object `INTERPRETED`, so its contents are replaced.
    """
    with patch.dict(vars(INTERPRETED), vars(HARDLY_REWRITTEN), clear=True):
        yield


@contextmanager
def rewritten() -> Iterator[None]:
    """Within `hardly_rewritten`, use the graphs that users have."""
    with patch.dict(vars(INTERPRETED), _AS_FOR_USERS, clear=True):
        yield


def interpret_graphs() -> None:
    """Let PyTensor interpret graphs until this process ends.

    Compilation takes ten seconds for a graph that a test or a page evaluates a few times. C code inside of interpreted
    graphs would be linked in one second for each operation.
    """
    pytensor.config.mode, pytensor.config.cxx = INTERPRETED, ""


def make_functions_quickly() -> None:
    """Remove work that PyTensor repeats for each function, until this process ends."""
    _one_rewriter_of_a_mode()
    _tags_without_detours()


def _one_rewriter_of_a_mode() -> None:
    """Make the rewriter of a mode once.

    A rewriter looks up the rewrites for each operation, which takes half of the time of a small function.
    """
    query, made = SequenceDB.query, dict[Any, Any]()

    def once(self: SequenceDB, *tags: Any, **named: Any) -> Any:
        if named or len(tags) != 1 or not isinstance(tags[0], RewriteDatabaseQuery) or tags[0].subquery:
            return query(self, *tags, **named)
        asked = tags[0]
        sets = (tuple(each) for each in (asked.include, asked.require, asked.exclude, asked.extra_rewrites))
        key = (id(self), asked.position_cutoff, *sets)
        if key not in made:
            made[key] = query(self, asked)
        return made[key]

    SequenceDB.query = once


def _tags_without_detours() -> None:
    """Copy the tags of variables directly, without the pickle protocol. Cloning a graph copies all tags."""

    def copied(self: Scratchpad) -> Scratchpad:
        other = Scratchpad()
        other.__dict__.update(self.__dict__)
        return other

    Scratchpad.__copy__ = copied
    Scratchpad.__getattribute__ = object.__getattribute__  # the call that the copy uses
