"""log(1 − eʰ) with derivatives, from h < 0 with derivatives."""

import math

from pymc_gpep.kernels.compile import kernel


@kernel
def log_complement(value, first, second, third, fourth):
    """log(1 − eʰ) and its first four derivatives, from those of h: neither loses the digits of a small eʰ."""
    r = math.exp(value) / -math.expm1(value)
    f2 = r * (1.0 + r)
    f3 = f2 * (1.0 + 2.0 * r)
    f4 = f2 * (1.0 + 6.0 * f2)
    square = first * first
    return (
        math.log1p(-math.exp(value)) if value < -0.6931471805599453 else math.log(-math.expm1(value)),
        -r * first,
        -r * second - f2 * square,
        -r * third - 3.0 * f2 * first * second - f3 * square * first,
        -r * fourth
        - f2 * (4.0 * first * third + 3.0 * second * second)
        - 6.0 * f3 * square * second
        - f4 * square * square,
    )
