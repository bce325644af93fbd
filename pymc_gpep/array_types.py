"""Names for the types of arrays."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array"]

type Array = NDArray[np.float64]
"""Numbers in double precision; shapes stand in docstrings."""
