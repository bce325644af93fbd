"""Tables of approximations, likelihoods, plots and so on, which `register` extends.

A table contains the package's own entries first, then added entries in the order of registration. An entry may be
registered by its path, "module:name". The path is imported when the table is first read, so that `import pymc_gpep`
stays fast.
"""

import os
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from importlib import import_module
from inspect import get_annotations
from keyword import iskeyword
from threading import Lock, get_ident
from typing import Any

from pymc_gpep.argument_types import check_name

TABLES = {
    "posterior": "gaussians.posterior",
    "approximation": "approximations.methods",
    "sparse_approximation": "approximations.methods",
    "method": "approximations.methods",
    "likelihood": "likelihoods.all_likelihoods",
    "computation": "likelihoods.local_computations",
    "hyper": "hyper.hyper_methods",
    "plan": "variational.plans.plans",
    "file": "fits.loading",
    "sampler": "samplers",
    "diagnostic": "diagnostics",
    "plot": "plots",
}
"""Table → the module that creates it."""

OF_PM_FIT = ("auto", "advi", "fullrank_advi", "svgd", "asvgd")
"""Names for `pm.fit(method=...)` that belong to PyMC or select a method, so that no entry may use them."""

_waiting: dict[str, list[str]] = {}  # Paths of entries that are not yet imported, by table.
_importing: set[tuple[int, str, str]] = set()  # Thread, table and path of each import under way.
_LOCK = Lock()  # Held while a list changes, and never during an import: the imported module may register entries.


def register(table: str, *entries: Any) -> None:
    """Add your own methods, likelihoods or pictures to the package.

    Parameters
    ----------
    table : {"approximation", "sparse_approximation", "method", "likelihood", "computation", "posterior", "hyper", \
"plan", "file", "sampler", "diagnostic", "plot"}
    *entries
        Subclasses of `Approximator` for `"approximation"`, instances of `Likelihood` for `"likelihood"`, and so on. A
        string `"module:name"` is imported when the table is first read. If that fails, a warning names the path, and
        the entry is left out.

    Raises
    ------
    ValueError
        If the name of an entry is taken, or is not a valid Python identifier. A class that is defined again, as in
        a notebook, replaces the first.
    TypeError
        If an entry is not of the kind that the table holds, or lacks an attribute that every entry must have.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> from pymc_gpep.approximations.ep import EP
    >>> @dataclass(frozen=True)
    ... class DampedEP(EP):
    ...     damping: float = 0.3
    ...     name = "damped_ep"
    >>> gpep.register("approximation", DampedEP)
    >>> solution = gpep.methods.damped_ep(K, mean[0], y == 2, "probit")
    """
    check_name("table", table, TABLES)
    for entry in entries:
        if isinstance(entry, str):
            if not all(entry.partition(":")):
                raise ValueError(f"{entry!r} is not a path. Give 'module:name', or the {table} itself.")
            with _LOCK:
                _waiting.setdefault(table, []).append(entry)
        else:
            table_of(table).add(entry)


def table_of(name: str) -> "Registry[Any]":
    """Return the table of this name in `TABLES`."""
    import_module(f"{__package__}.{TABLES[name]}")
    return _made[name]


class Names(Collection[str]):
    """Current names of the entries of tables, without duplicates."""

    def __init__(self, *tables: "Registry[Any]") -> None:
        self._tables = tables

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(table.name_of(entry) for table in self._tables for entry in table))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __contains__(self, name: object) -> bool:
        return name in list(iter(self))


class Registry[T](Collection[T]):
    """A table of entries that have names.

    Parameters
    ----------
    table : str
        Name of the table, a key of `TABLES`.
    own : iterable
        Entries of this package.
    of : type, optional
        Type of all entries, or their base class if `classes`. By default entries are functions and classes.
    classes : bool
        Whether entries are classes.
    named : str
        Attribute that contains the name of an entry.
    together : function of two entries, optional
        Returns whether two entries may have the same name.
    apart : sequence of Registry
        Tables of other methods of `pm.fit`. Names of entries must differ from all names in these tables.
    check : function of an entry, optional
        Function that raises a TypeError for an invalid entry.
    check_read : function of an entry, optional
        Function that returns the warning for an added entry, or an empty text. A read of the table calls it.
    """

    def __init__(
        self,
        table: str,
        own: Iterable[T],
        *,
        of: type | None = None,
        classes: bool = True,
        named: str = "name",
        together: Callable[[T, T], bool] = lambda one, other: False,
        apart: "Iterable[Registry[Any]]" = (),
        check: Callable[[T], None] = lambda entry: None,
        check_read: Callable[[T], str] = lambda entry: "",
    ) -> None:
        self.table, self._named, self._entries = table, named, tuple(own)
        self._of, self._classes, self._together, self._apart = of, classes, together, list(apart)
        self._check_own, self._check_read, self._read = check, check_read, self._entries
        for other in self._apart:
            other._apart.append(self)
        _made[table] = self

    @property
    def names(self) -> Names:
        """The current names of the entries."""
        return Names(self)

    def name_of(self, entry: T) -> str:
        """Return the name of an entry."""
        return str(getattr(entry, self._named))

    def add(self, entry: T) -> None:
        """Add an entry; see `register`."""
        self._check(entry)
        for table in (self, *self._apart):
            table._all(final=False)  # A failed path stays registered: Python may still import its module.
        self._append(entry)

    def _append(self, entry: T) -> None:
        while True:
            before = self._entries
            after = self._with(entry, before)
            with _LOCK:
                if self._entries is before:
                    self._entries = after
                    return

    def _with(self, entry: T, entries: tuple[T, ...]) -> tuple[T, ...]:
        """Return the entries with a new entry added, or with a redefined entry in place of its former definition."""
        name = self.name_of(entry)
        for i, other in enumerate(entries):
            if self.name_of(other) != name or self._together(entry, other):
                continue
            if _source(entry) != _source(other):
                self._refuse(entry, other, self.table)
            return (*entries[:i], entry, *entries[i + 1 :])
        for table in self._apart:
            for other in table._entries:
                if table.name_of(other) == name:
                    self._refuse(entry, other, table.table)
        return (*entries, entry)

    def face(self, module: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
        """Return `__getattr__` and `__dir__` for a module that offers the added entries as attributes."""

        def attribute(name: str) -> Any:
            if name.startswith("__") or name not in self.names:
                own = import_module(module)  # With `obj`, Python's message suggests a close name.
                raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name, obj=own)
            return self[name]

        return attribute, lambda: sorted({*vars(import_module(module)), *self.names})

    def _check(self, entry: Any) -> None:
        fits, kind = callable(entry), "a class or function"
        if self._of is not None:
            is_of = issubclass if self._classes else isinstance
            fits = (isinstance(entry, type) or not self._classes) and is_of(entry, self._of)
            kind = f"{'a subclass' if self._classes else 'an instance'} of {_source(self._of)}"
        if not fits:
            raise TypeError(f"register({self.table!r}, ...) needs {kind}, but received {entry!r}.")
        self._check_own(entry)
        if isinstance(entry, tuple):
            return  # The name of a tuple is composed of its members' names, which were checked.
        own = entry if hasattr(entry, "__qualname__") else type(entry)
        name = getattr(entry, self._named, None)
        if not isinstance(name, str):
            raise TypeError(f'`{own.__name__}` has no `{self._named}`. Add `{self._named} = "my_method"`.')
        if not name.isidentifier() or iskeyword(name):
            letters = "A name consists of letters, digits and underscores"
            raise ValueError(f"{_source(entry)} has the name {name!r}. {letters}, such as 'my_method'.")
        if self._apart and name != name.lower():
            raise ValueError(f"{_source(entry)} has the name {name!r}. Write {name.lower()!r}, as pm.fit reads it.")
        if self._apart and name in OF_PM_FIT:
            raise ValueError(f"{_source(entry)} has the name {name!r}, which pm.fit uses. Give it a name of its own.")
        if isinstance(own, type) and self._of is not None:
            _check_class(own, self._of)

    def _refuse(self, entry: Any, other: Any, table: str) -> None:
        name, kind = self.name_of(entry), entry if isinstance(entry, type) else type(entry)
        base = next((each for each in kind.__mro__ if self._named in vars(each)), kind)
        if base is not kind and self._named != "__name__":
            raise ValueError(
                f'{_source(entry)} inherits the name {name!r} from {base.__name__}. Add `{self._named} = "my_{name}"`.'
            )
        raise ValueError(
            f"The {self.table} {_source(entry)} has the name {name!r}, which is also the name of the {table} "
            f"{_source(other)}. Give it a name of its own."
        )

    def _all(self, final: bool = True) -> tuple[T, ...]:
        """Return the entries, after the import of registered paths.

        If `final`, a failed path is removed with a warning.
        """
        tried: set[str] = set()
        while new := [path for path in tuple(_waiting.get(self.table, ())) if path not in tried]:
            tried.add(new[0])
            self._import(new[0], final)
        if final and (entries := self._entries) is not self._read:
            before, self._read = self._read, entries
            for message in filter(None, (self._check_read(entry) for entry in entries if entry not in before)):
                _warn(message)
        return self._entries

    def _import(self, path: str, final: bool) -> None:
        """Import a path and add its entry, unless this thread is already importing it."""
        here = get_ident(), self.table, path
        if here in _importing:
            return
        _importing.add(here)
        module, _, name = path.partition(":")
        failure = None
        try:
            entry = getattr(import_module(module), name)
            self._check(entry)
            self._append(entry)
        except Exception as error:  # A third-party module may raise any exception.
            if not final or "partially initialized" in str(error):
                return  # The path is in a module that reads the table while Python imports it.
            failure = error
        finally:
            _importing.discard(here)
        with _LOCK:
            if path not in _waiting[self.table]:
                return  # Another thread added the entry first.
            _waiting[self.table].remove(path)
        if failure is not None:
            _warn(
                f"The {self.table} {path!r}, which was registered, is left out: {failure!r}. "
                f"After a repair, call gpep.register({self.table!r}, {path!r}) again."
            )

    def __iter__(self) -> Iterator[T]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def __contains__(self, entry: object) -> bool:
        return entry in self._all()

    def __getitem__(self, name: str) -> T:
        for entry in self._all():
            if self.name_of(entry) == name:
                return entry
        raise KeyError(name)


_made: dict[str, Registry[Any]] = {}


def _source(entry: Any) -> str:
    """Return module and name of an entry, or of its class; for a tuple, of its members."""
    if isinstance(entry, tuple):
        of = (_source(x) if hasattr(x, "__qualname__") or isinstance(x, tuple) else repr(x) for x in entry)
        return f"{type(entry).__name__}({', '.join(of)})"
    named = entry if hasattr(entry, "__qualname__") else type(entry)
    return f"{named.__module__}.{named.__qualname__}"


def _warn(message: str) -> None:
    """Warn at the innermost line outside the package.

    Kernels import this module without PyMC, which `user_warnings` imports.
    """
    warnings.warn(message, skip_file_prefixes=(os.path.dirname(__file__) + os.sep,))


def _check_class(kind: type, base: type) -> None:
    """Raise a TypeError if a class lacks an attribute or a method, or sets an option that its `__init__` overrides."""
    declared = (n for each in kind.__mro__ for n, hint in get_annotations(each).items() if "ClassVar" in str(hint))
    absent = {n for n in declared if not hasattr(kind, n)} | getattr(kind, "__abstractmethods__", frozenset())
    if absent:
        names = ", ".join(f"`{n}`" for n in sorted(absent))
        raise TypeError(f"{_source(kind)} has no {names}. Add it to the class, as {_source(base)} describes.")
    for each in fields(kind) if is_dataclass(kind) else ():
        if (value := getattr(kind, each.name, MISSING)) is not each.default:
            raise TypeError(
                f"{_source(kind)} sets `{each.name}`, but the option keeps its former default. Write the line "
                f"@dataclass(frozen=True) above the class, and in it `{each.name}: {type(value).__name__} = {value!r}`."
            )
