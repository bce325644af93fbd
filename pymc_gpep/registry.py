"""Tables of approximations, likelihoods, plots and others, which `register` adds to.

A table has the package's own entries first, then added entries in the order in which they were registered. An entry may
be given as its path, "module:name". The path is imported when the table is first read, so that `import pymc_gpep` does
not wait for it.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from importlib import import_module
from operator import attrgetter
from threading import RLock
from typing import Any

from pymc_gpep.argument_types import check_name

TABLES = {
    "posterior": "gaussians.posteriors",
    "approximation": "approximations.methods",
    "sparse_approximation": "approximations.methods",
    "method": "approximations.methods",
    "likelihood": "likelihoods.all_likelihoods",
    "computation": "likelihoods.likelihood",
    "hyper": "hyper.hyper_methods",
    "plan": "variational.plans.plans",
    "file": "fits.reading",
    "sampler": "samplers",
    "diagnostic": "diagnostics",
    "plot": "plots",
}
"""Table → the module that makes it."""

_waiting: dict[str, list[str]] = {}  # Paths of entries by table, until the table is read.
_LOCK = RLock()  # A second thread waits until the first has imported all entries.


def register(table: str, *entries: Any) -> None:
    """Add methods, likelihoods or pictures of your own to the package.

    Parameters
    ----------
    table : {"approximation", "sparse_approximation", "method", "likelihood", "computation", "posterior", "hyper", \
"plan", "file", "sampler", "diagnostic", "plot"}
    *entries
        Subclasses of `Approximator` for `"approximation"`, instances of `Likelihood` for `"likelihood"`, and so on. A
        string `"module:name"` is imported when it is first needed.

    Raises
    ------
    ValueError
        If an entry has the name of another one. A class that is defined again, as in a notebook, replaces the first.
    TypeError
        If an entry is not of the kind that the table holds.

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
            _waiting.setdefault(table, []).append(entry)
        else:
            import_module(f"{__package__}.{TABLES[table]}")
            _made[table].add(entry)


class Names(Collection[str]):
    """Names of the entries of tables, each once, as they are when asked for."""

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
        One of `TABLES`.
    own : iterable
        Entries of this package.
    of : type, optional
        Type of all entries, or their base class where `classes`.
    classes : bool
        Whether entries are classes.
    name_of : function
        Name of an entry.
    together : function of two entries, optional
        Whether two entries of one name can stand beside each other.
    apart : sequence of Registry
        Tables of other methods of `pm.fit`: an entry has none of their names.
    """

    def __init__(
        self,
        table: str,
        own: Iterable[T],
        *,
        of: type | None = None,
        classes: bool = True,
        name_of: Callable[[T], str] = attrgetter("name"),
        together: Callable[[T, T], bool] = lambda one, other: False,
        apart: "Iterable[Registry[Any]]" = (),
    ) -> None:
        self.table, self.name_of, self._entries = table, name_of, list(own)
        self._of, self._classes, self._together, self._apart = of, classes, together, list(apart)
        for other in self._apart:
            other._apart.append(self)
        _made[table] = self

    @property
    def names(self) -> Names:
        """The names, as they are when asked for."""
        return Names(self)

    def add(self, entry: T) -> None:
        """Add an entry; see `register`."""
        self._check(entry)
        with _LOCK:
            self._all()
            self._add(entry)

    def _add(self, entry: T) -> None:
        name = self.name_of(entry)
        if self._apart and name != name.lower():
            raise ValueError(f"{_whole_name(entry)} has the name {name!r}. Write {name.lower()!r}, as pm.fit reads it.")
        for i, other in enumerate(self._entries):
            if self.name_of(other) != name or self._together(entry, other):
                continue
            if _whole_name(entry) != _whole_name(other):
                self._refuse(entry, other, self.table)
            self._entries[i] = entry
            return
        for table in self._apart:
            for other in table:
                if table.name_of(other) == name:
                    self._refuse(entry, other, table.table)
        self._entries.append(entry)

    def face(self, module: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
        """Return `__getattr__` and `__dir__` of a module that offers added entries beside its own names."""

        def attribute(name: str) -> Any:
            if name.startswith("__") or name not in self.names:
                own = import_module(module)  # by which Python finds the attribute that was meant
                raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name, obj=own)
            return self[name]

        return attribute, lambda: sorted({*vars(import_module(module)), *self.names})

    def _check(self, entry: Any) -> None:
        if self._of is None or (
            isinstance(entry, type) and issubclass(entry, self._of) if self._classes else isinstance(entry, self._of)
        ):
            return
        kind = "a subclass" if self._classes else "an instance"
        raise TypeError(
            f"register({self.table!r}, ...) takes {kind} of {_whole_name(self._of)}, but {entry!r} is not {kind} of it."
        )

    def _refuse(self, entry: Any, other: Any, table: str) -> None:
        raise ValueError(
            f"The {self.table} {_whole_name(entry)} has the name {self.name_of(entry)!r}, which is that of the {table} "
            f"{_whole_name(other)}. Give it a name of its own."
        )

    def _all(self) -> list[T]:
        """Entries, of which waiting ones are imported before."""
        with _LOCK:
            paths = _waiting.pop(self.table, [])
            try:
                while paths:
                    module, _, name = paths.pop(0).partition(":")
                    entry = getattr(import_module(module), name)
                    self._check(entry)
                    self._add(entry)
            finally:
                if paths:  # An import failed. The next read goes on with the other paths.
                    _waiting[self.table] = paths
        return self._entries

    def __iter__(self) -> Iterator[T]:
        return iter(tuple(self._all()))

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


def _whole_name(entry: Any) -> str:
    """Module and name of an entry, or of the class of an entry."""
    named = entry if hasattr(entry, "__qualname__") else type(entry)
    return f"{named.__module__}.{named.__qualname__}"
