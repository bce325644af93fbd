"""Interrupts at a chosen moment. Python checks for signals when a function begins, and when a call of C code ends."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def interrupt(moment: int, files: set[str]) -> Iterator[Callable[[], int]]:
    """Raise a KeyboardInterrupt at the moment of this number in functions of `files`, in the order of execution.

    Yields a function that returns the number of moments so far.
    """
    moments = 0

    def check(frame: FrameType, event: str, _: Any) -> None:
        nonlocal moments
        if event in ("call", "c_return") and frame.f_code.co_filename in files:
            moments += 1
            if moments == moment + 1:
                raise KeyboardInterrupt

    former = sys.getprofile()
    sys.setprofile(check)
    try:
        yield lambda: moments
    finally:
        sys.setprofile(former)


def moments_of(work: Callable[[], object], files: set[str]) -> int:
    """Return the number of moments at which `work` can be interrupted in functions of `files`."""
    with interrupt(-1, files) as moments:
        work()
    return moments()
