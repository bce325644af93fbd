"""Names for the types of arrays."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

type Array = NDArray[np.float64]
"""Array of numbers in double precision. Docstrings state its shape."""

type Observed = NDArray[Any]
"""Observations of a likelihood: classes and counts as int64, other numbers as float64."""
