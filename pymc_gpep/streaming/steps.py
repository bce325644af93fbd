"""Which way a step is taken: on arrays where that is written, else as a graph, which any backend runs."""

from typing import Any

from pymc_gpep.streaming.array_step import array_step
from pymc_gpep.streaming.state import State
from pymc_gpep.streaming.step import BatchProblem, Optimiser, Step, make_step
from pymc_gpep.structure.interpreted import INTERPRETED

__all__ = ["step_of"]


def step_of(problem: BatchProblem, state: State, optimiser: Optimiser, compile_kwargs: dict[str, Any]) -> Step:
    """A step as `make_step` makes it. One whose graph is to be compiled is a graph."""
    made = array_step(problem, state, optimiser) if compile_kwargs.get("mode") is INTERPRETED else None
    return made or make_step(problem, state, optimiser, compile_kwargs)
