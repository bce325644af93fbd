"""Rewritten graphs on disk: a process reads a graph that an earlier process has rewritten.

Rewriting takes about a second of the first fit of a process; reading takes milliseconds. The folder of the files is
next to the compiled kernels. File names are digests of the structure, this package's code, and the versions of PyMC,
PyTensor and NumPy. Reading a file calls only code of these packages. Graphs with other operations are not stored.
"""

import hashlib
import io
import os
import pickle
import sys
import uuid
from collections.abc import Hashable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import pytensor

_PACKAGE = Path(__file__).parents[1]
_MOST_FILES = 4096  # If the folder has more files, a quarter of them is removed.
_DIGEST = hashlib.sha256().digest_size  # Length in bytes of the digest at the start of a file.
_TRUSTED = {"pytensor", "pymc", "pymc_gpep", "numpy", "scipy"}
_TRUSTED_NAMES = {("builtins", "slice"), ("builtins", "complex"), ("copyreg", "_reconstructor")}


class _Reader(pickle.Unpickler):
    """Reader of pickles that calls no code of other packages."""

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] not in _TRUSTED and (module, name) not in _TRUSTED_NAMES:
            raise pickle.UnpicklingError(f"{module}.{name} is not trusted.")
        return super().find_class(module, name)


def path_of(structure: Hashable) -> Path | None:
    """Return the file of a structure; None if the structure has no stable description."""
    try:
        described = pickle.dumps((_versions(), pytensor.config.floatX, structure))
    except Exception:  # Operations defined inside functions cannot be pickled, and pickle may raise any error.
        return None
    return _folder() / f"{hashlib.sha256(described).hexdigest()}.graph"


def read(path: Path) -> Any:
    """Return the graph in a file; None if the file is absent or damaged."""
    try:
        content = path.read_bytes()
        digest, data = content[:_DIGEST], content[_DIGEST:]
        return _Reader(io.BytesIO(data)).load() if digest == hashlib.sha256(data).digest() else None
    except Exception:  # A damaged pickle can raise any error.
        return None


def write(path: Path, graph: Any) -> None:
    """Write a graph, unless it has operations of other packages or the folder is read-only."""
    try:
        data = pickle.dumps(graph)
        _Reader(io.BytesIO(data)).load()
    except Exception:
        return
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{uuid.uuid4().hex}")
        try:
            part.write_bytes(hashlib.sha256(data).digest() + data)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)  # If the disk is full, the file is incomplete.
        _remove_some(path.parent)


def _folder() -> Path:
    return Path(os.environ.get("NUMBA_CACHE_DIR") or _PACKAGE / "graphs" / "__pycache__") / "graphs"


def _remove_some(folder: Path) -> None:
    names = [
        each for each in os.listdir(folder) if each.endswith(".graph")
    ]  # This takes a fifth of the time of `glob`.
    if len(names) > _MOST_FILES:
        for each in sorted(names)[: _MOST_FILES // 4]:  # Names are digests, so these are random files.
            (folder / each).unlink(missing_ok=True)


@cache
def _versions() -> tuple[str, ...]:
    """Return versions of all code that makes or rewrites graphs; for this package, a digest of its files."""
    own = hashlib.sha256()
    for each in sorted(_PACKAGE.rglob("*.py")):
        own.update(each.read_bytes())
    return sys.implementation.cache_tag, pytensor.__version__, pm.__version__, np.__version__, own.hexdigest()
