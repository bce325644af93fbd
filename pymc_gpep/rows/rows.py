"""The interface of data that a fit takes in small batches."""

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array


@runtime_checkable
class Rows(Protocol):
    """Inputs and labels of n rows, read by slices.

    Code that takes them in another order reads whole chunks, rows [i · chunk, (i + 1) · chunk), and reorders these in
    memory. So a slice that is a chunk is read often, and any other slice seldom.
    """

    @property
    def n_rows(self) -> int:
        """Number of rows, n."""

    @property
    def n_inputs(self) -> int:
        """Columns of the inputs, d."""

    @property
    def chunk(self) -> int:
        """Rows that are cheap to read together, and small enough to have several times in memory; n if all are."""

    def inputs(self, rows: slice) -> Array:
        """Inputs (B, d) of rows start to stop, step 1. Not to be written to."""

    def labels(self, rows: slice) -> NDArray[np.int64]:
        """Observations there, (B,)."""
