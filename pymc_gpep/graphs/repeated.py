"""A graph that is applied several times, each time to its last result.

For most backends it is as many copies of one graph. JAX has a loop in their place (`pymc_gpep.evidence.jax_dispatch`):
its compiler takes as long for each copy as for the first one.
"""

from collections.abc import Callable, Sequence
from typing import Any

from pytensor.compile.builders import OpFromGraph
from pytensor.compile.inner_function import link_only_mode
from pytensor.compile.mode import Mode
from pytensor.graph.fg import FunctionGraph
from pytensor.link.vm import VMLinker
from pytensor.tensor.variable import TensorVariable


class _Piece(OpFromGraph):
    """Where the graph around it is interpreted, so is this: without that it would be compiled by a C compiler."""

    def link_mode(self, impl: str | None) -> Mode:
        return link_only_mode(VMLinker(use_cloop=False, c_thunks=False))


class Repeated(_Piece):
    """The copies as one Op, of values that change and then of those that stay.

    Attributes
    ----------
    times : int
        Number of copies.
    changing : int
        Number of values that change.
    """

    times: int
    changing: int

    def piece(self) -> FunctionGraph:
        """The graph that is taken several times, of all the values that the Op is given."""
        fgraph: FunctionGraph = next(node.op for node in self.fgraph.apply_nodes if isinstance(node.op, _Piece)).fgraph
        return fgraph


def repeat(
    step: Callable[..., Sequence[TensorVariable]],
    start: Sequence[TensorVariable],
    given: Sequence[TensorVariable],
    times: int,
) -> list[TensorVariable]:
    """Return what `step(*values, *given)` makes of `start`, taken so many times, each time of its last result."""
    inputs: list[Any] = [each.type() for each in (*start, *given)]
    piece = _Piece(inputs, list(step(*inputs)))
    values, constant = inputs[: len(start)], inputs[len(start) :]
    for _ in range(times):
        values = _listed(piece(*values, *constant))
    whole = Repeated(inputs, values)
    whole.times, whole.changing = times, len(start)
    return _listed(whole(*start, *given))


def _listed(found: Any) -> list[TensorVariable]:
    return list(found) if isinstance(found, list | tuple) else [found]
