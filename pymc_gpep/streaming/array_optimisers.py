"""Optimisers of PyMC on arrays: Adam in one loop, any other by its own graph."""

from collections.abc import Callable, Sequence
from functools import partial
from numbers import Real
from typing import Any, Protocol

import numpy as np
import pytensor
from pymc.variational.updates import adam
from pytensor.compile.sharedvalue import SharedVariable

from pymc_gpep.array_types import Array
from pymc_gpep.solvers.adam import move
from pymc_gpep.streaming.falling import FallingAdam
from pymc_gpep.streaming.state import State
from pymc_gpep.structure.interpreted import INTERPRETED, without_c_compiler

__all__ = ["ArrayOptimiser", "array_optimiser"]

_DEFAULTS = {"learning_rate": 0.001, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}  # of PyMC


class ArrayOptimiser(Protocol):
    """Moves what is learned along derivatives of what is to be raised."""

    def __call__(self, slopes: Sequence[Array]) -> None:
        """Take a step, in place; one array of derivatives for each of `State.learned`."""


def array_optimiser(optimiser: Callable[..., Any], state: State) -> ArrayOptimiser:
    """The optimiser for what a state learns; what it remembers becomes part of the state.

    Parameters
    ----------
    optimiser : function of (gradients, parameters)
        As PyMC has them.
    state : State
    """
    if not state.learned:
        return lambda slopes: None
    downhill = [each.type() for each in state.learned]
    updates = optimiser(downhill, state.learned)
    remembered = [shared for shared in updates if shared not in state.learned]
    state.hold(remembered)
    if isinstance(optimiser, FallingAdam):
        *of_adam, taken = remembered
        return _Adam(state.learned, of_adam, _DEFAULTS, taken, optimiser.rate)
    if isinstance(optimiser, partial) and optimiser.func is adam:
        settings = _DEFAULTS | optimiser.keywords
        if not optimiser.args and all(isinstance(settings[name], Real) for name in _DEFAULTS):
            return _Adam(state.learned, remembered, settings)
    with without_c_compiler():
        function = pytensor.function(
            downhill, [], updates=[(old, new.astype(old.type.dtype)) for old, new in updates.items()], mode=INTERPRETED
        )

    def by_graph(slopes: Sequence[Array]) -> None:
        function(*(-each for each in slopes))

    return by_graph


class _Adam:
    """Kingma and Ba (2015), with what is remembered as PyMC's `adam` has it: both moments of each, then the steps."""

    def __init__(
        self,
        learned: Sequence[SharedVariable],
        remembered: Sequence[SharedVariable],
        settings: dict[str, Any],
        taken: SharedVariable | None = None,
        rate: Callable[[float], float] | None = None,
    ) -> None:
        *moments, self._steps = remembered
        self._learned = list(zip(learned, moments[::2], moments[1::2], strict=True))
        self._first, self._second, self._least = (float(settings[name]) for name in ("beta1", "beta2", "epsilon"))
        self._rate, self._taken, self._falls = float(settings["learning_rate"]), taken, rate

    def __call__(self, slopes: Sequence[Array]) -> None:
        """See `ArrayOptimiser`."""
        rate, steps = self._rate, float(self._steps.get_value()) + 1.0
        if self._taken is not None and self._falls is not None:
            done = float(self._taken.get_value())
            rate = self._falls(done)
            self._taken.set_value(np.asarray(done + 1.0, self._taken.type.dtype))
        self._steps.set_value(np.asarray(steps, self._steps.type.dtype))
        rate *= np.sqrt(1.0 - self._second**steps) / (1.0 - self._first**steps)
        for (variable, first, second), slope in zip(self._learned, slopes, strict=True):
            values, m, v = (each.get_value(borrow=True).reshape(-1) for each in (variable, first, second))
            move(values, np.ravel(slope), m, v, rate, self._first, self._second, self._least)
