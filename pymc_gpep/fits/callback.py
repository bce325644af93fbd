"""What callbacks of `pm.fit` may be that are more than a function."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from pymc_gpep.array_types import Array

__all__ = ["Callback", "finish"]


class Callback(ABC):
    """A callback that is looked at before the fit begins, and told when it has ended."""

    @abstractmethod
    def __call__(self, fit: Any, losses: Array, iteration: int) -> None:
        """After each iteration, or step of a fit by batches; StopIteration ends the fit."""

    @abstractmethod
    def check(self, method: str, batches: bool) -> None:
        """Raise a TypeError unless this callback is one for the method, by batches or not."""

    @abstractmethod
    def finish(self, fit: Any) -> None:
        """At the end, with what `pm.fit` is about to return."""


def finish(callbacks: Sequence[Any] | None, fit: Any) -> None:
    """Tell those that want to know that the fit has ended."""
    for each in callbacks or ():
        if isinstance(each, Callback):
            each.finish(fit)
