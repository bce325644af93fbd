"""The quick log E σ(d) against the accurate one."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.kernels.special.log_logistic_mixture import log_logistic_mixture
from pymc_gpep.kernels.special.logistic_average import ROOM, log_logistic_normal
from pymc_gpep.kernels.special.logistic_mixture import mixture_scales


@pytest.mark.parametrize("variance", [0.0, 0.1, 1.0, 4.0, 30.0, 300.0, 1e4])
def test_value_and_derivatives_keep_their_digits_in_both_tails(variance):
    scales, room = mixture_scales(variance), np.empty(ROOM)
    for mean in [-200.0, -40.0, -15.0, -5.0, -1.0, 0.0, 0.3, 2.0, 15.0, 40.0, 200.0]:
        value, first, second = log_logistic_mixture(mean, variance, scales)
        expected = log_logistic_normal(mean, variance, room)
        assert_allclose(value, expected[0], rtol=2e-7)
        assert_allclose(first, expected[1], rtol=2e-7)
        assert_allclose(second, expected[2], rtol=5e-6, atol=1e-9)
