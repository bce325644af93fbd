"""The run of a fit by batches. Each epoch visits every row once, in an order that depends only on the seed."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pytensor.compile.mode import get_mode

from pymc_gpep.array_types import Array
from pymc_gpep.graphs.interpreted import runs_in_jax
from pymc_gpep.rows.rows import Rows, chunks
from pymc_gpep.streaming.memories import Schedule
from pymc_gpep.streaming.state import State
from pymc_gpep.streaming.step import BatchProblem, Optimiser, Step, Taken, array_step

_BUFFERED = 20  # Smallest number of batches whose rows are shuffled together.
_CHUNKS = 8  # Smallest number of chunks whose rows are shuffled together.
_FEW, _OF_BATCH = 300, 1.5  # Largest number of rows for a single batch, and this number in units of the batch size.


def one_batch(rows: int, size: int) -> bool:
    """Return whether all rows form one batch in place of batches of `size` rows, because they are few."""
    return rows <= min(_FEW, _OF_BATCH * size)


class Batch(NamedTuple):
    """Batch of B rows. The last row may be a copy for padding, with weight 0."""

    inputs: Array
    """Inputs, (B, d); (B, 0) if batches have no inputs."""
    labels: NDArray[np.int64]
    """Labels, (B,)."""
    weights: Array
    """Weights, (B,): 1, or 0 for padding."""
    rows: NDArray[np.int64]
    """Indices of the rows among all rows, (B,)."""


class Batches:
    """Batches of rows in memory or in storage. Sizes differ by at most one row, and padding makes sizes equal.

    Chunks are read in random order, and several chunks are shuffled together. Rows in memory are one chunk. A batch
    depends only on the seed, the epoch, and its position in the epoch.

    Parameters
    ----------
    rows : Rows
    batch_size : int
        Largest number of rows in a batch. The number of batches is as small as possible.
    seed : int
    gathers : bool
        Whether batches contain inputs.
    """

    def __init__(self, rows: Rows, batch_size: int, seed: int, gathers: bool = True) -> None:
        self._rows = rows
        self._seed = seed
        self._gathers = gathers
        self.per_epoch = -(-rows.n_rows // batch_size)
        self.size = -(-rows.n_rows // self.per_epoch)

    def after(self, step: int) -> Iterator[Batch]:
        """Yield batches without end, and skip the first `step` batches."""
        epoch, done = divmod(step, self.per_epoch)
        while True:
            yield from self._epoch(epoch, done)
            epoch, done = epoch + 1, 0

    def _epoch(self, epoch: int, done: int) -> Iterator[Batch]:
        """Yield the batches of an epoch after its first `done` batches. Rows of these are not read."""
        rng = np.random.default_rng([self._seed, epoch])
        all_chunks = list(chunks(self._rows))
        order = [all_chunks[i] for i in rng.permutation(len(all_chunks))]
        together = max(_CHUNKS, -(-_BUFFERED * self.size // self._rows.chunk))
        skip, place = self._rows_before(done), done
        held: list[tuple[Array, NDArray[np.int64], NDArray[np.int64]]] = []
        for first in range(0, len(order), together):
            buffer = order[first : first + together]
            count = sum(chunk.stop - chunk.start for chunk in buffer)
            shuffled = rng.permutation(count)[skip:]
            skip = max(skip - count, 0)
            if not shuffled.size:
                continue
            inputs, labels = self._read(buffer)
            rows = np.concatenate([np.arange(chunk.start, chunk.stop) for chunk in buffer])
            while shuffled.size:
                missing = self._rows_before(place + 1) - self._rows_before(place) - sum(len(y) for _, y, _ in held)
                part, shuffled = shuffled[:missing], shuffled[missing:]
                held.append((inputs[part], labels[part], rows[part]))
                if len(part) == missing:
                    yield self._joined(held)
                    held, place = [], place + 1

    def _rows_before(self, place: int) -> int:
        """Return the number of rows in the first batches of an epoch."""
        return place * self._rows.n_rows // self.per_epoch

    def _read(self, buffer: list[slice]) -> tuple[Array, NDArray[np.int64]]:
        if not self._gathers:
            labels = np.concatenate([self._rows.labels(chunk) for chunk in buffer])
            return np.empty((len(labels), 0)), labels
        if len(buffer) == 1:
            return self._rows.inputs(buffer[0]), self._rows.labels(buffer[0])
        ends = np.cumsum([chunk.stop - chunk.start for chunk in buffer])
        inputs, labels = np.empty((ends[-1], self._rows.n_inputs)), np.empty(ends[-1], np.int64)
        # Read one chunk at a time: two chunks are never in memory together.
        for chunk, end in zip(buffer, ends, strict=True):
            here = slice(end - (chunk.stop - chunk.start), end)
            inputs[here], labels[here] = self._rows.inputs(chunk), self._rows.labels(chunk)
        return inputs, labels

    def _joined(self, held: list[tuple[Array, NDArray[np.int64], NDArray[np.int64]]]) -> Batch:
        # A batch of a single part is not copied.
        inputs, labels, rows = held[0] if len(held) == 1 else map(np.concatenate, zip(*held, strict=True))
        missing = self.size - len(labels)
        weights = np.r_[np.ones(len(labels)), np.zeros(missing)]
        if missing:
            inputs, labels, rows = (
                np.concatenate([each, each[:1].repeat(missing, axis=0)]) for each in (inputs, labels, rows)
            )
        return Batch(np.ascontiguousarray(inputs, np.float64), labels, weights, rows)


_ESCALATION, _ATTEMPTS = 100.0, 3  # Factor of the jitter from attempt to attempt, and number of attempts at a step.
_FAILURES = 20  # A fit stops after this number of consecutive failed steps.


class Run:
    """Loop of a fit by batches, one step at a time.

    Parameters
    ----------
    step : Step
    state : State
    batches : Batches
    schedule : Schedule
    warmup : int
        Number of first steps with fixed hyperparameters and inducing inputs. In these, only q adapts.
    done : int
        Number of earlier steps.
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

        If a number is not finite, the step is repeated with more jitter on the covariance of the inducing values. After
        several attempts the step is skipped, without a change of the state.

        Raises
        ------
        FloatingPointError
            If many consecutive steps fail.
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
        finally:  # This also runs after an interrupt.
            if not went_well:
                self._state.jitter.set_value(jitter)
        self._failures = 0 if went_well else self._failures + 1
        if self._failures == _FAILURES:
            raise FloatingPointError(
                f"{_FAILURES} consecutive steps failed, since numbers were not finite. Try a smaller learning rate."
            )
        self.done += 1
        if self.done % self._schedule.per_epoch == 0:
            self._state.settle()
        return taken if went_well else taken._replace(log_posterior=np.nan)


def lost_steps(losses: Array) -> str:
    """Return a message on failed steps (NaN losses) if the last step failed; else empty."""
    lost = np.isnan(losses)
    if not lost[-1:].any():
        return ""
    return (
        f"{np.count_nonzero(lost)} of {lost.size} steps failed, including the last step, since numbers were not "
        "finite. Check for rows that lie far from all other rows, or try a smaller learning rate"
    )


def step_of(problem: BatchProblem, state: State, optimiser: Optimiser, compile_kwargs: dict[str, Any]) -> Step:
    """Return a step in NumPy, or in JAX if `compile_kwargs` select JAX."""
    if not runs_in_jax(compile_kwargs):
        return array_step(problem, state, optimiser)
    from pymc_gpep.streaming.jax_step import jax_step

    return jax_step(problem, state, optimiser, get_mode(compile_kwargs.get("mode")))
