"""A listener to numba: how long compiling takes, and of which function."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from numba.core import event

__all__ = ["Compilation", "compilation"]


class Compilation(event.Listener):
    """Seconds spent compiling.

    Parameters
    ----------
    tell : callable
        Called with the name of a function before it is compiled; not for what is read from disk, nor for what the
        function calls.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.seconds = 0.0
        self._tell = tell
        self._depth = 0
        self._began = 0.0

    def on_start(self, event: event.Event) -> None:
        if self._depth == 0:
            self._began = time.perf_counter()
            self._tell(event.data["dispatcher"].py_func.__name__)
        self._depth += 1

    def on_end(self, event: event.Event) -> None:
        self._depth -= 1
        if self._depth == 0:
            self.seconds += time.perf_counter() - self._began


@contextmanager
def compilation(tell: Callable[[str], None]) -> Iterator[Compilation]:
    """Listen to numba inside of this context."""
    listener = Compilation(tell)
    with event.install_listener("numba:compile", listener):
        yield listener
