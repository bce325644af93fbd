"""The normal distribution of variance 1, truncated on one side."""

import math

from pymc_gpep.kernels.compile import kernel

__all__ = ["draw_below"]

_NAIVE_ABOVE = -0.4  # bound above which trying normals is the fastest way to a truncated one


@kernel
def draw_below(rng, mean, top):
    """A draw of N(mean, 1) truncated to lie below `top`; both are finite.

    Far out by Robert's (1995) rejection from an exponential, in terms of the distance to `top`, which keeps its digits.
    """
    if top - mean > _NAIVE_ABOVE:
        while True:
            x = mean + rng.standard_normal()
            if x <= top:
                return x
    least = mean - top
    excess = 2.0 / (least + math.sqrt(least * least + 4.0))  # of the exponential's rate over `least`
    while True:
        distance = rng.standard_exponential() / (least + excess)
        if 0.5 * (distance - excess) ** 2 <= rng.standard_exponential():
            return top - distance
