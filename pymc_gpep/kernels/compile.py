"""Compile kernels by numba, and cache them on disk. The cache key changes with a kernel's code and its imports.

numba's own cache checks only the date and size of a function's file. After a change in the file of a called kernel,
cached code would be stale, and an edited docstring would cause a compilation. PyTensor's cache does not check the
source. Here both caches use a digest of code without docstrings and comments. The digest covers a file and all files of
this package that it imports, directly or indirectly.

The cache is safe if several processes share it, if a write is interrupted, and if its folders are read-only.
"""

import ast
import atexit
import functools
import hashlib
import json
import os
import re
import sys
import uuid
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

import numba
from numba.core import types
from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile, InTreeCacheLocator

_PACKAGE = Path(__file__).parents[1]


def _files(module: str) -> Iterator[Path]:
    """Yield the source files of a module, by its dotted name. The last part of the name may be a function."""
    root, *inside = module.split(".")
    if root == _PACKAGE.name:
        for path in (_PACKAGE.joinpath(*inside), _PACKAGE.joinpath(*inside[:-1])):
            yield from (file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file())


def _imported(tree: ast.AST, path: Path) -> Iterator[Path]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files(alias.name)
        elif isinstance(node, ast.ImportFrom):
            # A relative import starts at the folder of its own file.
            here = (_PACKAGE.name, *path.parts[len(_PACKAGE.parts) : -node.level]) if node.level else ()
            parts = (*here, *([node.module] if node.module else []))
            for alias in node.names:
                yield from _files(".".join((*parts, alias.name)))


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            is_text = [isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant) for each in body]
            node.body = [each for each, text in zip(body, is_text, strict=True) if not text]
    return tree


class _Notes:
    """Digest and imports of each source file. They are stored on disk with a hash of the file: parsing takes a second.

    Parameters
    ----------
    folder : Path
        Folder with the cache of numba.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / f"digests-{sys.implementation.cache_tag}.json"
        try:
            self._known = json.loads(self._file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            self._known = {}
        self._news = False
        atexit.register(self._write)

    def __call__(self, path: Path) -> tuple[bytes, frozenset[Path]]:
        """Return the digest of the code of one file, and the files of this package that it imports."""
        key, stamp = str(path), hashlib.sha256(path.read_bytes()).hexdigest()
        if (known := self._known.get(key)) is None or known[0] != stamp:
            digest, imported = _read(path)
            known = self._known[key] = [stamp, digest.hex(), [str(each) for each in imported]]
            self._news = True
        return bytes.fromhex(known[1]), frozenset(map(Path, known[2]))

    def _write(self) -> None:
        if not self._news:
            return
        part = self._file.with_suffix(f".{os.getpid()}")
        try:
            part.parent.mkdir(parents=True, exist_ok=True)
            try:
                part.write_text(json.dumps(self._known), encoding="utf-8")
                part.replace(self._file)
            finally:
                part.unlink(missing_ok=True)  # If the disk is full, only a part of the file was written.
        except OSError:
            pass  # The folder is read-only or full: the next process parses the files again.


_notes = functools.cache(_Notes)


@functools.cache
def _read(path: Path) -> tuple[bytes, frozenset[Path]]:
    """Return the digest of the code of one file, and the files of this package that it imports."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported = frozenset(_imported(tree, path)) - {path}
    return hashlib.sha256(ast.dump(_without_docstrings(tree)).encode()).digest(), imported


@functools.cache
def _digest(path: Path) -> bytes:
    """Return the digest of the code of a file and of all its imports from this package."""
    read = _notes(Path(numba.config.CACHE_DIR or _PACKAGE / "kernels" / "__pycache__"))
    closure, found = set(), {path}
    while found:
        closure |= found
        found = set().union(*(read(each)[1] for each in found)) - closure
    digest = hashlib.sha256(numba.__version__.encode())
    for each in sorted(closure):
        digest.update(each.relative_to(_PACKAGE).as_posix().encode() if _PACKAGE in each.parents else b"")
        digest.update(read(each)[0])
    return digest.digest()


def source_key(file: str) -> int:
    """Return an integer that changes with the code of a file or of its imports from this package.

    If code in `file` wraps kernels as an Op, the integer is the cache key of PyTensor's numba backend.
    """
    return int.from_bytes(_digest(Path(file))[:6])


class _Beside(InTreeCacheLocator):
    """Locator of the cache folder: `NUMBA_CACHE_DIR`, or else the folder next to the source, even if read-only."""

    def __init__(self, function: Callable[..., Any], file: str) -> None:
        super().__init__(function, file)
        if folder := numba.config.CACHE_DIR:
            self._cache_path = os.path.join(folder, self.get_suitable_cache_subpath(file))

    @classmethod
    def from_function(cls, function: Callable[..., Any], file: str) -> "_Beside":
        return cls(function, file)


class _Places(CompileResultCacheImpl):
    """Locator of the first writable cache folder. If none is writable, it is the folder of `_Beside`."""

    # mypy requires `ClassVar` here, but numba's base class lacks it.
    _locator_classes: ClassVar = [*CompileResultCacheImpl._locator_classes, _Beside]  # type: ignore[misc]


class _Files(IndexDataCacheFile):
    """Files of the cache of one kernel: files of compiled code, and an index of their signatures.

    numba numbers the files of compiled code, and writes the index before the code. After an interrupt the index could
    refer to older code, and two processes could use one number twice. Here each file name is unique, and the index is
    written last.

    Parameters
    ----------
    folders : list of str
        Folder for writing and reading, and other folders for reading.
    name : str
    stamp : bytes
    """

    def __init__(self, folders: list[str], name: str, stamp: bytes) -> None:
        super().__init__(folders[0], name, stamp)
        self._name = name
        self._further = [_Files([folder], name, stamp) for folder in folders[1:] if folder != folders[0]]

    def load(self, key: Any) -> Any:
        """Return the compiled code of a signature; None if its file is absent or damaged."""
        try:
            found = super().load(key)
        except Exception:  # A damaged pickle can raise any error.
            found = None
        return found or next(filter(None, (each.load(key) for each in self._further)), None)

    def save(self, key: Any, data: Any) -> None:
        name = f"{self._name}.{uuid.uuid4().hex}.nbc"
        self._save_data(name, data)
        try:
            known = self._load_index()
        except Exception:
            known = {}
        if not known and os.path.exists(
            self._index_path
        ):  # The index belongs to older source, so files of compiled code are removed.
            for each in Path(self._cache_path).glob(f"{self._name}.*.nbc"):
                if each.name != name:
                    each.unlink(missing_ok=True)
        self._save_index(known | {key: name})


class _Cache(FunctionCache):
    """Cache of one kernel. If its folder is read-only, each process compiles the kernel after a warning."""

    _impl_class = _Places

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except OSError as error:
            _warn_once(f"{numba.config.CACHE_DIR or _PACKAGE}: {error.strerror}")


@functools.cache
def _warn_once(why: str) -> None:
    warnings.warn(
        f"Compiled kernels cannot be stored in {why}. Each process compiles them again in seconds to minutes. Set "
        "the environment variable NUMBA_CACHE_DIR to a folder that is writable and has space.",
        RuntimeWarning,
        stacklevel=2,
    )


def kernel(
    function: Callable[..., Any], *, inline: Literal["never", "always"] = "never", reorders: bool = False
) -> Any:
    """Compile `function` with numba, without Python objects, threads or exceptions, and cache it on disk.

    A call from Python releases the lock of the interpreter. With `reorders` LLVM may reorder sums. Sums then take a
    quarter of the time. NaN and infinite values remain correct.
    """
    fast: bool | set[str] = {"reassoc", "contract", "nsz"} if reorders else False
    options: Any = {"error_model": "numpy", "inline": inline, "nogil": True, "fastmath": fast}
    options |= {"no_cfunc_wrapper": True}
    dispatcher: Any = numba.njit(**options)(function)
    template = dispatcher.get_call_template
    # Without this change of types, numba compiles a function again for each literal integer in a call.
    dispatcher.get_call_template = lambda args, kws: template([types.unliteral(each) for each in args], kws)
    dispatcher._cache = cache = _Cache(function)
    # File names contain no line number, since an edit of a docstring changes line numbers.
    name = re.sub(r"-\d+(?=\.py\d)", "", cache._impl.filename_base)
    file = function.__code__.co_filename
    folders = [cache._cache_path, _Beside(function, file).get_cache_path()]
    cache._cache_file = _Files(folders, name, _digest(Path(file)))
    return dispatcher


def summing_kernel(function: Callable[..., Any]) -> Any:
    """Compile `function` as in `kernel`. The compiler may change the order of sums."""
    return kernel(function, reorders=True)


def inlined_kernel(function: Callable[..., Any]) -> Any:
    """Compile `function` only as part of its callers.

    LLVM compiles a called function again for each direct or indirect caller. Inlining a large function saves seconds.
    """
    return kernel(function, inline="always")
