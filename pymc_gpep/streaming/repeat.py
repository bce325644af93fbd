"""A piece of graph that is applied several times, and made once."""

from collections.abc import Callable, Sequence
from typing import Any

from pytensor.compile.builders import OpFromGraph
from pytensor.compile.inner_function import link_only_mode
from pytensor.compile.mode import Mode
from pytensor.link.vm import VMLinker
from pytensor.tensor.variable import TensorVariable

__all__ = ["repeat"]


class _Piece(OpFromGraph):
    """Where the graph around it is interpreted, so is this: without that it would be compiled by a C compiler."""

    def link_mode(self, impl: str | None) -> Mode:
        return link_only_mode(VMLinker(use_cloop=False, c_thunks=False))


def repeat(
    step: Callable[..., Sequence[TensorVariable]],
    start: Sequence[TensorVariable],
    given: Sequence[TensorVariable],
    times: int,
) -> list[TensorVariable]:
    """What is made of `start` by `step(*values, *given)`, so many times, each of what the last one returned."""
    inputs: list[Any] = [each.type() for each in (*start, *given)]
    piece = _Piece(inputs, list(step(*inputs)))
    values = list(start)
    for _ in range(times):
        found = piece(*values, *given)
        values = list(found) if isinstance(found, list | tuple) else [found]
    return values
