"""Test of advice in messages: the call that causes the message, and the call after the advice."""

import re
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import pymc as pm
import pytest

__all__ = ["Advice", "checked", "fitted", "follow"]


class Advice(NamedTuple):
    """A message with advice.

    Attributes
    ----------
    provoke : callable
        Call that raises or warns.
    message : str
        Pattern of the message, with the remedy as it is written there.
    advised : callable
        The call after the remedy, which neither raises nor warns.
    """

    provoke: Callable[[], Any]
    message: str
    advised: Callable[[], Any]


def fitted(declare: Callable[[], Any], method: str = "laplace", **options: Any) -> Callable[[], Any]:
    """Return a function that declares a model and fits it."""

    def fit() -> Any:
        with pm.Model():
            declare()
            return pm.fit(method=method, progressbar=False, random_seed=1, **options)

    return fit


def follow(advice: Advice) -> Any:
    """Check the message, and return the result of the call that follows the advice."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            advice.provoke()
        except (ValueError, TypeError, NotImplementedError, ArithmeticError, MemoryError) as error:
            said = [str(error)]
        else:
            said = [str(each.message) for each in warned]
    assert any(re.search(advice.message, each, re.DOTALL) for each in said), said
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        found = advice.advised()
    again = [str(each.message) for each in warned if re.search(advice.message, str(each.message), re.DOTALL)]
    assert not again
    assert not [each for each in warned if issubclass(each.category, RuntimeWarning)]
    if hasattr(found, "converged"):
        assert found.converged
    return found


def checked(cases: dict[str, Advice]) -> Callable[[Callable[[Advice], Any]], Any]:
    """Mark a test that takes each case by its name."""
    return pytest.mark.parametrize("advice", [pytest.param(each, id=name) for name, each in cases.items()])
