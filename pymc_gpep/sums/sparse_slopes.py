"""Values of a model as t + T x with a sparse T: which entries of x each value depends on, and the coefficients.

The entries are found at one point of the hyperparameters. Entries that no value has in common are then moved together
(Curtis, Powell and Reid 1974). The number of evaluations is about the number of coefficients of a value. If that takes
too many, slopes along random directions separate the few coefficients of a value.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, cast

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.blocking import PointType
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.graphs.interpreted import SEED, ModelFunctions
from pymc_gpep.solvers.coefficients import Entries
from pymc_gpep.sums.affine_map import InNormals, at_zero, cells_by_probes, probes, slopes_along

_ONE_BY_ONE = 64  # numbers that are moved alone
_PARTS = 8  # of numbers that a value takes several of
_ROUNDS = 30  # of parts; a value of four numbers, or of some of them, is left over once in ten million
_TOO_MANY = 0.7  # of values that one round leaves over: of two numbers 0.12, of four 0.59, of five 0.79
_MOST_COEFFICIENTS = 8  # coefficients of a value that are told apart by directions
_SIDE_BY_SIDE = 8  # entries of a last axis, of which a value may take several

type _Entries = tuple[NDArray[np.int64], NDArray[np.int64], Array]
"""Rows, places and coefficients."""

type Blocks = Sequence[tuple[int, ...]]
"""Shapes of the variables that numbers x are of, one after the other."""


def entries_of(linear: Callable[[Array], Array], blocks: Blocks) -> Entries | None:
    """Return the coefficients of values that are linear in x; None where too many numbers are to be moved alone."""
    q = sum(int(np.prod(shape)) for shape in blocks)
    found: list[_Entries] = []
    rows, alone, begin = 0, 0, 0
    for shape in blocks:
        size = int(np.prod(shape))
        own = begin + np.arange(size)
        begin += size
        for places in _tried(linear, own, shape, q):
            if isinstance(places, tuple):
                found.append(places)
                continue
            alone += len(places)
            if alone > _ONE_BY_ONE:
                return None
            for place in places:
                values = linear(_unit(q, place))
                here = np.flatnonzero(values)
                found.append((here, np.full(here.size, place), values[here]))
    rows = len(linear(np.zeros(q)))
    return _padded(rows, q, found)


def rows_of(linear: Callable[[Array], Array], blocks: Blocks) -> Entries:
    """Return the coefficients of values that are linear in x, of which each number is moved alone where it must be."""
    if (found := entries_of(linear, blocks)) is not None:
        return found
    q = sum(int(np.prod(shape)) for shape in blocks)
    full = np.stack([linear(_unit(q, place)) for place in range(q)], axis=1)
    return Entries(np.tile(np.arange(q), (len(full), 1)), full, q)


def _tried(
    linear: Callable[[Array], Array], places: NDArray[np.int64], shape: tuple[int, ...], q: int
) -> Iterator[Any]:
    """Yield entries of numbers of which each value takes few, and the places of other numbers."""
    last = shape[-1] if len(shape) > 1 else 0
    if (one := _taken(linear, places, q)).alone.all():
        yield one.entries(one.alone)
    elif 1 < last <= _SIDE_BY_SIDE:
        for column in places.reshape(-1, last).T:
            yield from _tried(linear, np.ascontiguousarray(column), (len(column),), q)
    else:
        few = _several(linear, places, q) if len(places) > _PARTS else None
        yield places if few is None else few


class _Taken(NamedTuple):
    """Values that take one of some numbers at the most, which number, and its coefficient; (n,) each."""

    alone: NDArray[np.bool_]
    places: NDArray[np.int64]
    coefficients: Array
    moved: NDArray[np.bool_]
    """Whether a value takes any of them."""

    def entries(self, wanted: NDArray[np.bool_]) -> _Entries:
        """Return entries of some values."""
        here = np.flatnonzero(wanted & (self.coefficients != 0.0))
        return here, self.places[here], self.coefficients[here]


def _taken(linear: Callable[[Array], Array], places: NDArray[np.int64], q: int) -> _Taken:
    """Return what values take of the numbers at some places."""

    def moved(probe: Array) -> Array:
        x = np.zeros(q)
        x[places] = probe
        return linear(x)

    changes = [moved(probe) for probe in probes(places.shape)]
    cells, alone = cells_by_probes(changes, places.shape)
    return _Taken(alone, places[np.clip(cells, 0, len(places) - 1)], changes[0], changes[2] != 0.0)


def _several(linear: Callable[[Array], Array], places: NDArray[np.int64], q: int) -> _Entries | None:
    """Return entries of numbers of which each value takes up to four; None where many values take more.

    Numbers are put into a few parts by chance, over and over. A value is known once none of its numbers share a part.
    """
    rng = np.random.default_rng(SEED)
    found: list[_Entries] = []
    left: NDArray[np.bool_] | None = None
    for _ in range(_ROUNDS):
        part = rng.integers(_PARTS, size=len(places))
        taken = [_taken(linear, places[part == k], q) for k in np.unique(part)]
        known = np.all([each.alone for each in taken], axis=0)
        if left is None:
            left = np.ones_like(known)
            moved = np.any([each.moved for each in taken], axis=0)
            if np.sum(~known) > _TOO_MANY * np.sum(moved):
                return None
        found += [each.entries(known & left) for each in taken]
        left &= ~known
        if not left.any():
            row, place, value = (np.concatenate([each[i] for each in found]) for i in range(3))
            return row, place, value
    return None


def _unit(q: int, place: int) -> Array:
    x = np.zeros(q)
    x[place] = 1.0
    return x


def _padded(rows: int, q: int, found: Sequence[_Entries]) -> Entries:
    """Return entries (rows, k); those beyond a row's own repeat its first place, with 0."""
    row, place, value = (np.concatenate([each[i] for each in found]) for i in range(3))
    order = np.lexsort((place, row))
    row, place, value = row[order], place[order].astype(np.int64), value[order]
    counts = np.bincount(row, minlength=rows)
    starts = np.concatenate([[0], np.cumsum(counts)])
    k = max(int(counts.max(initial=0)), 1)
    first = np.where(counts > 0, place[np.minimum(starts[:-1], max(len(place) - 1, 0))] if len(place) else 0, 0)
    cells, values = np.repeat(first[:, None], k, axis=1), np.zeros((rows, k))
    along = np.arange(len(row)) - starts[row]
    cells[row, along], values[row, along] = place, value
    return Entries(np.ascontiguousarray(cells), values, q)


def _colours(entries: Entries, q: int) -> NDArray[np.int64]:
    """Return a number for each place, (q,), which no two places of a row share."""
    there = entries.values != 0.0
    row, along = np.nonzero(there)
    place = entries.cells[row, along]
    order = np.argsort(place, kind="stable")
    starts = np.searchsorted(place[order], np.arange(q + 1))
    colours, used = np.zeros(q, np.int64), np.zeros((len(entries.cells), 1), bool)
    for each in np.flatnonzero(np.diff(starts)):
        rows = row[order[starts[each] : starts[each + 1]]]
        free = ~used[rows].any(axis=0)
        colour = int(free.argmax()) if free.any() else used.shape[1]
        if colour == used.shape[1]:
            used = np.column_stack([used, np.zeros(len(used), bool)])
        used[rows, colour] = True
        colours[each] = colour
    return colours


class SparseSlopes:
    """Values t + T x as a function of the hyperparameters.

    Parameters
    ----------
    prior : InNormals
    values : sequence of TensorVariable
        Variables that are made of x, one after the other.
    blocks : sequence of tuple of int
        Shapes of the variables that x is of.
    data : mapping
        Data of the model → what takes their place.

    Attributes
    ----------
    entries : Entries or None
        T at some hyperparameters; None where T has no few coefficients.
    shapes : list of tuple of int
        Shapes of the values.
    """

    def __init__(
        self, prior: InNormals, values: Sequence[TensorVariable], blocks: Blocks, data: Mapping[Variable, Variable]
    ) -> None:
        self._prior = prior
        self._z = pt.vector("numbers", shape=(prior.n_normals,), dtype="float64")
        made = prior.by_normals(list(values), self._z, seen=True)
        shapes = [each.shape for each in made]
        self._flat: TensorVariable = pt.concatenate([each.astype("float64").ravel() for each in made])
        self._functions = ModelFunctions(prior.model, prior.hyperparameters, data)
        point = self._functions.nearby(np.random.default_rng(SEED))
        function = self._functions([self._flat, *shapes], [self._z])
        still, *lengths = function(point, np.zeros(prior.n_normals))
        self.shapes = [tuple(map(int, each)) for each in lengths]
        self.entries = entries_of(lambda x: np.asarray(function(point, x)[0]) - still, blocks)

    def centre(self) -> TensorVariable:
        """Return t, (m,), in terms of the random variables of the model."""
        return at_zero(self._flat, self._z)

    def graph(self) -> TensorVariable:
        """Return T by its entries, (m, k), likewise."""
        assert self.entries is not None
        cells, q = self.entries.cells, self._prior.n_normals
        there = self.entries.values != 0.0
        colours = _colours(self.entries, q)
        k = cells.shape[1]
        if k <= _MOST_COEFFICIENTS and colours.max() >= k + 2:
            # A value of k coefficients has them from its slopes along a few directions.
            directions = np.random.default_rng(SEED).standard_normal((k + 2, q))
            apart = np.linalg.pinv(np.where(there, directions[:, cells], 0.0).swapaxes(0, 1))
            found = (apart * slopes_along(self._flat, self._z, pt.constant(directions)).T[:, None]).sum(axis=2)
            return cast(TensorVariable, found)
        seeds = (colours == np.arange(colours.max() + 1)[:, None]).astype(np.float64)
        moved = slopes_along(self._flat, self._z, pt.constant(seeds))
        rows = np.arange(len(cells))[:, None]
        return cast(TensorVariable, moved[colours[cells], rows] * there.astype(np.float64))

    @cached_property
    def _numbers(self) -> Callable[..., Sequence[Array]]:
        return self._functions([self.centre(), self.graph()])

    def __call__(self, point: PointType) -> tuple[Array, Entries]:
        """Return t and T, given values of the value variables."""
        assert self.entries is not None
        centre, values = self._numbers(point)
        return centre, Entries(self.entries.cells, np.ascontiguousarray(values), self._prior.n_normals)
