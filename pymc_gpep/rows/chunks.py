"""Column deviations and random samples of rows, read chunk by chunk in bounded memory."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.rows.rows import Rows


def chunks(rows: Rows) -> Iterator[slice]:
    """The chunks of some rows, in their order."""
    n, size = rows.n_rows, rows.chunk
    return (slice(start, min(start + size, n)) for start in range(0, n, size))


def column_deviations(rows: Rows) -> Array:
    """Standard deviations of the columns of the inputs (d,), in one pass.

    Means and sums of squares are joined as in Chan, Golub and LeVeque (1983, Am. Stat. 37): no digits are lost to means
    that are far from 0.
    """
    count, mean, squares = 0, np.zeros(rows.n_inputs), np.zeros(rows.n_inputs)
    for chunk in chunks(rows):
        x = rows.inputs(chunk)
        total = count + len(x)
        own = x.mean(axis=0)
        apart = own - mean
        squares += ((x - own) ** 2).sum(axis=0) + apart**2 * (count * len(x) / total)
        mean += apart * (len(x) / total)
        count = total
    return np.sqrt(squares / count)


def sample_inputs(rows: Rows, count: int, rng: np.random.Generator) -> Array:
    """Inputs (count, d) of rows that are drawn without replacement; all rows, in their order, if there are no more."""
    return inputs_at(rows, sample_numbers(rows.n_rows, count, rng))


def sample_numbers(n: int, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Which of n rows these are, (count,) or (n,)."""
    return np.arange(n) if count >= n else rng.choice(n, count, replace=False)


def inputs_at(rows: Rows, wanted: NDArray[np.int64]) -> Array:
    """Inputs of some rows, by their numbers, in the order that these have."""
    found = np.empty((len(wanted), rows.n_inputs))
    order = np.argsort(wanted)
    ends = np.searchsorted(wanted[order], [chunk.stop for chunk in chunks(rows)])
    begin = 0
    for chunk, end in zip(chunks(rows), ends, strict=True):
        if end > begin:
            here = order[begin:end]
            found[here] = rows.inputs(chunk)[wanted[here] - chunk.start]
        begin = end
    return found
