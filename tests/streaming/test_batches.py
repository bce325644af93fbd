"""Batches: every row once an epoch, reproducible order when resumed, and reading in chunks."""

import numpy as np
import pytest

from pymc_gpep.rows.in_memory import InMemory
from pymc_gpep.streaming.memories import AveragingSchedule, ReplacingSchedule
from pymc_gpep.streaming.run import Batches


class Chunked(InMemory):
    """Rows in chunks of seven. It counts how often each chunk is read."""

    chunk = 7

    def inputs(self, rows):
        self.reads = [*getattr(self, "reads", []), rows.start]
        return super().inputs(rows)


def numbered(kind, n=101):
    return kind(np.arange(float(n))[:, None], np.arange(n))


def taken(batches, after, count):
    order = batches.after(after)
    return [next(order) for _ in range(count)]


@pytest.mark.parametrize("kind", [InMemory, Chunked])
@pytest.mark.parametrize("size", [1, 10, 101])
def test_each_epoch_contains_every_row_once(kind, size):
    batches = Batches(numbered(kind), size, 3)
    assert batches.size <= size
    epochs = []
    for epoch in range(2):
        found = taken(batches, epoch * batches.per_epoch, batches.per_epoch)
        assert all(np.array_equal(batch.inputs[:, 0], batch.labels) for batch in found)
        assert all(np.array_equal(batch.rows, batch.labels) for batch in found)
        assert {len(batch.labels) for batch in found} == {batches.size}
        assert all(batch.weights.sum() >= batches.size - 1 for batch in found)
        labels = np.concatenate([batch.labels[batch.weights == 1] for batch in found])
        assert np.array_equal(np.sort(labels), np.arange(101))
        epochs.append(labels)
    assert not np.array_equal(*epochs)


@pytest.mark.parametrize("kind", [InMemory, Chunked])
def test_resumed_batches_have_the_same_order(kind):
    batches = Batches(numbered(kind), 10, 3)
    whole = taken(batches, 0, 25)
    for after in (1, 10, 11, 17):
        again = taken(Batches(numbered(kind), 10, 3), after, 25 - after)
        for one, other in zip(whole[after:], again, strict=True):
            assert np.array_equal(one.labels, other.labels)
            assert np.array_equal(one.weights, other.weights)


def test_inputs_are_read_only_on_request():
    batches = [Batches(numbered(Chunked), 10, 3, gathers=gathers) for gathers in (True, False)]
    for one, other in zip(*(taken(each, 0, 25) for each in batches), strict=True):
        assert other.inputs.shape == (batches[0].size, 0)
        assert all(map(np.array_equal, one[1:], other[1:]))


def test_resumed_run_does_not_read_earlier_batches():
    rows = numbered(Chunked, 7 * 300)
    batches = Batches(rows, 7, 0)
    taken(batches, 299, 1)
    assert len(rows.reads) < 30


def test_step_sizes_of_the_averaging_schedule_are_averages_at_first_and_decrease_later():
    schedule = AveragingSchedule(4, 1.0)
    assert [schedule(step) for step in range(4)] == [0.5, 1 / 3, 0.25, 0.25]
    assert schedule(4) == 1 / 8
    assert schedule(8) == 1 / 12
    assert {AveragingSchedule(1, 1.0)(step) for step in range(5)} == {0.5}


def test_step_size_of_the_replacing_schedule_is_the_share_of_old_sites():
    assert {ReplacingSchedule(1, 0.0)(step) for step in range(5)} == {0.5}
    assert {ReplacingSchedule(100, 0.0)(step) for step in range(500)} == {0.995}
    assert ReplacingSchedule(4, 1.0)(12) == 0.875 / 4
