"""The progress of work on many rows: a bar, or lines of text where none can move, once it takes a while."""

import time
from datetime import timedelta
from typing import Any

from pymc.progress_bar import CustomProgress, default_progress_theme
from rich.console import Console

__all__ = ["RowProgress", "progress_bar"]

_PATIENCE = 1.0  # seconds before anything is shown
_QUIET = 5.0  # seconds between lines of text


def progress_bar(shown: bool) -> CustomProgress:
    """Return a bar for pieces of work that take long each; a context."""
    return CustomProgress(console=Console(theme=default_progress_theme), disable=not shown)


class RowProgress:
    """How many of so many rows are done, and the time that is left; a context.

    An interrupt (Ctrl-C) within it is raised again with how many rows were done.

    Parameters
    ----------
    what : str
        What is done, such as "Predicting".
    total : int
    shown : bool
    unit : str
        What is counted.
    """

    def __init__(self, what: str, total: int, shown: bool, unit: str = "rows") -> None:
        self._what, self._total, self._unit = what, total, unit
        console = Console(theme=default_progress_theme)
        moves = console.is_terminal or console.is_jupyter
        self._console = console if shown and not moves else None
        self._bar = CustomProgress(console=console, disable=not (shown and moves))
        self._task = self._bar.add_task(what, total=total)
        self._done = 0
        self._began = time.monotonic()
        self._next = self._began + _PATIENCE

    def __enter__(self) -> "RowProgress":
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self._bar.stop()
        if kind is KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"{self._what} was interrupted: {self._done} of {self._total} {self._unit} were done."
            ) from None

    def advance(self, rows: int) -> None:
        """So many more rows are done."""
        self._done += rows
        self._bar.update(self._task, completed=self._done)
        now = time.monotonic()
        if now < self._next or self._done >= self._total:
            return
        self._next = now + _QUIET
        if self._console is None:
            self._bar.start()  # nothing happens where it has begun, or is not to be shown
        else:
            left = timedelta(seconds=round((now - self._began) * (self._total - self._done) / self._done))
            text = f"{self._what}: {self._done} of {self._total} {self._unit}, {left} left"
            self._console.print(text, highlight=False, soft_wrap=True)
