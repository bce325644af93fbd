"""The context manager of every fit: progress, one BLAS thread, compile time, callbacks and errors."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any, Self

from numba.core import event
from pymc.progress_bar import CustomProgress
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn
from rich.table import Column

from pymc_gpep.array_types import Array
from pymc_gpep.fits.callbacks import Checkpoint, call, finish
from pymc_gpep.pytensor_settings import without_traces
from pymc_gpep.rows.rows import RowError
from pymc_gpep.solvers.problem import watching
from pymc_gpep.solvers.team import one_blas_thread


class Compilation(event.Listener):
    """Seconds spent compiling.

    Parameters
    ----------
    tell : callable
        Function that is called with the name of a function before it is compiled. It is not called for functions that
        are read from disk, or that are compiled as a part of other functions.
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
    """Return a context manager that measures the time of Numba's compilations."""
    listener = Compilation(tell)
    with event.install_listener("numba:compile", listener):
        yield listener


_PATIENCE = 1.0  # Seconds after which the iterations of a solve are shown.
_QUIET = 5.0  # Seconds between two lines of text, on a terminal that cannot show a bar.


class FitProgress:
    """Progress display of a fit. If the output is not a terminal, a short fit prints one line, at its end.

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
            TextColumn("{task.fields[state]}", table_column=Column()),  # The state may have several lines.
            TimeElapsedColumn(),
            console=console,
            disable=not (shown and moves),
        )
        self._task = self._progress.add_task(f"Fitting {name}", total=None, state="")
        self._state = ""
        self._iteration = 0
        self._solves = 0
        self._began = self._solve_began = self._printed = time.monotonic()

    def start(self) -> None:
        """Show the bar."""
        self._progress.start()

    def stop(self) -> None:
        """Hide the bar, and show the seconds."""
        self._progress.stop()
        self._update(f"{time.monotonic() - self._began:.1f} s", at_once=True)

    def stage(self, what: str) -> None:
        """Show the stage that begins."""
        self._state = what
        self._update(what)

    def iteration(self, number: int, state: str) -> None:
        """Show the end of an iteration of the optimiser."""
        self._iteration = number
        self._solves = 0
        self.stage(state)

    def sweep(self, number: int, evidence: float, residual: float) -> None:
        """Show the end of an iteration of the approximation, if the solve takes long."""
        if number == 1:
            self._solve_began = time.monotonic()
            self._solves += 1
        elif time.monotonic() - self._solve_began > _PATIENCE:
            # An iteration of the optimiser may need several evaluations.
            self._update(f"{self._state}; solve {self._solves}: sweep {number}, residual {residual:.1e}")

    def compiling(self, function: str) -> None:
        """Show the function that will be compiled."""
        what = "the model's graph" if function.startswith("numba_funcified") else function
        self._update(f"compiling {what}, which is kept on disk", at_once=self._state != "compiling")
        self._state = "compiling"

    def _update(self, text: str, at_once: bool = False) -> None:
        self._progress.update(self._task, completed=self._iteration, state=text)
        now = time.monotonic()
        if self._console is not None and (at_once or now - self._printed > _QUIET):
            self._printed = now
            self._console.print(f"{self._name}: iteration {self._iteration}, {text}", highlight=False, soft_wrap=True)


class FitRun:
    """Context manager for the run of a fit. If the run raises a `RowError`, the fit so far becomes its `fit`.

    Parameters
    ----------
    name : str
        Name of the method.
    callbacks : sequence, optional
        Functions of (fit, losses, iteration), see `pymc_gpep.fits.callbacks`.
    progressbar : bool
    theme : rich.theme.Theme
    """

    def __init__(self, name: str, callbacks: Sequence[Any] | None, progressbar: bool, theme: Any) -> None:
        self._callbacks = callbacks or ()
        self.checkpoints = any(isinstance(each, Checkpoint) for each in self._callbacks)
        """Whether a callback writes checkpoints, from which other fits can continue."""
        self._progress = FitProgress(name, progressbar, theme)
        self._contexts: ExitStack
        self._began = time.perf_counter()
        self._of_graphs = 0.0
        self._compiled: Compilation
        self._so_far: Callable[[], Any] = lambda: None

    def __enter__(self) -> Self:
        with ExitStack() as entered:  # After an interrupt, the stack closes the contexts that were entered.
            enter = entered.enter_context
            enter(one_blas_thread())
            enter(without_traces())
            entered.callback(self._progress.stop)  # An interrupted start may leave a thread, which `stop` ends.
            self._progress.start()
            enter(watching(self._progress.sweep))
            self._compiled = enter(compilation(self._progress.compiling))
            self._contexts = entered.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, RowError) and error.fit is None:
            error.fit = self._so_far()
        self._contexts.close()

    def stage(self, what: str) -> None:
        """Show the stage that begins."""
        self._progress.stage(what)

    def iteration(self, number: int, state: str, so_far: Callable[[], Any], losses: Array) -> None:
        """Show the end of an iteration, and call the callbacks.

        Parameters
        ----------
        number : int
            Number of the iteration, or of the step of a fit by batches, from 1.
        state : str
            Text to show.
        so_far : callable
            Function that returns the fit so far. Later iterations do not change it.
        losses : array
            Losses of all iterations.

        Raises
        ------
        StopIteration
            If a callback ends the fit.
        """
        self._progress.iteration(number, state)
        self._so_far = so_far
        if self._callbacks:
            call(self._callbacks, so_far(), losses, number)

    def graphs_are_made(self) -> None:
        """Count the time until now as compile time. A plan calls this method when its graphs are made."""
        until_now, _ = self.seconds()
        self._of_graphs = until_now

    def seconds(self) -> tuple[float, float]:
        """Return the seconds of the fit without compilation, and the seconds of compilation."""
        compiling = self._compiled.seconds
        all_else = time.perf_counter() - self._began - compiling
        return all_else - self._of_graphs, compiling + self._of_graphs

    def finish(self, fit: Any) -> None:
        """Call the method `finish` of the callbacks, at the end of the fit."""
        finish(self._callbacks, fit)
