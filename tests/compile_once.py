"""Kernels are compiled by one of the processes that run tests, experiments and pages beside each other.

Without this each of two processes compiles most kernels in a first run, since both need them at the same time.
"""

from pathlib import Path
from typing import Any

from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher

try:
    import fcntl
except ImportError:  # Windows has no such locks; there each process compiles for itself.
    fcntl = None

__all__ = ["compile_once", "compiled_alone"]

_held: set[Path] = set()


def compiled_alone(compiler: Any, dispatcher: Any, signature: Any) -> Any:
    """Compile a kernel, or read it from the cache, while no other process does so.

    A kernel takes the locks of those that it calls, which never call it but by recursion. A thread has numba's own lock
    before it waits, so that it never waits for another thread of its process.
    """
    index = getattr(getattr(dispatcher._cache, "_cache_file", None), "_index_path", None)
    if index is None or fcntl is None:
        return compiler(dispatcher, signature)
    lock = Path(index).with_suffix(".lock")
    with global_compiler_lock:
        if lock in _held:
            return compiler(dispatcher, signature)
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
        except OSError:  # A folder that cannot be made has no kernels of other processes.
            return compiler(dispatcher, signature)
        with lock.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            _held.add(lock)
            try:
                return compiler(dispatcher, signature)
            finally:
                _held.remove(lock)


def compile_once() -> None:
    """Have numba take a lock for each kernel, to the end of this process."""
    compiler = Dispatcher.compile
    Dispatcher.compile = lambda self, sig: compiled_alone(compiler, self, sig)
