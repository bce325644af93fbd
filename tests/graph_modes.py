"""How tests make graphs."""

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


def interpret_graphs() -> None:
    """Have PyTensor interpret graphs, to the end of this process.

    Machine code takes ten seconds to make for a graph that a test or a page evaluates a few times. C links graphs
    within such graphs, which takes a second for each operation.
    """
    pytensor.config.mode, pytensor.config.cxx = INTERPRETED, ""


def make_functions_quickly() -> None:
    """Take what PyTensor does alike for each function out of the time of tests, to the end of this process."""
    _one_rewriter_of_a_mode()
    _tags_without_detours()


def _one_rewriter_of_a_mode() -> None:
    """Make the rewriter of a mode once.

    A rewriter looks up which rewrites concern an operation, which takes half of the time of a small function.
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
    """Copy the tags of variables, one for each whenever a graph is cloned, without what pickles go through."""

    def copied(self: Scratchpad) -> Scratchpad:
        other = Scratchpad()
        other.__dict__.update(self.__dict__)
        return other

    Scratchpad.__copy__ = copied
    Scratchpad.__getattribute__ = object.__getattribute__  # which its own calls
