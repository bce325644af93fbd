"""Inputs of a selection of rows, and its results."""

from typing import NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.solvers.inducing import Block

type Places = NDArray[np.int64]
"""Numbers of rows."""


class RowPrior(Protocol):
    """A prior of c latent functions at n rows, which is asked for blocks; q is 1 where functions share it, else c."""

    n_points: int
    n_functions: int
    n_covariances: int
    """q."""

    def block(self, columns: Places, rows: Places) -> Block:
        """Return the covariances (q, columns, rows) of rows `columns`, maybe empty, with `rows`; moments of `rows`."""


class DenseRows:
    """A prior whose covariance is at hand."""

    def __init__(self, k: ArrayLike, mean: ArrayLike) -> None:
        self._prior = DensePrior.checked(np.asarray(k, np.float64), np.asarray(mean, np.float64))
        self.n_functions, self.n_points = self._prior.shape
        self.n_covariances = len(self._prior.k)

    @classmethod
    def of(cls, prior: RowPrior) -> Self:
        """All rows of another prior."""
        every = np.arange(prior.n_points)
        found = prior.block(every, every)
        return cls(found.cross, found.mean)

    def block(self, columns: Places, rows: Places) -> Block:
        k, mean = self._prior.k, self._prior.mean
        return Block(k[:, columns[:, None], rows], k[:, rows, rows], mean[:, rows])


class Selection(NamedTuple):
    """Active rows in the order in which they were included, and their sites."""

    rows: Places
    """(d,)."""
    scores: Array
    """Score of each row when it was chosen, (d,); NaN where it was not chosen by its score."""
    precision: Array
    """π (c, d)."""
    location: Array
    """ν (c, d)."""
