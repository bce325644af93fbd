"""Threads: one for BLAS, and a few threads of this package for independent work.

The threads of OpenBLAS wait for each other at every call. If another process uses a core, each wait depends on the
scheduler, and a solve takes a hundred times as long. Therefore BLAS uses one thread. Independent work, such as the
factorisations for the classes, is divided into pieces of a millisecond or more. A delayed thread then runs fewer
pieces.
"""

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from itertools import product
from multiprocessing import parent_process
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import LibController, ThreadpoolController

_SMALL = 200  # Number of points below which threads cost more than they save.
_MEMORY = 2e9  # Largest number of bytes of matrices of parallel solves.


class _Shift:
    """Workers on a list of tasks, and the threads that they share.

    Parameters
    ----------
    busy : int
        Number of workers that have not finished.
    threads : int
        Total number of threads, workers included.
    """

    def __init__(self, busy: int, threads: int) -> None:
        self._lock = threading.Lock()
        self._busy = busy
        self._threads = threads

    def leave(self) -> None:
        """Record the end of a worker."""
        with self._lock:
            self._busy -= 1

    @property
    def share(self) -> int:
        """Number of threads for each running worker; threads of finished workers are reused."""
        return self._threads // self._busy


# Workers of the list of tasks on which this thread works.
_shift: ContextVar[_Shift | None] = ContextVar("shift", default=None)


class Team:
    """Context with the current thread and helper threads.

    Parameters
    ----------
    helpers : int
        Number of helper threads. They end with the context.
    """

    def __init__(self, helpers: int = 0) -> None:
        self._pool = ThreadPoolExecutor(helpers) if helpers else None
        self.size = helpers + 1

    def __enter__(self) -> "Team":
        return self

    def __exit__(self, *raised: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def each[T, R](self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """Return the list of `function(item)`, in order. Functions should release the interpreter's lock."""
        listed = list(items)
        if self._pool is None or len(listed) < 2:
            return [function(item) for item in listed]
        results: list[Any] = [None] * len(listed)
        left = iter(enumerate(listed))  # Threads share this iterator, since next() is atomic.
        together = min(self.size, len(listed))
        shift = _Shift(together, max(_allowed(), together))

        def work() -> None:
            before = _shift.set(shift)
            try:
                for place, item in left:
                    results[place] = function(item)
            finally:
                _shift.reset(before)
                for _ in left:  # After a failure, drop the remaining items.
                    pass
                shift.leave()

        helping = [self._pool.submit(work) for _ in range(together - 1)]
        try:
            work()
        finally:
            wait(helping)
        for helper in helping:
            helper.result()
        return results


ALONE = Team()
"""Team of the current thread alone."""


def gather(n: int) -> Team:
    """Return a team for work on n × n matrices. For large matrices it uses all threads that the user allows BLAS."""
    return Team(_allowed() - 1) if n >= _SMALL else ALONE


def gather_for_pieces() -> Team:
    """Return a team for many small pieces of work."""
    return Team(_allowed() - 1)


def gather_for_solves(c: int, n: int) -> Team:
    """Return a team for parallel solves with c functions at n points. The solves share remaining threads."""
    together = int(_MEMORY / (8 * (2 * c + 4) * n * n))
    return Team(max(min(_allowed(), together) - 1, 0))


def _allowed() -> int:
    """Return the number of threads that this thread may use, including itself."""
    if parent_process() is not None:  # A worker process that runs a chain.
        return 1
    shift = _shift.get()
    return _limit.allowed if shift is None else shift.share


class _Library(NamedTuple):
    """Functions that read and set the number of threads of a BLAS library."""

    get: Callable[[], int]
    set: Callable[[int], object]


class _Limit:
    """Limit of one thread for every BLAS of this process, until the last caller releases it.

    An interrupt can end `enter` and `leave` at any statement. A further call of `leave` then completes the release.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users: set[object] = set()
        self._before: list[tuple[_Library, int]] = []
        self.allowed = 1
        """Number of threads that the user allows: BLAS's number before the limit, but at most one per processor."""

    def enter(self, user: object) -> None:
        with self._lock:
            if not self._users:
                found = [(library, library.get()) for library in _libraries()]
                self.allowed = min(max((threads for _, threads in found), default=1), _processors())
                self._before = [(library, threads) for library, threads in found if threads > 1]
                for library, _ in self._before:
                    library.set(1)
            self._users.add(user)

    def leave(self, user: object) -> None:
        with self._lock:
            self._users.discard(user)
            if self._users:
                return
            self.allowed = 1
            # In a process that runs a chain the limit stays, since idle BLAS threads would slow other chains.
            if parent_process() is None:
                for library, threads in self._before:
                    library.set(threads)
            self._before = []


_limit = _Limit()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS and LAPACK to one thread in this context; also a decorator.

    The number of threads is a setting of the whole process. After overlapping contexts in several threads, the value
    from before the first context is restored. NumPy's handling of floating-point errors is restored as well, since an
    interrupt can end an `np.errstate` before it restores the former handling.
    """
    user, errors = object(), np.geterr()
    try:
        _limit.enter(user)
        yield
    finally:
        try:
            np.seterr(**errors)
            _limit.leave(user)
        finally:  # An interrupt may have ended the first try.
            np.seterr(**errors)
            _limit.leave(user)


@cache
def _libraries() -> list[_Library]:
    # Search for BLAS libraries once, since it takes longer than a small solve; NumPy and SciPy have loaded them.
    return [_library(each) for each in ThreadpoolController().lib_controllers if each.user_api == "blas"]


def _library(controller: LibController) -> _Library:
    # A limit of threadpoolctl cannot be changed from another thread, but solves run in several threads.
    for prefix, suffix in product(("", "scipy_"), ("", "64_", "_64")):
        get = getattr(controller.dynlib, f"{prefix}openblas_get_num_threads{suffix}", None)
        if get is not None:
            return _Library(get, getattr(controller.dynlib, f"{prefix}openblas_set_num_threads{suffix}"))
    return _Library(controller.get_num_threads, controller.set_num_threads)


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
