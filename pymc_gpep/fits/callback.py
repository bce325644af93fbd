"""What callbacks of `pm.fit` may be that are more than a function."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from pymc_gpep.array_types import Array

__all__ = ["Callback", "finish"]


class Callback(ABC):
    """A callback that is told when a fit begins, and when it has ended."""

    @abstractmethod
    def __call__(self, fit: Any, losses: Array, iteration: int) -> None:
        """After each iteration, or step of a fit by batches; StopIteration ends the fit."""

    @abstractmethod
    def begin(self, method: str, batches: bool) -> None:
        """Before any work of a fit: get ready, or raise a TypeError if this is no callback for the method."""

    @abstractmethod
    def finish(self, fit: Any) -> None:
        """At the end, with what `pm.fit` is about to return."""


def finish(callbacks: Sequence[Any] | None, fit: Any) -> None:
    """Tell those that want to know that the fit has ended."""
    for each in callbacks or ():
        if isinstance(each, Callback):
            each.finish(fit)
