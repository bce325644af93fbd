"""Functions of graphs that steps need and PyTensor lacks."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.inner_function import link_only_mode
from pytensor.compile.mode import Mode
from pytensor.link.vm import VMLinker
from pytensor.tensor.variable import TensorVariable

__all__ = ["hazard", "log_ndtr", "repeat"]


_FURTHEST = 37.0  # beyond it φ(z) is none, and erfcx has no number
_HALF, _ROOT = np.sqrt(0.5), np.sqrt(2.0 / np.pi)


def log_ndtr(z: TensorVariable) -> TensorVariable:
    """log Φ(z)."""
    left = pt.log(0.5 * pt.erfcx(-_HALF * pt.minimum(z, -1.0))) - 0.5 * z * z
    return pt.switch(z < -1.0, left, pt.log1p(-0.5 * pt.erfc(_HALF * pt.maximum(z, -1.0))))


def hazard(z: TensorVariable) -> TensorVariable:
    """φ(z) / Φ(z)."""
    return _ROOT / pt.erfcx(-_HALF * pt.minimum(z, _FURTHEST))


class _Piece(OpFromGraph):
    """Where the graph around it is interpreted, so is this: without that it would be compiled by a C compiler."""

    def link_mode(self, impl: str | None) -> Mode:
        return link_only_mode(VMLinker(use_cloop=False, c_thunks=False))


def repeat(
    step: Callable[..., Sequence[TensorVariable]],
    start: Sequence[TensorVariable],
    given: Sequence[TensorVariable],
    times: int,
) -> list[TensorVariable]:
    """What is made of `start` by `step(*values, *given)`, so many times, each of what the last one returned."""
    inputs: list[Any] = [each.type() for each in (*start, *given)]
    piece = _Piece(inputs, list(step(*inputs)))
    values = list(start)
    for _ in range(times):
        found = piece(*values, *given)
        values = list(found) if isinstance(found, list | tuple) else [found]
    return values
