"""Arguments of `pm.fit` that are refused before any work, and what it takes."""

from collections.abc import Iterable, Mapping
from inspect import signature
from typing import Any

import numpy as np
from pymc.variational.inference import Inference

__all__ = ["check_optimiser", "check_there", "taken", "whole_seed"]


def taken(inference: type[Inference]) -> list[str]:
    """What `pm.fit` takes by name for an inference, besides the options of approximations."""
    names = [*signature(inference).parameters, *signature(inference.fit).parameters]
    return [name for name in names if name not in {"self", "method", "options"}]


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
