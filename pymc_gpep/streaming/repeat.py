"""A piece of graph that is applied several times, compiled once."""

from collections.abc import Callable, Sequence

import pytensor
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

__all__ = ["repeat"]


def repeat(
    step: Callable[..., Sequence[TensorVariable]], start: Sequence[TensorVariable], times: int
) -> list[TensorVariable]:
    """What `step` makes of `start` when it is applied so many times, each to what the last one returned."""
    found = pytensor.scan(
        lambda *values: list(step(*values)), outputs_info=list(start), n_steps=times, return_updates=False
    )
    last = [values[-1] for values in (found if isinstance(found, list | tuple) else [found])]
    return [pt.specify_shape(values, each.type.shape) for values, each in zip(last, start, strict=True)]
