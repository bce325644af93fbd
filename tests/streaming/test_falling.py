"""Adam with a warm-up and a decreasing rate."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from pymc_gpep.streaming.step import FallingAdam


@pytest.mark.parametrize(
    ("rise", "shares"), [(0, [1.0, 0.5, 0.0, 0.0]), (1, [1.0, 1.0, 0.0, 0.0]), (2, [0.5, 1.0, 1.0, 0.0])]
)
def test_rate_rises_and_falls_along_half_a_cosine(rise, shares):
    """With a constant gradient, each step of Adam is as long as its rate."""
    place = pytensor.shared(np.zeros(1))
    updates = FallingAdam(2 + (rise > 1), 0.3, rise)([pt.ones(1)], [place])
    step = pytensor.function([], place, updates=updates, mode="FAST_COMPILE")
    at = np.array([step()[0] for _ in range(5)])
    np.testing.assert_allclose(-np.diff(at), 0.3 * np.array(shares), atol=1e-7)


def test_optimiser_starts_its_step_count_anew_in_each_fit():
    optimiser = FallingAdam(2, 0.3)
    for _ in range(2):
        place = pytensor.shared(np.zeros(1))
        step = pytensor.function([], [], updates=optimiser([pt.ones(1)], [place]), mode="FAST_COMPILE")
        step()
        assert place.get_value() == pytest.approx(-0.3)
