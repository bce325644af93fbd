"""Records of iterations, and how somebody who waits for a solver is told of them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["History", "Watch", "watching"]

type Watch = Callable[[int, float, float], None]
"""Function of the number of iterations so far, evidence and residual."""

_watch: ContextVar[Watch | None] = ContextVar("watch", default=None)


@contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """Call `watch` after each iteration of any solver that runs inside of this context, in the same thread."""
    token = _watch.set(watch)
    try:
        yield
    finally:
        _watch.reset(token)


class History:
    """Evidence and residual at each iteration, up to a limit.

    Parameters
    ----------
    limit : int
        On iterations.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._rows: list[tuple[float, float]] = []
        self._watch = _watch.get()

    def add(self, evidence: float, residual: float) -> None:
        """Record an iteration."""
        self._rows.append((evidence, residual))
        if self._watch is not None:
            self._watch(len(self._rows), evidence, residual)

    def __len__(self) -> int:
        """Number of iterations."""
        return len(self._rows)

    def is_full(self) -> bool:
        """Whether the limit is reached."""
        return len(self._rows) >= self.limit

    @property
    def smallest_residual(self) -> float:
        """The smallest residual so far, infinite before the first."""
        return min((residual for _, residual in self._rows), default=np.inf)

    @property
    def array(self) -> NDArray[np.float64]:
        """Evidence and residual, (iterations, 2)."""
        return np.array(self._rows, dtype=np.float64).reshape(-1, 2)
