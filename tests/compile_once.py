"""Lock for the compilation of a kernel: one process of tests, experiments or pages compiles, and the others wait.

Without the lock, two processes would each compile most kernels in a first run.
"""

from pathlib import Path
from typing import Any

from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher

try:
    import fcntl
except ImportError:  # Windows lacks these locks: each process compiles its own kernels.
    fcntl = None

__all__ = ["compile_once", "compiled_alone"]

_held: set[Path] = set()


def compiled_alone(compiler: Any, dispatcher: Any, signature: Any) -> Any:
    """Compile a kernel, or read it from the cache, while no other process does so.

    The kernel's lock is held while kernels that it calls are compiled. No deadlock follows, since called kernels do not
    call their caller, except by recursion. A thread that waits has Numba's lock, so no other thread of its process has
    the kernel's lock.
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
        except OSError:  # If the folder cannot be made, it contains no kernels of other processes.
            return compiler(dispatcher, signature)
        with lock.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            _held.add(lock)
            try:
                return compiler(dispatcher, signature)
            finally:
                _held.remove(lock)


def compile_once() -> None:
    """Let numba use a lock for each kernel until this process ends."""
    compiler = Dispatcher.compile
    Dispatcher.compile = lambda self, sig: compiled_alone(compiler, self, sig)
