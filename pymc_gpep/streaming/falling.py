"""Adam with a rate that rises in a line and falls along half a cosine to 0."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc.variational.updates import adam


@dataclass(frozen=True)
class FallingAdam:
    """Adam whose rate falls along half a cosine to 0, for batches: an optimiser as PyMC has them.

    Parameters
    ----------
    steps : int
        Number of steps after which the rate is 0, of those in which hyperparameters move: without the first epochs of
        the `warmup`.
    learning_rate : float
        The largest rate. Inducing inputs move by about so many standard deviations of their column a step, the
        logarithms of hyperparameters by about so much.
    rise : int
        Number of steps at the beginning in which the rate goes up in a line. The full rate might undo there what the
        warm-up came to.

    Notes
    -----
    The number of steps taken is one of the updates. A fit that goes on from a checkpoint thus has the rate that it left
    off with. The fall is that of Loshchilov and Hutter (2017, equation 5), without restarts.
    """

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
