"""Settings of PyTensor that are changed while functions of graphs are made.

PyTensor changes its settings while it makes a function, and then restores the former values. Two threads at once would
restore values of each other, and a wrong mode would stay for all later functions of the process. So only one thread at
a time makes a function.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any

import pytensor

one_thread_at_a_time = RLock()
"""Lock to hold while a function is made or copied."""

_former: defaultdict[str, dict[object, Any]] = defaultdict(dict)  # Former values of changed settings by context.


@contextmanager
def _changed(name: str, value: Any) -> Iterator[None]:
    """Change a setting of PyTensor until the last thread leaves the context; a context manager."""
    context = object()
    try:
        with one_thread_at_a_time:
            known = list(_former[name].values())
            _former[name][context] = known[0] if known else getattr(pytensor.config, name)
            setattr(pytensor.config, name, value)
        yield
    finally:
        try:
            _leave(name, context)
        finally:  # An interrupt may have ended the first try.
            _leave(name, context)


def _leave(name: str, context: object) -> None:
    """Leave a context. An interrupt can end this function at any statement, and a further call then completes it."""
    with one_thread_at_a_time:
        if [*_former[name]] == [context]:
            setattr(pytensor.config, name, _former[name][context])
        _former[name].pop(context, None)


@contextmanager
def without_c_compiler() -> Iterator[None]:
    """Prevent PyTensor from compiling C code while the function of an interpreted graph is made; a context manager.

    PyTensor would compile inner graphs of distributions in C, which takes a second for each operation. Only one thread
    at a time is in this context.
    """
    with one_thread_at_a_time, _changed("cxx", ""):
        yield


def without_traces() -> Any:
    """Make variables without a stack trace of the code that made them; a context manager.

    The traces take a quarter of the time. Without traces, messages of PyTensor name no line of code, so only graphs of
    the package are made without traces.
    """
    return _changed("traceback__limit", 0)
