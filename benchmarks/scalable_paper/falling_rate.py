"""Adam with a rate that rises, then falls to nothing, as an optimiser that `pm.fit(obj_optimizer=...)` takes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt


def falling_adam(
    gradients: Sequence[Any], parameters: Sequence[Any], rate: float, steps: int, rise: int = 0
) -> dict[Any, Any]:
    """Updates whose rate falls along half a cosine, from `rate` to 0 after so many steps (Loshchilov and Hutter 2017).

    In the first `rise` of them it goes up in a line. How many were taken is one of the updates, so that a fit that is
    interrupted goes on with the rate that it had.
    """
    taken = pytensor.shared(0.0, "steps taken")
    fallen = pt.clip((taken - rise) / max(1, steps - rise), 0.0, 1.0)
    now = rate * pt.minimum((taken + 1.0) / max(1, rise), 0.5 * (1.0 + pt.cos(np.pi * fallen)))
    return dict(pm.adam(gradients, parameters, learning_rate=now)) | {taken: taken + 1.0}
