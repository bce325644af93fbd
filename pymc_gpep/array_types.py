"""Names for the types of arrays."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

type Array = NDArray[np.float64]
"""Numbers in double precision; shapes stand in docstrings."""

type Observed = NDArray[Any]
"""Observations: classes and counts as int64, other numbers as float64, as the likelihood says."""
