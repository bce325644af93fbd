"""A step of Adam on arrays, in one loop."""

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.sparse_step import loops

__all__ = ["move"]


def move(
    values: Array,
    slopes: Array,
    first: Array,
    second: Array,
    rate: float,
    of_first: float,
    of_second: float,
    least: float,
) -> None:
    """Take a step uphill (Kingma and Ba 2015), in place.

    Parameters
    ----------
    values, slopes, first, second : array (n,)
        The numbers, their derivatives, and both moments that are remembered.
    rate : float
        With the correction of both moments in it.
    of_first, of_second : float
        Parts of the moments that stay.
    least : float
        Added to the root of the second one.
    """
    loops.move(values, slopes, first, second, rate, of_first, of_second, least)
