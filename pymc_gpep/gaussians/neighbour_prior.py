"""A process by nearest neighbours, beside effects with a sparse precision, as a prior of numbers.

The process has values x at places in an order. Each is a regression on its neighbours, and b, d are the coefficients
and residual variances, see `pymc_gpep.kernels.gaussians.neighbours`. So the precision of x is (I − B)ᵀ D⁻¹ (I − B),
whose determinant and root need no factorisation.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.precision_prior import PrecisionPrior, PrecisionStructure
from pymc_gpep.kernels.gaussians.neighbours import precision_entries, pull_precision, solve_backward, solve_forward
from pymc_gpep.solvers.coefficients import Coefficients, Entries, blocks_of_rows
from pymc_gpep.solvers.sparse_precision import FactorPattern, SparsePrecision, pairs_of_rows

type Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class NeighbourSets:
    """Neighbours of places in their order, and the pairs of places that the precision has.

    Attributes
    ----------
    cells : array (p, m)
        Neighbours of each place, which stand before it, padded with 0.
    counts : array (p,)
        Number of neighbours of each place.
    """

    cells: Indices
    counts: Indices

    @property
    def size(self) -> int:
        """Number of places, p."""
        return len(self.cells)

    @cached_property
    def _made(self) -> tuple[Indices, Indices, Indices]:
        p, m = self.cells.shape
        one, other = pairs_of_rows(np.concatenate([np.arange(p)[:, None], self.cells], axis=1))
        used = np.tril_indices(m + 1)[0] <= self.counts[:, None]
        codes = np.maximum(one, other) * p + np.minimum(one, other)
        codes = np.where(one == other, one - p, codes)  # The diagonal is first.
        found, slots = np.unique(np.where(used, codes, -p), return_inverse=True)
        first, second = (np.where(found < 0, found + p, each) for each in np.divmod(found, p))
        return first, second, np.ascontiguousarray(slots.reshape(p, -1))

    @property
    def first(self) -> Indices:
        """Rows of pairs of places, on one side of the diagonal; the diagonal is first."""
        return self._made[0]

    @property
    def second(self) -> Indices:
        """Columns of pairs of places."""
        return self._made[1]

    @property
    def slots(self) -> Indices:
        """Number of the pair for each pair of a set (p, (m + 1)(m + 2)/2), in the order of kernels."""
        return self._made[2]


@dataclass(frozen=True, eq=False)
class NeighbourStructure(PrecisionStructure):
    """Where rows and precision have entries: those of effects, and behind them those of a process by neighbours.

    Attributes
    ----------
    sets : NeighbourSets
    """

    sets: NeighbourSets = field(kw_only=True)

    @property
    def begin(self) -> int:
        """Place of the first number of the process."""
        return self.q - self.sets.size

    @property
    def n_own(self) -> int:
        """Number of entries of the precision of effects."""
        return len(self.first) - len(self.sets.first)

    @property
    def length(self) -> int:
        """Length of the array: coefficients, entries of effects, b (p, m), d (p,), and prior variances (p,)."""
        p, m = self.sets.cells.shape
        return self.cells.size + self.n_own + p * (m + 2)

    @cached_property
    def effects(self) -> tuple[FactorPattern, Indices, Indices] | None:
        """Pattern of the precision of effects, with slots of its entries and of flat numbers; None without effects."""
        if not self.begin:
            return None
        first, second = self.first[: self.n_own], self.second[: self.n_own]
        pattern = FactorPattern(self.begin, first, second)
        return pattern, pattern.slots(first, second), pattern.slots(self.flat, self.flat)

    def regressions(self, rest: Array) -> tuple[Array, Array, Array]:
        """Return b (p, m), d (p,) and prior variances (p,) from the end of the array."""
        p, m = self.sets.cells.shape
        own = rest[self.n_own :]
        return own[: p * m].reshape(p, m), own[p * m : -p], own[-p:]


class _Factor:
    """The prior precision of effects, and of a process by neighbours beside them, ready for products and solves."""

    def __init__(self, s: NeighbourStructure, effects: SparsePrecision | None, b: Array, d: Array) -> None:
        self._s, self._effects, self._b, self._d = s, effects, b, d

    @property
    def log_det(self) -> float:
        """Log|Q|."""
        own = 0.0 if self._effects is None else self._effects.log_det
        return own - float(np.log(self._d).sum())

    def _parts(self, right: Array) -> tuple[Array, Array]:
        rows = np.atleast_2d(np.asarray(right, np.float64))
        return rows[:, : self._s.begin], np.array(rows[:, self._s.begin :], order="C")

    def _joined(self, effects: Array, values: Array, shape: tuple[int, ...]) -> Array:
        return np.concatenate([effects, values], axis=1).reshape(shape)

    def solve(self, right: Array) -> Array:
        """Q⁻¹ r of r (q,), or of each row of (m, q)."""
        effects, values = self._parts(right)
        sets = self._s.sets
        solve_backward(sets.cells, sets.counts, self._b, values)
        values *= self._d
        solve_forward(sets.cells, sets.counts, self._b, values)
        return self._joined(effects if self._effects is None else self._effects.solve(effects), values, right.shape)

    def halved(self, right: Array) -> Array:
        """Rows whose products are rᵀQ⁻¹s, of rows r and s of (m, q)."""
        effects, values = self._parts(right)
        solve_backward(self._s.sets.cells, self._s.sets.counts, self._b, values)
        values *= np.sqrt(self._d)
        return self._joined(effects if self._effects is None else self._effects.halved(effects), values, right.shape)

    def spread(self, noise: Array) -> Array:
        """Draws of N(0, Q⁻¹) of standard normals (m, q)."""
        effects, values = self._parts(noise)
        values *= np.sqrt(self._d)
        solve_forward(self._s.sets.cells, self._s.sets.counts, self._b, values)
        return self._joined(effects if self._effects is None else self._effects.spread(effects), values, noise.shape)

    def variances(self, rows: Coefficients) -> Array:
        """Return the diagonal (m,) of T Q⁻¹ Tᵀ, of any rows T (m, q)."""
        m = len(rows.products(np.zeros(self._s.q)))
        parts = [np.zeros(0)]
        for some in blocks_of_rows(m, self._s.q):
            parts.append((self.halved(rows.some(np.arange(m)[some])) ** 2).sum(axis=1))
        return np.concatenate(parts)

    def of_effects(self, first: Indices, second: Indices) -> Array:
        """Return entries (i, j) of the covariance of effects."""
        assert self._s.effects is not None
        assert self._effects is not None
        return self._effects.entries(self._s.effects[1], first, second)


class NeighbourPrior(PrecisionPrior):
    """f = m + A x for effects with a sparse precision, and values of a process by nearest neighbours, behind them.

    Parameters
    ----------
    array : array (1, 1, length)
        See `NeighbourStructure.length`.
    mean : array (1, n)
    structure : NeighbourStructure
    """

    structure: NeighbourStructure

    def _read_precision(self, rest: Array) -> Array:
        s = self.structure
        self._b, self._d, self._own_variances = s.regressions(rest)
        found = np.zeros(len(s.sets.first))
        precision_entries(s.sets.slots, s.sets.counts, self._b, self._d, found)
        return np.concatenate([rest[: s.n_own], found])

    @classmethod
    def algebra(cls, n: int, q: int, known: Any = None) -> str:
        p, m = known.sets.cells.shape
        entries = known.posterior.entries
        return f"By {m} nearest neighbours of {p} places: {n} rows of {q} numbers, with {entries} entries in the factor."

    @cached_property
    def factor(self) -> _Factor | None:  # type: ignore[override]  # the same questions
        s, effects = self.structure, None
        if not (np.isfinite(self._b).all() and (self._d > 0.0).all()):
            return None
        if s.effects is not None:
            pattern, slots, ones = s.effects
            total = np.bincount(slots, self.entries_of_precision[: s.n_own], pattern.entries + 1).astype(np.float64)
            total[ones] += 1.0
            effects = SparsePrecision.factorised(pattern, total, s.columns[:, : s.begin], s.widths)
            if effects is None:
                return None
        return _Factor(s, effects, self._b, self._d)

    @cached_property
    def variances(self) -> Array:
        """See `PrecisionPrior`; of the process those of its covariance function."""
        s = self.structure
        own = np.where(self.structure.cells >= s.begin, self.values, 0.0)
        variance = (own**2 * self._own_variances[np.maximum(s.cells - s.begin, 0)]).sum(axis=1)
        if s.begin and self.factor is not None:
            effects = np.where(s.cells < s.begin, self.values, 0.0)
            variance += self.factor.variances(Entries(s.cells, effects, s.q))
        return variance[None]

    def _inverse_entries(self) -> Array:
        """See `PrecisionPrior`; those of effects alone, since the determinant of the process is known by d."""
        s = self.structure
        found = np.zeros(len(s.first))
        if s.n_own:
            found[: s.n_own] = self.precision.of_effects(s.first[: s.n_own], s.second[: s.n_own])
        return found

    def _array_gradient(self, of_entries: Array) -> Array:
        s = self.structure
        of_b, of_d = np.empty_like(self._b), np.empty_like(self._d)
        own = np.ascontiguousarray(of_entries[s.n_own :])
        pull_precision(s.sets.slots, s.sets.counts, self._b, self._d, own, of_b, of_d)
        of_d -= 0.5 / self._d
        return np.concatenate([of_entries[: s.n_own], of_b.ravel(), of_d, np.zeros_like(of_d)])

    def some(self, points: Indices) -> "NeighbourPrior":
        own = self.structure
        structure = NeighbourStructure(
            own.cells[points], own.first, own.second, own.columns, own.widths, flat=own.flat, sets=own.sets
        )
        array = np.concatenate([self.values[points].ravel(), self.array.ravel()[own.cells.size :]])
        return NeighbourPrior(array[None, None], self.mean[:, points], structure)
