"""Steps with a length for each parameter, as updates for `pm.fit(obj_optimizer=...)`.

EP and SEP both learn by the steps of `update="inner"` (`pymc_gpep.hyper.inducing_inputs.SignedSteps`). Lengths grow
while slopes keep their sign. Lengths are halved where the sign changes (Riedmiller and Braun 1993).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt

FIRST, LEAST, MOST = 0.02, 1e-6, 0.3
LONGER, SHORTER = 1.1, 0.5


def signed_steps(gradients: Sequence[Any], parameters: Sequence[Any]) -> dict[Any, Any]:
    """Updates that decrease the objective along the gradients."""
    updates: dict[Any, Any] = {}
    for gradient, parameter in zip(gradients, parameters, strict=True):
        value = parameter.get_value(borrow=True)
        length = pytensor.shared(np.full(value.shape, FIRST), "length")
        before = pytensor.shared(np.zeros(value.shape), "slope before")
        agreed = gradient * before
        factor = pt.switch(agreed > 0, LONGER, pt.switch(agreed < 0, SHORTER, 1.0))
        longer = pt.clip(length * factor, LEAST, MOST)
        updates |= {parameter: parameter - longer * pt.sign(gradient), length: longer, before: gradient}
    return updates
