"""Which method an estimator takes, by the number of its rows and of its latent functions."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from pymc_gpep.sklearn.response import Response
from pymc_gpep.structure.memory import available_memory

__all__ = ["Choice", "choose"]

_AGAIN = 300  # most rows for which the maximum is looked for from two starts: few rows leave several maxima
_INDUCING = 100  # inducing inputs
_SWEPT = 100_000  # most rows that sweeps go over
_BATCH = 500  # rows of a step, beyond
_STEPS = 1000  # the fewest of them
_MATRICES = 6  # of n × n numbers, for each latent function, that a search with derivatives holds


class Choice(NamedTuple):
    """A method and its options, for `pm.fit`.

    Attributes
    ----------
    method : str
    options : dict
    steps : int or None
        Limit on iterations or number of steps; None for that of `pm.fit`.
    """

    method: str
    options: Mapping[str, Any]
    steps: int | None = None

    def given(self, options: Mapping[str, Any]) -> "Choice":
        """Return the same choice with options of the user's in place of its own."""
        others = {name: value for name, value in options.items() if name != "n"}
        return Choice(self.method, dict(self.options) | others, options.get("n", self.steps))

    def __str__(self) -> str:
        """Name of the method, and what it takes besides."""
        told = [self.method]
        if "inducing" in self.options:
            inducing = self.options["inducing"]
            told.append(f"{inducing if np.ndim(inducing) == 0 else np.shape(inducing)[-2]} inducing inputs")
        if "batch_size" in self.options:
            told.append(f"{self.steps} steps of {self.options['batch_size']} rows")
        return ", ".join(told)


def choose(method: str, response: Response, n: int, max_dense_rows: int) -> Choice:
    """Choose a method.

    Parameters
    ----------
    method : str
        `"auto"`, or a name that `pm.fit` knows.
    response : Response
    n : int
        Number of rows.
    max_dense_rows : int
        Most rows for a method that works on all of them together.

    Raises
    ------
    ValueError
        If there are more rows than `max_dense_rows`, and no method with inducing inputs.
    """
    if method != "auto":
        return _of_name(method, n)
    dense = n <= max_dense_rows and 8.0 * _MATRICES * (response.functions + 1) * n * n < available_memory()
    if response.dense and (dense or not response.sparse):
        if n > max_dense_rows:
            raise ValueError(
                f"There are {n} rows, and max_dense_rows is {max_dense_rows}. Numbers and counts are fitted by all "
                "rows together, in a time that grows with the cube of their number. Raise max_dense_rows, or fit fewer."
            )
        return _of_name(response.dense, n)
    return _of_name(response.sparse, n)


def _of_name(method: str, n: int) -> Choice:
    """Make the choice of a method: starts, or inducing inputs and batches where there are many rows."""
    if method not in ("sparse_ep", "sparse_vi", "sparse_sep", "gfitc"):
        return Choice(method, {"starts": 2} if n <= _AGAIN else {})
    options: dict[str, Any] = {"inducing": min(_INDUCING, n), "shared_inducing": True}
    if n <= _SWEPT or method == "gfitc":
        return Choice(method, options)
    return Choice(method, options | {"batch_size": _BATCH}, max(_STEPS, -(-n // _BATCH)))
