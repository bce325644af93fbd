"""Experiments of papers: pieces of work that are stored on disk, and a report from their results."""

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

_OF_RUN = "seconds", "commit"  # keys of each result that describe its run

THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")

PLACES = ("data", "folder", "python")  # arguments that are locations and do not change the result


@dataclass(frozen=True)
class Cell:
    """A piece of work that needs no other piece: `function(**arguments)` returns named arrays.

    The function must be in a module, so that other processes can import it. Arguments must be JSON values. They are
    stored with the result, and decide whether a stored result belongs to this cell. With `resumes`, the function also
    receives `checkpoint`: the path of a file or folder of this cell, for data that it needs to continue after an
    interruption.
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
    """Whether cells must not run at the same time, for example because they are timed."""
    sizable: ClassVar[bool] = False
    """Whether the number of training points can be chosen."""
    size: int
    """Number of training points, if it can be chosen."""

    @abstractmethod
    def cells(self, data: str, quick: bool) -> Sequence[Cell]:
        """Pieces of work, in the order in which they start. `data` is the folder of the data sets."""

    @abstractmethod
    def report(self, found: Mapping[str, Arrays]) -> tuple[dict[str, Any], str]:
        """Figures for JSON and tables for readers, from the results of the cells by name.

        Results include `seconds` and `commit`. Failed cells are missing, and the report names them.
        """

    def tables(self, found: Mapping[str, Arrays]) -> Mapping[str, Table]:
        """Tables of a page by key, stored with the pages."""
        return {}

    def drawn_tables(self, pictured: Mapping[str, Arrays]) -> Mapping[str, Table]:
        """Tables that follow from the numbers of the picture, by key. A page builds them from these numbers."""
        return {}

    def joined_tables(self, stored: Mapping[str, Sequence[Sequence[str]]]) -> Mapping[str, tuple[set[str], Table]]:
        """Tables that add up the rows of stored tables of several runs, and the keys of these tables, by key."""
        return {}

    def pictured(self, found: Mapping[str, Arrays]) -> Mapping[str, Arrays]:
        """The part of the results that the picture needs, small enough to be stored with the pages."""
        return found

    def draw(self, found: Mapping[str, Arrays]) -> Figure | None:
        """The picture of the result of `pictured`, if the paper has one."""
        return None


def workers(jobs: int) -> ProcessPoolExecutor:
    """Make a pool of processes that start with their first cell, and end with the current process."""
    return ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_end_with_parent)


class InThisProcess(Executor):
    """A pool that runs each piece in the current process, within `submit`."""

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
    """Results of the cells, and errors of failed cells, by name.

    Results that are stored in `folder` are not computed again. Other cells are computed if their name matches a pattern
    in `only`. Each of `jobs` processes has its share of the cores as threads for BLAS, unless the environment sets
    them. With 0 jobs nothing is computed. A KeyboardInterrupt ends the processes and keeps finished results. If `pool`
    is given, cells are submitted to it, and it stays open.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found = {cell.name: result for cell in cells if (result := _load(cell, folder)) is not None}
    missing = [cell for cell in cells if cell.name not in found and any(fnmatchcase(cell.name, each) for each in only)]
    if len({cell.name for cell in cells}) != len(cells):
        raise ValueError("Two cells have the same name.")
    errors: dict[str, str] = {}
    if not missing or not jobs:
        return found, errors
    # Libraries read these variables when new processes import them.
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
                except Exception as error:  # the remaining cells are still computed
                    errors[name] = f"{type(error).__name__}: {error}"
                    progress.console.print(f"{name}: {errors[name]}")
                progress.advance(task)
        except KeyboardInterrupt:
            # the pool would wait for all submitted cells
            pool.shutdown(wait=False, cancel_futures=True)
            for process in active_children():
                process.terminate()
            raise
    return found, errors


def _end_with_parent() -> None:
    """Let the current process end with its parent, and immediately if both are interrupted."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    parent = parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def returned(arrays: Arrays) -> Arrays:
    """Return the arrays of a result, without the description of its run."""
    return {key: values for key, values in arrays.items() if key not in _OF_RUN}


def _commit() -> str:
    """The commit of the current code, with `-dirty` if it has been changed since."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"]
    try:
        run = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return run.stdout.strip()


def _run(cell: Cell, folder: Path, commit: str) -> Arrays:
    arguments = dict(cell.arguments)
    # a result with other arguments belongs to another cell
    checkpoint = folder / f"{cell.name}.{sha256(cell.identity.encode()).hexdigest()[:8]}.checkpoint"
    if cell.resumes:
        arguments["checkpoint"] = checkpoint
    began = time.perf_counter()
    result = {key: np.asarray(value) for key, value in cell.function(**arguments).items()}
    result = {"seconds": np.asarray(time.perf_counter() - began), "commit": np.asarray(commit)} | result
    # a file is either complete or missing
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
