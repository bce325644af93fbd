"""Labels of rows, looked at before any work is done with them."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.rows.chunks import chunks
from pymc_gpep.rows.rows import RowError, Rows


def checked_labels(rows: Rows, likelihood: Likelihood, functions: int) -> NDArray[np.int64]:
    """Labels (n,) of all rows.

    Raises
    ------
    RowError
        For the first label that the likelihood, of so many functions, does not have.
    """
    found = np.empty(rows.n_rows, np.int64)
    for chunk, labels in checked_chunks(rows, likelihood, functions):
        found[chunk] = labels
    return found


def checked_chunks(rows: Rows, likelihood: Likelihood, functions: int) -> Iterator[tuple[slice, NDArray[np.int64]]]:
    """Chunk by chunk the labels of all rows; raises what `checked_labels` does."""
    first = int(getattr(rows, "first", 0))
    for chunk in chunks(rows):
        here = rows.labels(chunk)
        if _why(here, likelihood, functions):
            row = _first_bad(here, likelihood, functions)
            of_all = _why(_different(rows), likelihood, functions) or _why(here, likelihood, functions)
            raise RowError(f"has the label {here[row]}: {of_all}", first + chunk.start + row, _name(rows))
        yield chunk, here


def _different(rows: Rows) -> NDArray[np.int64]:
    """The labels that there are, of which the advice in a message is; none where some cannot be read."""
    found = np.empty(0, np.int64)
    try:
        for chunk in chunks(rows):
            found = np.union1d(found, rows.labels(chunk))
    except (TypeError, ValueError):
        return np.empty(0, np.int64)
    return found


def _first_bad(labels: NDArray[np.int64], likelihood: Likelihood, functions: int) -> int:
    start, stop = 0, len(labels)
    while stop - start > 1:
        middle = (start + stop) // 2
        start, stop = (start, middle) if _why(labels[start:middle], likelihood, functions) else (middle, stop)
    return start


def _why(labels: NDArray[np.int64], likelihood: Likelihood, functions: int) -> str:
    """What is wrong with some labels; empty if nothing is."""
    try:
        if labels.size:
            likelihood.check(labels, functions, len(labels))
    except ValueError as error:
        return str(error)
    return ""


def _name(rows: Rows) -> str:
    return str(getattr(rows, "label_name", ""))
