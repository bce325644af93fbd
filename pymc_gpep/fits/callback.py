"""Callbacks of `pm.fit`: those that are more than a function, checks before any work, and how all are called."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from pymc_gpep.array_types import Array


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


def call(callbacks: Sequence[Any] | None, fit: Any, losses: Array, iteration: int) -> None:
    """Call each, after an iteration. An error of one, such as of a full disk, has the fit so far in its `fit`."""
    for each in callbacks or ():
        try:
            each(fit, losses, iteration)
        except StopIteration:
            raise
        except Exception as error:
            _hand_over(error, fit, "what had been learned")
            raise


def finish(callbacks: Sequence[Any] | None, fit: Any) -> None:
    """Tell those that want to know that the fit has ended. An error of one has the fit in its `fit`."""
    for each in callbacks or ():
        if isinstance(each, Callback):
            try:
                each.finish(fit)
            except Exception as error:
                _hand_over(error, fit, "the fit, which had ended")
                raise


def _hand_over(error: Exception, fit: Any, what: str) -> None:
    vars(error)["fit"] = fit
    error.add_note(f"A callback of pm.fit failed. The attribute fit of this error is {what}.")


def check_callbacks(callbacks: Any, method: str, batches: bool) -> None:
    """Raise a TypeError unless callbacks are functions, and fit the fit; tell each `Callback` that this begins.

    Parameters
    ----------
    callbacks : list of functions of (fit, losses, iteration), or None
    method : str
        Method of the fit.
    batches : bool
        Whether the fit goes batch by batch.
    """
    if callbacks is None:
        return
    if not isinstance(callbacks, list | tuple):
        what = f"the class {callbacks.__name__}" if isinstance(callbacks, type) else f"a {type(callbacks).__name__}"
        raise TypeError(
            f"callbacks must be a list of functions of (fit, losses, iteration), but is {what}. Put it into a list."
        )
    for each in callbacks:
        if isinstance(each, type) or not callable(each):
            what = f"the class {each.__name__}" if isinstance(each, type) else repr(each)
            raise TypeError(f"callbacks has {what}, and needs functions of (fit, losses, iteration).")
        if isinstance(each, Callback):
            each.begin(method, batches)
