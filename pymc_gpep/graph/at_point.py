"""Functions of a point, the dict of values that PyMC hands from step to step."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from pymc.blocking import PointType

from pymc_gpep.array_types import Array
from pymc_gpep.structure.interpreted import GraphFunction

__all__ = ["AtPoint"]


class AtPoint:
    """A compiled function whose first arguments are taken from a point by name; a class, so that it can be pickled."""

    def __init__(self, compiled: GraphFunction, names: Sequence[str]) -> None:
        self._compiled = compiled
        self._names = names

    def __call__(self, point: PointType, *values: Array) -> list[Any]:
        found: list[Any] = self._compiled(*(np.asarray(point[name]) for name in self._names), *values)
        return found

    def seed(self, seed: int) -> None:
        """Seed what the function draws."""
        self._compiled.seed(seed)
