"""The progress of a fit: a line that moves in a terminal or notebook, and lines of text elsewhere."""

import time
from typing import Any

from pymc.progress_bar import CustomProgress
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

__all__ = ["FitProgress"]

_PATIENCE = 1.0  # seconds that a solve takes before its iterations are shown
_QUIET = 5.0  # seconds between lines of text where no line can move


class FitProgress:
    """The progress of one fit; a context.

    Parameters
    ----------
    name : str
        Name of the approximation.
    shown : bool
    theme : rich.theme.Theme
    """

    def __init__(self, name: str, shown: bool, theme: Any) -> None:
        console = Console(theme=theme)
        moves = console.is_terminal or console.is_jupyter
        self._console = console if shown and not moves else None
        self._name = name
        self._progress = CustomProgress(
            *Progress.get_default_columns()[:1],
            TextColumn("iteration {task.completed}"),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
            console=console,
            disable=not (shown and moves),
        )
        self._task = self._progress.add_task(f"Fitting {name}", total=None, state="")
        self._state = ""
        self._iteration = 0
        self._solves = 0
        self._solve_began = self._printed = time.monotonic()

    def __enter__(self) -> "FitProgress":
        self._progress.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._progress.stop()

    def stage(self, what: str) -> None:
        """Say what begins."""
        self._show(what, at_once=True)

    def iteration(self, number: int, state: str) -> None:
        """An iteration of the optimiser is done."""
        self._iteration = number
        self._solves = 0
        self._show(state)

    def sweep(self, number: int, evidence: float, residual: float) -> None:
        """An iteration of the approximation is done."""
        if number == 1:
            self._solve_began = time.monotonic()
            self._solves += 1
        elif time.monotonic() - self._solve_began > _PATIENCE:
            # An iteration of the optimiser may want several.
            self._update(f"{self._state}; solve {self._solves}: sweep {number}, residual {residual:.1e}")

    def compiling(self, function: str) -> None:
        """A function is about to be compiled."""
        what = "the model's graph" if function.startswith("numba_funcified") else function
        self._update(f"compiling {what}, which is kept on disk", at_once=self._state != "compiling")
        self._state = "compiling"

    def _show(self, state: str, at_once: bool = False) -> None:
        self._state = state
        self._update(state, at_once)

    def _update(self, text: str, at_once: bool = False) -> None:
        self._progress.update(self._task, completed=self._iteration, state=text)
        now = time.monotonic()
        if self._console is not None and (at_once or now - self._printed > _QUIET):
            self._printed = now
            self._console.print(f"{self._name}: iteration {self._iteration}, {text}", highlight=False, soft_wrap=True)
