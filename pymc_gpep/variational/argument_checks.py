"""Arguments of fits that are refused before any work."""

from collections.abc import Iterable, Mapping
from inspect import signature
from numbers import Integral, Real
from typing import Any

import numpy as np
from pymc.variational.inference import Inference

__all__ = ["check_number", "check_optimiser", "check_switches", "check_there", "check_whole", "taken", "whole_seed"]


def check_whole(name: str, value: Any, least: int = 0) -> None:
    """Raise a TypeError unless an argument of this name is a whole number, a ValueError if it is less than `least`."""
    if not isinstance(value, Integral):
        raise TypeError(f"{name} must be a whole number, but is {value!r}.")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, but is {value}.")


def check_number(name: str, value: Any) -> None:
    """Raise a TypeError unless an argument of this name is a number."""
    if not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, but is {value!r}.")


def taken(inference: type[Inference]) -> list[str]:
    """What `pm.fit` takes by name for an inference, besides the options of approximations."""
    names = [*signature(inference).parameters, *signature(inference.fit).parameters]
    return [name for name in names if name not in {"self", "method", "options"}]


def check_switches(**switches: Any) -> None:
    """Raise a TypeError unless arguments of these names are True or False."""
    for name, value in switches.items():
        if not isinstance(value, bool | np.bool_):
            raise TypeError(f"{name} must be True or False, but is {value!r}.")


def whole_seed(random_seed: Any) -> int:
    """A number that stands for a seed of any kind; 0 for none, so that fits are the same again."""
    return 0 if random_seed is None else int(np.random.default_rng(random_seed).integers(2**30))


def check_there(method: str, options: Iterable[str], not_yet: Mapping[str, str]) -> None:
    """Raise a NotImplementedError if a method has one of the options `not_yet`, which says why."""
    for name in options:
        if name in not_yet:
            raise NotImplementedError(f"{method} has no {name} yet: {not_yet[name]}. Leave it out.")


def check_optimiser(obj_optimizer: Any) -> None:
    """Raise a TypeError unless it is a function, as `pm.adam` returns them, or None."""
    if obj_optimizer is not None and not callable(obj_optimizer):
        raise TypeError(
            f"obj_optimizer must be one of PyMC's, such as pm.adam(learning_rate=0.01), but is {obj_optimizer!r}."
        )
