"""The sign by which a change of class turns f over."""

import math

from pymc_gpep.kernels.compile import kernel

__all__ = ["class_sign"]


@kernel
def class_sign(label):
    """1 for class 1, −1 for class 0, NaN for what is no class."""
    return math.nan if label < 0 or label > 1 else 2.0 * label - 1.0
