"""Averages of the densities of given rows, with densities at nodes kept between calls.

Between sweeps of EP the densities of rows are the same, and their cavities change little. `KeptAverage` evaluates the
densities at the nodes of the rules of `pymc_gpep.likelihoods.averages_over_cells` once. Later calls compute averages
from these values. Their criterion of accuracy is that of these rules: averages agree with averages over half the nodes.
In addition, the kept nodes must cover the tilted density. The other rows get new rules.
"""

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.likelihoods.averages_over_cells import (
    BLOCK,
    NodeTable,
    Numbered,
    agree,
    by_blocks,
    log_average_of,
    log_averages,
    widened,
)
from pymc_gpep.likelihoods.cell_rules import CellDensity, CellRule, DensityPoints, tilted_rules

_COVERED = 8.5  # Smallest distance between a mean and an end of the kept nodes, in standard deviations.
_FALL = 34.0  # Smallest fall of the log integrand from its mode to the end of the nodes.
_LOOSE = 1e3  # Multiple of the allowed differences between rules for rough averages.
_LARGEST = 2**22  # Largest number of kept nodes of all rows.


class _Kept(NamedTuple):
    """Densities of points at the nodes of a rule and of the rule with half the nodes."""

    mean: Array
    """Means of the normal densities for which the rules were made, (n,)."""
    low: Array
    """Lower ends of rules, relative to the means, (n,)."""
    high: Array
    whole: NodeTable
    half: NodeTable | None
    """None if its nodes are every other node of `whole`."""

    @classmethod
    def of(cls, rule: CellRule, half: NodeTable | None, whole: NodeTable) -> Self:
        """Return the tables of a rule with the ends of its range."""
        low = rule.centre[0] + rule.scale[0] * np.sinh(rule.low[0])
        high = rule.centre[-1] + rule.scale[-1] * np.sinh(rule.high[-1])
        return cls(rule.points.mean, low, high, whole, half)

    def take(self, chosen: NDArray[np.intp] | slice) -> Self:
        mean, low, high = (each[chosen] for each in self[:3])
        return type(self)(mean, low, high, self.whole.take(chosen), self.half and self.half.take(chosen))

    def put(self, chosen: NDArray[np.intp], other: Self) -> None:
        """Overwrite the points `chosen` by the points of `other`."""
        for mine, its in zip(self.arrays, other.arrays, strict=True):
            mine[..., chosen] = its

    @property
    def nodes(self) -> int:
        """Number of nodes in the tables."""
        return len(self.whole.value) + (0 if self.half is None else len(self.half.value))

    @property
    def arrays(self) -> list[Array]:
        """All arrays; the last axis is points."""
        return [self.mean, self.low, self.high, *self.whole, *(self.half or ())]

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return the points of all parts, which have equal numbers of nodes."""
        mean, low, high, *tables = (
            np.concatenate(each, axis=-1) for each in zip(*(part.arrays for part in parts), strict=True)
        )
        count = len(NodeTable._fields)
        whole, half = tables[:count], tables[count:]
        return cls(mean, low, high, NodeTable(*whole), NodeTable(*half) if half else None)

    def terms(self, mean: Array, variance: Array, loose: float) -> tuple[Array, NDArray[np.bool_]]:
        """Return h with four derivatives (5, n), and a mask of the points at which both rules agree."""
        shift = mean - self.mean
        whole = self.whole._replace(deviation=self.whole.deviation - shift)
        half = whole.half() if self.half is None else self.half._replace(deviation=self.half.deviation - shift)
        found = log_average_of(whole, variance)
        return found, agree(found, log_average_of(half, variance), variance, nested=self.half is None, loose=loose)

    def cover(self, mean: Array, variance: Array) -> NDArray[np.bool_]:
        """Return a mask of the points whose tilted densities are negligible beyond the nodes."""
        shift, reach = mean - self.mean, _COVERED * np.sqrt(variance)
        inside = (shift - reach >= self.low) & (shift + reach <= self.high)
        deviation = self.whole.deviation - shift
        exponent = self.whole.value - 0.5 * deviation**2 / variance
        inside &= np.maximum(exponent[0], exponent[-1]) < exponent.max(axis=0) - _FALL
        low, high = (self.whole.slope[end] - deviation[end] / variance for end in (0, -1))
        return np.asarray(inside & (low > 0.0) & (high < 0.0))


def _run(places: NDArray[np.intp]) -> NDArray[np.intp] | slice:
    """Return consecutive places as a slice, which copies no arrays."""
    first, last = places[0], places[-1]
    whole = last - first + 1 == len(places) and (np.diff(places) == 1).all()
    return slice(first, last + 1) if whole else places


class KeptAverage:
    """Log averages of the densities of given rows over normal densities that change between calls.

    Parameters
    ----------
    density : CellDensity
    columns : array (q, n)
        Further arguments of the density of each row.
    rough : bool
        Whether averages with an error of about 1e-7 suffice.
    """

    def __init__(self, density: CellDensity, columns: Array, *, rough: bool = False) -> None:
        self._density, self._columns, self._loose = density, columns, _LOOSE if rough else 1.0
        self._kept: dict[int, _Kept] = {}
        # Number of nodes of each row, 0 without kept nodes, and its place among the rows with as many nodes.
        self._size, self._place = np.zeros((2, columns.shape[1]), np.intp)

    def __call__(self, mean: Array, variance: Array, out: Array, rows: NDArray[np.intp] | None = None) -> None:
        """Write h of `GaussianAverage` and four derivatives (5, m) for `rows` (m,), or for all rows if None."""
        rows = np.arange(self._columns.shape[1]) if rows is None else rows
        size, place, left = self._size[rows], self._place[rows], np.full(len(rows), True)
        for nodes, kept in self._kept.items():
            chosen = np.flatnonzero(size == nodes)
            for start in range(0, chosen.size, BLOCK):
                block = chosen[start : start + BLOCK]
                own = kept.take(_run(place[block]))
                with np.errstate(all="ignore"):
                    found, good = own.terms(mean[block], variance[block], self._loose)
                    good &= own.cover(mean[block], variance[block])
                out[:, block[good]] = found[:, good]
                left[block[good]] = False
        again = np.flatnonzero(left)
        if again.size:
            out[:, again] = self._anew(rows[again], mean[again], variance[again])

    def _anew(self, rows: NDArray[np.intp], mean: Array, variance: Array) -> Array:
        """Return terms of rows by new rules, and keep the densities at their nodes."""
        made: dict[int, list[tuple[NDArray[np.intp], _Kept]]] = {}

        def terms(points: DensityPoints) -> Array:
            wide, at_mean, narrow = widened(points)

            def keep(rule: CellRule, half: NodeTable | None, whole: NodeTable) -> None:
                numbers = rule.points.columns[-1].astype(np.intp)
                own = np.flatnonzero(~narrow[np.searchsorted(points.columns[-1], numbers)])
                kept = _Kept.of(rule, half, whole).take(own)
                made.setdefault(kept.nodes, []).append((numbers[own], kept))

            out = log_averages(tilted_rules(wide), keep, self._loose)
            out[:3] = np.where(narrow, at_mean, out[:3])
            return out

        numbered = Numbered(self._density)
        found = by_blocks(numbered, mean, variance, np.vstack([self._columns[:, rows], rows]), 5, terms)
        for nodes, pieces in made.items():
            numbers, tables = zip(*pieces, strict=True)
            self._keep(nodes, np.concatenate(numbers), _Kept.joined(tables))
        return found

    def _keep(self, nodes: int, rows: NDArray[np.intp], new: _Kept) -> None:
        """Replace what is kept of rows by densities at this number of nodes, unless too much would be kept."""
        same = self._size[rows] == nodes
        if same.any():
            self._kept[nodes].put(self._place[rows[same]], new.take(np.flatnonzero(same)))
        others = np.flatnonzero(~same)
        rows, new = rows[others], new.take(others)
        self._size[rows] = 0
        if not rows.size or nodes * rows.size + int(self._size.sum()) > _LARGEST:
            return
        before = np.flatnonzero(self._size == nodes)
        parts = [new]
        if before.size:
            # Without the places of rows that have moved to other numbers of nodes.
            before = before[np.argsort(self._place[before])]
            parts = [self._kept[nodes].take(_run(self._place[before])), new]
        self._kept[nodes] = _Kept.joined(parts)
        every = np.concatenate([before, rows])
        self._size[rows], self._place[every] = nodes, np.arange(every.size)
