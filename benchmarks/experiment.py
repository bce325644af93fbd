"""What an experiment of a paper is: pieces of work that are kept on disk, and a report made of them."""

import json
import os
import shutil
import signal
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from contextlib import nullcontext
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from hashlib import sha256
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from matplotlib.figure import Figure
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.common import Table

Arrays = dict[str, np.ndarray]

_OF_RUN = "seconds", "commit"  # what each result says of itself

THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")

PLACES = ("data", "folder", "python")  # arguments that say where something is, which does not change what it is


@dataclass(frozen=True)
class Cell:
    """A piece of work that needs no other: `function(**arguments)` returns named arrays.

    The function must be one of a module, so that another process finds it. Arguments must be JSON's: those that are
    stored with a result say whether it is still the result of this cell. With `resumes`, the function also gets
    `checkpoint`, the path of a file or folder that belongs to the cell alone, to keep there what it needs to go on
    after a break.
    """

    name: str
    function: Callable[..., Mapping[str, Any]]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    resumes: bool = False

    @property
    def identity(self) -> str:
        settings = {name: value for name, value in self.arguments.items() if name not in PLACES}
        return json.dumps([f"{self.function.__module__}.{self.function.__name__}", settings], sort_keys=True)


class Experiment(ABC):
    """A figure or table of the paper."""

    title: str
    alone: ClassVar[bool] = False
    """Whether cells must not run side by side, as where they are timed."""
    sizable: ClassVar[bool] = False
    """Whether the number of points to learn from can be chosen."""
    size: int
    """That number, where it can."""

    @abstractmethod
    def cells(self, data: str, quick: bool) -> Sequence[Cell]:
        """Pieces of work, in the order in which they should begin; `data` is the folder of the data sets."""

    @abstractmethod
    def report(self, found: Mapping[str, Arrays]) -> tuple[dict[str, Any], str]:
        """Figures for JSON and tables for people, from what the cells returned, by name.

        `seconds` and `commit` are among what each returned. Cells that failed are missing, and the report says so.
        """

    def tables(self, found: Mapping[str, Arrays]) -> Mapping[str, Table]:
        """The tables that a page shows, by key, where they are stored beside the pages."""
        return {}

    def drawn_tables(self, pictured: Mapping[str, Arrays]) -> Mapping[str, Table]:
        """Tables that the numbers of the picture determine, by key: a page builds them from these numbers."""
        return {}

    def pictured(self, found: Mapping[str, Arrays]) -> Mapping[str, Arrays]:
        """The part of what the cells returned that the picture needs, small enough to be kept with the pages."""
        return found

    def draw(self, found: Mapping[str, Arrays]) -> Figure | None:
        """The picture of what `pictured` returned, where the paper has one."""
        return None


def workers(jobs: int) -> ProcessPoolExecutor:
    """Make a pool of processes that begin with their first cell, and end with this process."""
    return ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_end_with_parent)


class InThisProcess(Executor):
    """A pool that is this process: what is submitted has been done when `submit` returns."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def compute(
    cells: Sequence[Cell],
    folder: Path,
    jobs: int,
    only: Sequence[str] = ("*",),
    pool: Executor | None = None,
) -> tuple[dict[str, Arrays], dict[str, str]]:
    """What the cells return, and the errors of those that failed, by name.

    Results that are in `folder` already are not computed again; of the others those whose name fits one of the patterns
    `only` are. Each of `jobs` processes has its share of the cores as
    threads for BLAS, unless the environment says otherwise; with 0 nothing is computed. A KeyboardInterrupt ends the
    processes, and what they had finished is kept. Cells are submitted to `pool` where one is given, which goes on.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found = {cell.name: result for cell in cells if (result := _load(cell, folder)) is not None}
    missing = [cell for cell in cells if cell.name not in found and any(fnmatchcase(cell.name, each) for each in only)]
    if len({cell.name for cell in cells}) != len(cells):
        raise ValueError("Two cells have the same name.")
    errors: dict[str, str] = {}
    if not missing or not jobs:
        return found, errors
    # Libraries read these when they are imported, which new processes do anew.
    for name in THREADS:
        os.environ.setdefault(name, str(max(1, (os.cpu_count() or 1) // jobs)))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with workers(jobs) if pool is None else nullcontext(pool) as pool, Progress(*columns) as progress:
        task = progress.add_task("cells", total=len(missing))
        commit = _commit()
        try:
            futures = {pool.submit(_run, cell, folder, commit): cell for cell in missing}
            for future in as_completed(futures):
                name = futures[future].name
                try:
                    found[name] = future.result()
                    progress.console.print(f"{name}: {float(found[name]['seconds']):.1f} s")
                except Exception as error:  # the other cells are still worth having
                    errors[name] = f"{type(error).__name__}: {error}"
                    progress.console.print(f"{name}: {errors[name]}")
                progress.advance(task)
        except KeyboardInterrupt:
            # The pool would wait for all that was submitted.
            pool.shutdown(wait=False, cancel_futures=True)
            for process in active_children():
                process.terminate()
            raise
    return found, errors


def _end_with_parent() -> None:
    """Let this process end with its parent, and at once where both are interrupted."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    parent = parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def returned(arrays: Arrays) -> Arrays:
    """Return what the function of a cell returned, without what is known of its run."""
    return {key: values for key, values in arrays.items() if key not in _OF_RUN}


def _commit() -> str:
    """The commit of this code, with `-dirty` where it has been changed since."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"]
    try:
        run = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return run.stdout.strip()


def _run(cell: Cell, folder: Path, commit: str) -> Arrays:
    arguments = dict(cell.arguments)
    # One of other arguments is none of this cell.
    checkpoint = folder / f"{cell.name}.{sha256(cell.identity.encode()).hexdigest()[:8]}.checkpoint"
    if cell.resumes:
        arguments["checkpoint"] = checkpoint
    began = time.perf_counter()
    result = {key: np.asarray(value) for key, value in cell.function(**arguments).items()}
    result = {"seconds": np.asarray(time.perf_counter() - began), "commit": np.asarray(commit)} | result
    # A file is either whole or not there.
    unfinished = folder / f"{cell.name}.part"
    with unfinished.open("wb") as file:
        np.savez_compressed(file, __cell__=cell.identity, **result)
    unfinished.replace(folder / f"{cell.name}.npz")
    if checkpoint.is_dir():
        shutil.rmtree(checkpoint)
    checkpoint.unlink(missing_ok=True)
    return result


def _load(cell: Cell, folder: Path) -> Arrays | None:
    file = folder / f"{cell.name}.npz"
    if not file.exists():
        return None
    with np.load(file) as stored:
        if str(stored["__cell__"]) != cell.identity:
            return None
        return {key: stored[key] for key in stored.files if key != "__cell__"}
