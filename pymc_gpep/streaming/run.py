"""Step after step: batches in their order, step sizes, and what is done where a step cannot be taken."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.graphs.interpreted import INTERPRETED, runs_in_jax
from pymc_gpep.streaming.array_step import array_step, beats_graph
from pymc_gpep.streaming.batches import Batch, Batches
from pymc_gpep.streaming.memories.memory import Schedule
from pymc_gpep.streaming.state import State
from pymc_gpep.streaming.step import BatchProblem, Optimiser, Step, Taken, make_step

_ESCALATION, _ATTEMPTS = 100.0, 3
_FAILURES = 20  # one after the other


class Run:
    """A fit under way.

    Parameters
    ----------
    step : Step
    state : State
    batches : Batches
    schedule : Schedule
    warmup : int
        Steps in which hyperparameters and inducing inputs stay, while q is found.
    done : int
        Steps that were taken before.
    """

    def __init__(
        self, step: Step, state: State, batches: Batches, schedule: Schedule, warmup: int, done: int = 0
    ) -> None:
        self.done = done
        self._step = step
        self._state = state
        self._batches: Iterator[Batch] = batches.after(done)
        self._schedule = schedule
        self._warmup = warmup
        self._failures = 0

    def advance(self) -> Taken:
        """Take one step.

        Where numbers are not finite the step is tried again with more jitter in the covariance of the inducing values.
        After some attempts it is left out; the state is then what it was.

        Raises
        ------
        FloatingPointError
            If many steps, one after the other, could not be taken.
        """
        batch = next(self._batches)
        jitter = self._state.jitter.get_value()
        went_well = False
        try:
            for attempt in range(_ATTEMPTS):
                self._state.jitter.set_value(jitter * _ESCALATION**attempt)
                with np.errstate(all="ignore"):
                    taken = self._step(*batch, self._schedule(self.done), self.done >= self._warmup)
                if went_well := taken.went_well:
                    break
        finally:  # an interrupt among others
            if not went_well:
                self._state.jitter.set_value(jitter)
        self._failures = 0 if went_well else self._failures + 1
        if self._failures == _FAILURES:
            raise FloatingPointError(
                f"{_FAILURES} steps, one after the other, had numbers that are not finite: try a smaller learning rate."
            )
        self.done += 1
        if self.done % self._schedule.per_epoch == 0:
            self._state.settle()
        return taken if went_well else taken._replace(log_posterior=np.nan)


def lost_steps(losses: Array) -> str:
    """Return a message about steps that could not be taken, if the last one is among them, from losses with NaN."""
    lost = np.isnan(losses)
    if not lost[-1:].any():
        return ""
    return (
        f"{np.count_nonzero(lost)} of {lost.size} steps, the last one among them, had numbers that are not finite, and "
        "changed nothing: look for rows that lie far from all others, or try a smaller learning rate"
    )


def step_of(problem: BatchProblem, state: State, optimiser: Optimiser, compile_kwargs: dict[str, Any]) -> Step:
    """A step as `make_step` makes it: on arrays, whose loops are machine code, where that can be and pays."""
    interpreted = compile_kwargs.get("mode") is INTERPRETED
    by_graph = runs_in_jax(compile_kwargs) or (interpreted and not beats_graph(problem, state))
    made = None if by_graph else array_step(problem, state, optimiser)
    return made or make_step(problem, state, optimiser, compile_kwargs)
