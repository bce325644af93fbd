"""Whether what a solver is given holds only finite numbers."""

from numba import carray

from pymc_gpep.kernels.compile import kernel

__all__ = ["all_finite"]


@kernel
def all_finite(pointer, size):
    """Whether `size` numbers at `pointer` are all finite."""
    total = 0.0
    for value in carray(pointer, (size,)):
        total += 0.0 * value
    return total == 0.0
