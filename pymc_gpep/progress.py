"""Progress of long work on many rows: a bar, or lines of text if the output cannot show a bar."""

import time
from datetime import timedelta
from typing import Any

from pymc.progress_bar import CustomProgress, default_progress_theme
from rich.console import Console

_PATIENCE = 1.0  # Delay in seconds, after the first piece of work, before the bar appears.
_QUIET = 5.0  # Seconds between two lines of text.


def progress_bar(shown: bool, within: bool = False) -> CustomProgress:
    """Return a progress bar, a context manager. A bar within a fit leaves no line on the screen."""
    console = Console(theme=default_progress_theme)
    moves = console.is_terminal or console.is_jupyter
    return CustomProgress(console=console, transient=within, disable=not shown or (within and not moves))


class RowProgress:
    """Display of the finished share of work on rows, and of the remaining time; a context manager.

    The first piece of the work includes compilation. So it is left out of the estimate of the remaining time, and of
    the delay before the bar appears. An interrupt (Ctrl-C) is raised again with the finished share in percent.

    Parameters
    ----------
    what : str
        Name of the work, such as "Predicting".
    total : int
        Number of rows, times the number of hyperparameter nodes.
    shown : bool
    """

    def __init__(self, what: str, total: int, shown: bool) -> None:
        self._what, self._total = what, total
        console = Console(theme=default_progress_theme)
        moves = console.is_terminal or console.is_jupyter
        self._console = console if shown and not moves else None
        self._bar = CustomProgress(console=console, disable=not (shown and moves))
        self._task = self._bar.add_task(what, total=total)
        self._done = 0
        self._first: tuple[int, float] | None = None  # Rows of the first piece, and its finish time.
        self._next = 0.0

    def __enter__(self) -> "RowProgress":
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self._bar.stop()
        if kind is KeyboardInterrupt:
            raise KeyboardInterrupt(f"{self._what} was interrupted: {self._percent()} was done.") from None

    def advance(self, rows: int) -> None:
        """Show that `rows` more rows are done."""
        self._done += rows
        self._bar.update(self._task, completed=self._done)
        now = time.monotonic()
        if self._first is None:
            self._first, self._next = (self._done, now), now + _PATIENCE
            return
        if now < self._next or self._done >= self._total:
            return
        self._next = now + _QUIET
        if self._console is None:
            self._bar.start()  # No effect on a started or hidden bar.
        else:
            before, began = self._first
            left = timedelta(seconds=round((now - began) * (self._total - self._done) / (self._done - before)))
            self._console.print(f"{self._what}: {self._percent()}, {left} left", highlight=False, soft_wrap=True)

    def _percent(self) -> str:
        return f"{self._done / max(self._total, 1):.0%}"
