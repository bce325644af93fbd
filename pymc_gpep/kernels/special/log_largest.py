"""The probability that one of c independent normal utilities is the largest, to a few digits in little time.

The integral is that of `pymc_gpep.kernels.special.largest_of_independent`, by the trapezoid rule about its mode alone,
with a wider step, and without derivatives.
"""

import math

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.special.normal import LOG_2PI
from pymc_gpep.kernels.special.probit_product import log_integrand, near_mode

_LOG_ERROR = math.log(1e-7)
_LOWEST_LOG_WEIGHT = -16.0


@kernel
def log_largest(mean, variance, y, room):
    """log P(v_y is the largest of v), v_j ~ N(mean_j, variance_j) independent, to about 1e-6 however small it is.

    Parameters
    ----------
    mean, variance : (c,) array
        Variances positive.
    y : int
    room : (3, c) array
    """
    slopes, offsets, hazards = room[0], room[1], room[2]
    tau = math.sqrt(variance[y])
    curvature = 1.0
    for j in range(mean.shape[0]):
        if j != y:
            scale = 1.0 / math.sqrt(variance[j])
            slopes[j] = tau * scale
            offsets[j] = (mean[y] - mean[j]) * scale
            curvature += slopes[j] * slopes[j]
    mode = near_mode(slopes, offsets, y, hazards)
    peak = log_integrand(mode, slopes, offsets, y, hazards)
    step = math.pi * math.sqrt(-2.0 / (curvature * _LOG_ERROR))
    total = 1.0
    for side in (-step, step):
        x = mode + side
        log_weight = log_integrand(x, slopes, offsets, y, hazards) - peak
        while log_weight > _LOWEST_LOG_WEIGHT:
            total += math.exp(log_weight)
            x += side
            log_weight = log_integrand(x, slopes, offsets, y, hazards) - peak
    return peak + math.log(step * total) - 0.5 * LOG_2PI
