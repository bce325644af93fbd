"""Values of a model as t + T x, where each depends on few of the numbers x: on which of them, and how much.

Which they are is found at one point of the hyperparameters. Numbers that no value has in common are then moved
together (Curtis, Powell and Reid 1974). About as many evaluations as a value has coefficients give all of them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.blocking import PointType
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.solvers.coefficients import Entries
from pymc_gpep.structure.affine_variables import InNormals, at_zero, slopes_along
from pymc_gpep.structure.interpreted import graph_function, without_c_compiler
from pymc_gpep.structure.process_term import cells_by_probes, probes

__all__ = ["Blocks", "SparseSlopes", "entries_of", "rows_of"]

_ONE_BY_ONE = 64  # numbers that are moved alone
_SIDE_BY_SIDE = 8  # entries of a last axis, of which a value may take several
_BESIDE = 0.3  # of the initial point, unconstrained
_SEED = 1

type Blocks = Sequence[tuple[int, ...]]
"""Shapes of the variables that numbers x are of, one after the other."""


def entries_of(linear: Callable[[Array], Array], blocks: Blocks) -> Entries | None:
    """Return the coefficients of values that are linear in x; None where too many numbers are to be moved alone."""
    q = sum(int(np.prod(shape)) for shape in blocks)
    found: list[tuple[NDArray[np.int64], NDArray[np.int64], Array]] = []
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
    """Yield entries of numbers of which each value takes one, and the places of other numbers."""
    if (selected := _selected(linear, places, q)) is not None:
        yield selected
        return
    last = shape[-1] if len(shape) > 1 else 0
    if not 1 < last <= _SIDE_BY_SIDE:
        yield places
        return
    for column in places.reshape(-1, last).T:
        selected = _selected(linear, np.ascontiguousarray(column), q)
        yield column if selected is None else selected


def _selected(
    linear: Callable[[Array], Array], places: NDArray[np.int64], q: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], Array] | None:
    """Return rows, places and coefficients where each value takes one of some numbers; None elsewhere."""

    def moved(probe: Array) -> Array:
        x = np.zeros(q)
        x[places] = probe
        return linear(x)

    changes = [moved(probe) for probe in probes(places.shape)]
    cells, selected = cells_by_probes(changes, places.shape)
    if not selected:
        return None
    here = np.flatnonzero(changes[0])
    return here, places[cells[here]], changes[0][here]


def _unit(q: int, place: int) -> Array:
    x = np.zeros(q)
    x[place] = 1.0
    return x


def _padded(rows: int, q: int, found: Sequence[tuple[NDArray[np.int64], NDArray[np.int64], Array]]) -> Entries:
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
        self._prior, self._data = prior, data
        self._z = pt.vector("numbers", shape=(prior.n_normals,), dtype="float64")
        made = prior.by_normals(list(values), self._z, seen=True)
        shapes = [each.shape for each in made]
        self._flat: TensorVariable = pt.concatenate([each.astype("float64").ravel() for each in made])
        model = prior.model
        self._value_vars = [model.rvs_to_values[rv] for rv in prior.hyperparameters]
        with without_c_compiler():
            point = model.initial_point()
        rng = np.random.default_rng(_SEED)
        theta = [point[v.name] + _BESIDE * rng.standard_normal(np.shape(point[v.name])) for v in self._value_vars]
        function = self._function([*self._value_vars, self._z], [self._flat, *shapes])
        still, *lengths = function(*theta, np.zeros(prior.n_normals))
        self.shapes = [tuple(map(int, each)) for each in lengths]
        self.entries = entries_of(lambda x: np.asarray(function(*theta, x)[0]) - still, blocks)

    def _function(self, inputs: Sequence[Variable], wanted: Sequence[Variable]) -> Callable[..., Sequence[Array]]:
        model = self._prior.model
        known = graph_replace(model.replace_rvs_by_values(list(wanted)), dict(self._data), strict=False)
        return graph_function(model, inputs, known)

    def centre(self) -> TensorVariable:
        """Return t, (m,), in terms of the random variables of the model."""
        return at_zero(self._flat, self._z)

    def graph(self) -> TensorVariable:
        """Return T by its entries, (m, k), likewise."""
        assert self.entries is not None
        colours = _colours(self.entries, self._prior.n_normals)
        seeds = (colours == np.arange(colours.max() + 1)[:, None]).astype(np.float64)
        moved = slopes_along(self._flat, self._z, pt.constant(seeds))
        rows = np.arange(len(self.entries.cells))[:, None]
        there = (self.entries.values != 0.0).astype(np.float64)
        found: TensorVariable = moved[colours[self.entries.cells], rows] * there
        return found

    @cached_property
    def _numbers(self) -> Callable[..., Sequence[Array]]:
        return self._function(self._value_vars, [self.centre(), self.graph()])

    def __call__(self, point: PointType) -> tuple[Array, Entries]:
        """Return t and T, given values of the value variables."""
        assert self.entries is not None
        centre, values = self._numbers(*(point[v.name] for v in self._value_vars))
        return centre, Entries(self.entries.cells, np.ascontiguousarray(values), self._prior.n_normals)
