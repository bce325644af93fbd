"""Labels of rows, looked at before any work is done with them."""

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.likelihoods.contract import Likelihood
from pymc_gpep.rows.chunks import chunks
from pymc_gpep.rows.contract import Rows
from pymc_gpep.rows.errors import RowError

__all__ = ["checked_labels"]


def checked_labels(rows: Rows, likelihood: Likelihood, functions: int) -> NDArray[np.int64]:
    """Labels (n,) of all rows.

    Raises
    ------
    RowError
        For the first label that the likelihood, of so many functions, does not have.
    """
    found, first = np.empty(rows.n_rows, np.int64), int(getattr(rows, "first", 0))
    for chunk in chunks(rows):
        found[chunk] = here = rows.labels(chunk)
        try:
            likelihood.check(here, functions, len(here))
        except ValueError:
            row = _first_bad(here, likelihood, functions)
            raise RowError(
                _why(here[row : row + 1], likelihood, functions), first + chunk.start + row, _name(rows)
            ) from None
    return found


def _first_bad(labels: NDArray[np.int64], likelihood: Likelihood, functions: int) -> int:
    start, stop = 0, len(labels)
    while stop - start > 1:
        middle = (start + stop) // 2
        start, stop = (start, middle) if _why(labels[start:middle], likelihood, functions) else (middle, stop)
    return start


def _why(labels: NDArray[np.int64], likelihood: Likelihood, functions: int) -> str:
    try:
        likelihood.check(labels, functions, len(labels))
    except ValueError as error:
        return f"has the label {', '.join(map(str, labels))}: {error}"
    return ""


def _name(rows: Rows) -> str:
    return str(getattr(rows, "label_name", ""))
