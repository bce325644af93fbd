"""Adam with a rate that rises in a line and falls along half a cosine to 0, in a graph and as a number."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc.variational.updates import adam

__all__ = ["FallingAdam"]


@dataclass(frozen=True)
class FallingAdam:
    """An optimiser as PyMC has them: see `pymc_gpep.falling_adam`."""

    steps: int
    learning_rate: float
    rise: int = 0

    def __call__(self, gradients: Sequence[Any], parameters: Sequence[Any]) -> dict[Any, Any]:
        """Return updates of parameters and of what is remembered, which ends with the number of steps taken."""
        taken = pytensor.shared(0.0, "steps taken")
        fallen = pt.clip((taken - self.rise) / (self.steps - self.rise), 0.0, 1.0)
        part = pt.minimum((taken + 1.0) / max(1, self.rise), 0.5 * (1.0 + pt.cos(np.pi * fallen)))
        moved = dict(adam(gradients, parameters, learning_rate=self.learning_rate * part))
        return moved | {taken: taken + 1.0}

    def rate(self, taken: float) -> float:
        """Rate of the step that comes after so many."""
        fallen = min(max((taken - self.rise) / (self.steps - self.rise), 0.0), 1.0)
        part = min((taken + 1.0) / max(1, self.rise), 0.5 * (1.0 + np.cos(np.pi * fallen)))
        return float(self.learning_rate * part)
