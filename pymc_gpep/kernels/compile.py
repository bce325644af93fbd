"""The compiler of kernels: numba, serial, cached on disk under a key that follows the source of *all* kernels.

numba's own cache looks at the file of the function it caches and at no other, so a kernel that calls one in
another file would be served stale after that one changes. PyTensor's cache never looks at the source at all. Both
get the same remedy: a hash of every source file of this folder and the folders in it.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numba

__all__ = ["follow_source", "inlined_kernel", "kernel", "source_key"]


_FOLDER = Path(__file__).parent


def _source_digest() -> bytes:
    digest = hashlib.sha256(numba.__version__.encode())
    for path in sorted(_FOLDER.rglob("*.py")):
        digest.update(path.relative_to(_FOLDER).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.digest()


_DIGEST = _source_digest()


def source_key(file: str) -> int:
    """Integer that changes with the source of any kernel, and with that of `file`.

    It is the cache key that PyTensor's numba backend asks for where code in `file` wraps kernels as an Op.
    """
    digest = hashlib.sha256(_DIGEST)
    digest.update(Path(file).read_bytes())
    return int.from_bytes(digest.digest()[:6])


def follow_source(compiled: Any) -> None:
    """Let the disk cache of something numba compiles be stale once the source of any kernel has changed."""
    # The stamp that numba compares before it trusts a file of its cache; it is the one place to put the digest.
    cache_file = compiled._cache._cache_file
    cache_file._source_stamp = (cache_file._source_stamp, _DIGEST)


def kernel(function: Callable[..., Any], *, inline: Literal["never", "always"] = "never") -> Any:
    """Compile `function` with numba: no Python, no threads, no raising, cached on disk.

    Called from Python it lets go of the interpreter's lock.
    """
    dispatcher = numba.njit(cache=True, error_model="numpy", inline=inline, nogil=True)(function)
    follow_source(dispatcher)
    return dispatcher


def inlined_kernel(function: Callable[..., Any]) -> Any:
    """Compile `function` as part of its callers only.

    LLVM goes over what a kernel calls once more for every kernel on the way up; a large one with a single caller takes
    seconds less this way.
    """
    return kernel(function, inline="always")
