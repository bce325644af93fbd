"""Line search on a slope that decreases exponentially, with bounds of the step in closed form."""

import math

import numpy as np
import pytest

from pymc_gpep.solvers.newton import step_length


@pytest.mark.parametrize("gain", [1.0, 1e6])
@pytest.mark.parametrize("count", [3.0, 70.0, 1e4, 1e6])
def test_line_search_shortens_a_step_far_beyond_the_maximum(count, gain):
    def along_line(t):
        """Slope of count · f − exp(f) along f = t · gain · count, the first step of Newton's method."""
        rate = math.exp(min(t * gain * count, 709.0)) if t * gain * count < 709.0 else math.inf
        return gain * count * (count - rate), (gain * count) ** 2 * rate

    with np.errstate(all="ignore"):  # solvers run without floating-point warnings
        t = step_length(along_line, along_line(0.0)[0], 0.0, 0.0)
    # The slope is between 0 and a tenth of its initial value if exp(f) is between count − 0.1 (count − 1) and count.
    assert math.log(count - 0.1 * (count - 1.0)) <= t * gain * count * (1.0 + 1e-12)
    assert t * gain * count <= math.log(count) * (1.0 + 1e-12)
