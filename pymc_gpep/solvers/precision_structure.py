"""Rows with few coefficients of numbers x with a sparse prior precision: where entries are, whatever their values."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.solvers.factor_pattern import FactorPattern, pairs_of_rows

type Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class PrecisionStructure:
    """Where rows A (n, q) and a prior precision Q + V W⁻¹ Vᵀ of x have entries.

    Attributes
    ----------
    cells : array (n, k)
        Places of the coefficients of each row, each place once; entries beyond its own repeat one of these.
    first, second : array (m,)
        Rows and columns of the entries of Q, on one side of the diagonal; those of one place add up.
    columns : array (p, q)
        Vᵀ.
    widths : array (p,)
        The diagonal of W, see `pymc_gpep.solvers.sparse_precision`.
    together : sequence of tuple of array
        Further pairs of places whose posterior covariances are wanted.
    """

    cells: Indices
    first: Indices
    second: Indices
    columns: Array
    widths: Array
    together: Sequence[tuple[Indices, Indices]] = field(default=())

    @property
    def q(self) -> int:
        """How many numbers x there are."""
        return self.columns.shape[1]

    @property
    def shape(self) -> tuple[int, int]:
        """How many rows there are, and how many coefficients each may have."""
        n, k = self.cells.shape
        return n, k

    def split(self, array: Array) -> tuple[Array, Array]:
        """Return coefficients (n, k) and entries (m,) of Q of the array that holds both."""
        flat = array.reshape(-1)
        return flat[: self.cells.size].reshape(self.cells.shape), flat[self.cells.size :]

    @cached_property
    def _pairs(self) -> tuple[Indices, Indices]:
        """Pairs of places (n, k(k + 1)/2) of each row."""
        return pairs_of_rows(self.cells)

    @cached_property
    def prior(self) -> FactorPattern:
        """The pattern of Q, where rows have no two places that depend on each other with it unless it is in there."""
        components = FactorPattern(self.q, self.first, self.second).components
        own, other = _distinct(self.q, [self._pairs])
        alike = components[own] == components[other]
        return FactorPattern(self.q, np.r_[self.first, own[alike]], np.r_[self.second, other[alike]])

    @cached_property
    def posterior(self) -> FactorPattern:
        """The pattern of Q + AᵀΠA."""
        own, other = _distinct(self.q, [self._pairs, *self.together])
        return FactorPattern(self.q, np.r_[self.first, own], np.r_[self.second, other])

    @cached_property
    def prior_slots(self) -> tuple[Indices, Indices]:
        """Slots in the prior's pattern of the entries of Q, and of the pairs of rows."""
        return self.prior.slots(self.first, self.second), self.prior.slots(*self._pairs)

    @cached_property
    def posterior_slots(self) -> tuple[Indices, Indices]:
        """The same in the pattern of the posterior."""
        return self.posterior.slots(self.first, self.second), self.posterior.slots(*self._pairs)

    @cached_property
    def counted(self) -> Array:
        """How often an entry (m,) of Q stands in the matrix: off the diagonal on either side of it."""
        return np.where(self.first == self.second, 1.0, 2.0)


def _distinct(q: int, pairs: Sequence[tuple[Indices, Indices]]) -> tuple[Indices, Indices]:
    """Return each pair of different places once."""
    codes = [np.unique(np.maximum(one, other).ravel() * q + np.minimum(one, other).ravel()) for one, other in pairs]
    own, other = np.divmod(np.unique(np.concatenate(codes)), q)
    return own[own != other], other[own != other]
