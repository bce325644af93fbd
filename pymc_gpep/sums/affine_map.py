"""Affine form t + T z + Σ A g of expressions of a model, for standard normals z and values g of separate processes.

T is a graph, or a matrix that is computed from values of the expressions along few directions of z, called probes. If a
value depends on a single entry of z, three probes find this entry and its coefficient. Probes of random subsets of z
find the coefficients of values that depend on a few entries. Each remaining entry of z needs a separate probe.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.blocking import PointType
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace, vectorize_graph
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.op import RNGConsumerOp
from pytensor.tensor.shape import shape_tuple
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.graphs.interpreted import SEED, AtPoint, ModelFunctions
from pymc_gpep.graphs.rows_apart import at_point, check_rows_apart, dependent_rows
from pymc_gpep.graphs.rows_of_graphs import MixedRowsError
from pymc_gpep.latent.gp_latent import LatentGP
from pymc_gpep.processes.process_functions import MovedSum
from pymc_gpep.solvers.coefficients import Coefficients, Entries, rows_from_entries

# A smaller relative difference between coefficients of standard normals counts as a rounding error.
COEFFICIENT_TOLERANCE = 1e-9
# Seed of the probe of noise. The point at which probes are evaluated has another seed.
_PROBE_SEED = 2
# By default, at most this number of entries of z has separate probes.
_ONE_BY_ONE = 64
# A random split divides the entries of z into this number of subsets.
_PARTS = 8
# Largest number of random splits. A value with four entries of z then stays unidentified with probability 1e-7.
_ROUNDS = 30
# Splits stop if a larger share of values is unidentified after the first split: 0.59 for four entries, 0.79 for five.
_TOO_MANY = 0.7
# Positions along a last axis of at most this length are probed separately.
_SIDE_BY_SIDE = 8
# At most this number of values, or of entries of directions, is in memory (32 MB).
_AT_ONCE = 4_000_000
# Number of directions in the first call. This call returns the number of values.
_AT_FIRST = 12

type _Entries = tuple[NDArray[np.int64], NDArray[np.int64], Array]
"""Rows, positions and values of nonzero coefficients."""

type Blocks = Sequence[tuple[int, ...]]
"""Shapes of variables. Their concatenated entries form a vector x."""

type Linear = Callable[[Array], Array]
"""Linear function from directions (s, q) to values (s, m), one row for each direction."""


@lru_cache(maxsize=8)
def probes(shape: tuple[int, ...]) -> Array:
    """Return three probes (3, *shape): ones; 1, 2, 3, …; noise. They identify the entry on which a row depends."""
    coded = np.arange(1.0, np.prod(shape, dtype=int) + 1).reshape(shape)
    found = np.stack([np.ones(shape), coded, np.random.default_rng(_PROBE_SEED).standard_normal(shape)])
    found.flags.writeable = False  # The cache returns the same array to all callers.
    return found


def cells_by_probes(changes: Sequence[Array], shape: tuple[int, ...]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the index of the entry that each row selects, and a mask of rows that depend on at most one entry.

    Parameters
    ----------
    changes : sequence of array
        Changes of the rows due to the three `probes`, arrays of equal shape.
    shape : tuple of int
        Shape of the variable with these entries.
    """
    coefficient, coded, noise = changes
    none = coefficient == 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        cells = np.where(none, 1.0, coded / coefficient).round().astype(np.int64) - 1
    values = probes(shape)[2].ravel()
    inside = (cells >= 0) & (cells < values.size)
    again = np.where(inside, coefficient * values[np.where(inside, cells, 0)], np.nan)
    return cells, np.isclose(again, noise, rtol=COEFFICIENT_TOLERANCE, atol=COEFFICIENT_TOLERANCE)


def entries_of(linear: Linear, blocks: Blocks, most: int = _ONE_BY_ONE) -> Entries | None:
    """Return the coefficients T (m, q) of a linear function; None if more than `most` columns need separate probes."""
    moved, q = _Moved(linear), sum(int(np.prod(shape)) for shape in blocks)
    ends = np.cumsum([0, *(int(np.prod(shape)) for shape in blocks)])
    every = np.arange(q)
    pending = [(every[a:b], shape) for a, b, shape in zip(ends[:-1], ends[1:], blocks, strict=True)]
    found: list[_Entries] = []
    alone: list[NDArray[np.int64]] = [every[:0]]
    while pending:
        left: list[tuple[NDArray[np.int64], tuple[int, ...]]] = []
        taken = _taken(moved, [places for places, _ in pending], q)
        for (places, shape), one in zip(pending, taken, strict=True):
            last = shape[-1] if len(shape) > 1 else 0
            if one.alone.all():
                found.append(one.entries(one.alone))
            elif 1 < last <= _SIDE_BY_SIDE:
                left += [(np.ascontiguousarray(own), (len(own),)) for own in places.reshape(-1, last).T]
            elif len(places) > _PARTS and (few := _several(moved, places, q)) is not None:
                found.append(few)
            else:
                alone.append(places)
                if sum(map(len, alone)) > most:
                    return None
        pending = left
    places = np.concatenate(alone)
    for some in np.array_split(places, -(-len(places) // _ONE_BY_ONE)) if len(places) else ():
        values = moved(_units(some, q))
        which, row = np.nonzero(values)
        found.append((row, some[which], values[which, row]))
    return _padded(moved.rows, q, found)


def every_entry(linear: Linear, blocks: Blocks) -> Entries:
    """Return the coefficients T (m, q) of a linear function: a dense matrix if `entries_of` returns None."""
    if (found := entries_of(linear, blocks)) is not None:
        return found
    moved, q = _Moved(linear), sum(int(np.prod(shape)) for shape in blocks)
    return in_full(moved(np.eye(q)))


def in_full(slopes: Array) -> Entries:
    """Return slopes (q, ...) as coefficients (m, q). Zeros are stored as well."""
    q = len(slopes)
    values = np.ascontiguousarray(slopes.reshape(q, -1).T)
    return Entries(np.tile(np.arange(q), (len(values), 1)), values, q)


def coefficients_of(linear: Linear, blocks: Blocks, functions: int) -> Coefficients:
    """Return the coefficients (cn, q) of c functions at n rows. The storage depends on the number of entries."""
    q = sum(int(np.prod(shape)) for shape in blocks)
    found = entries_of(linear, blocks, most=q)
    assert found is not None
    cells, values = (each.reshape(functions, -1, each.shape[1]) for each in (found.cells, found.values))
    widths = [max(int((own != 0.0).sum(axis=1).max(initial=0)), 1) for own in values]
    return rows_from_entries([(cells[k][:, :width], values[k][:, :width]) for k, width in enumerate(widths)], q)


class _Moved:
    """Values of a linear function along directions. A few directions are computed at a time."""

    def __init__(self, linear: Linear) -> None:
        self._linear, self._known = linear, 0

    @property
    def rows(self) -> int:
        """Number of values, m; 0 before the first call."""
        return self._known

    def __call__(self, directions: Array) -> Array:
        """Return values (s, m) along directions (s, q)."""
        found: list[Array] = []
        begin = 0
        while begin < len(directions) or not found:
            step = max(3, _AT_ONCE // max(directions.shape[1], self._known)) if self._known else _AT_FIRST
            found.append(self._linear(directions[begin : begin + step]))
            self._known, begin = found[-1].shape[1], begin + step
        return found[0] if len(found) == 1 else np.concatenate(found)


class _Taken(NamedTuple):
    """Dependence of m values on some entries of z: whether on at most one entry, its index, and its coefficient."""

    alone: NDArray[np.bool_]
    places: NDArray[np.int64]
    coefficients: Array
    moved: NDArray[np.bool_]
    """Mask (m,): whether a value depends on any of these entries."""

    def entries(self, wanted: NDArray[np.bool_]) -> _Entries:
        """Return the nonzero coefficients of the values in the mask `wanted` (m,)."""
        here = np.flatnonzero(wanted & (self.coefficients != 0.0))
        return here, self.places[here], self.coefficients[here]


def _taken(moved: _Moved, parts: Sequence[NDArray[np.int64]], q: int) -> list[_Taken]:
    """Return the dependence of all values on the entries of z at each array of positions in `parts`."""
    directions = np.zeros((len(parts), 3, q))
    for own, places in zip(directions, parts, strict=True):
        own[:, places] = probes(places.shape)
    found = []
    changes = moved(directions.reshape(-1, q))
    for own, places in zip(changes.reshape(len(parts), 3, -1), parts, strict=True):
        cells, alone = cells_by_probes(list(own), places.shape)
        number = places[np.clip(cells, 0, len(places) - 1)]
        found.append(_Taken(alone, number, own[0], own[2] != 0.0))
    return found


def _several(moved: _Moved, places: NDArray[np.int64], q: int) -> _Entries | None:
    """Return the coefficients of values that depend on at most four entries of z; None if many values depend on more.

    The entries are repeatedly split into random subsets. A value is identified if its entries are in separate subsets.
    """
    rng = np.random.default_rng(SEED)
    found: list[_Entries] = []
    left: NDArray[np.bool_] | None = None
    for _ in range(_ROUNDS):
        part = rng.integers(_PARTS, size=len(places))
        taken = _taken(moved, [places[part == k] for k in np.unique(part)], q)
        known = np.all([each.alone for each in taken], axis=0)
        if left is None:
            left = np.ones_like(known)
            changed = np.any([each.moved for each in taken], axis=0)
            if np.sum(~known) > _TOO_MANY * np.sum(changed):
                return None
        found += [each.entries(known & left) for each in taken]
        left &= ~known
        if not left.any():
            row, place, value = (np.concatenate([each[i] for each in found]) for i in range(3))
            return row, place, value
    return None


def _units(places: NDArray[np.int64], q: int) -> Array:
    """Return unit vectors (s, q) with 1 at these positions (s,)."""
    found = np.zeros((len(places), q))
    found[np.arange(len(places)), places] = 1.0
    return found


def _padded(rows: int, q: int, found: Sequence[_Entries]) -> Entries:
    """Return coefficients as k entries for each row. Rows with fewer entries are padded by zeros."""
    row, place, value = (np.concatenate([each[i] for each in found]) for i in range(3))
    order = np.argsort(row * q + place, kind="stable")
    row, place, value = row[order], place[order].astype(np.int64), value[order]
    counts = np.bincount(row, minlength=rows)
    starts = np.concatenate([[0], np.cumsum(counts)])
    k = max(int(counts.max(initial=0)), 1)
    first = np.where(counts > 0, place[np.minimum(starts[:-1], max(len(place) - 1, 0))] if len(place) else 0, 0)
    cells, values = np.repeat(first[:, None], k, axis=1), np.zeros((rows, k))
    along = np.arange(len(row)) - starts[row]
    cells[row, along], values[row, along] = place, value
    return Entries(np.ascontiguousarray(cells), values, q)


def at_common_places(entries: Entries, functions: int) -> Entries:
    """Return k entries for each of c functions at n points. All functions of a point have the same positions."""
    q, cells = entries.q, entries.cells.reshape(functions, -1, entries.cells.shape[1])
    values = entries.values.reshape(cells.shape)
    function, row, own = np.nonzero(values)
    each = row * q + cells[function, row, own]
    codes = np.unique(each)
    of, place = np.divmod(codes, q)
    common = _padded(cells.shape[1], q, [(of, place, np.ones(len(codes)))])
    along = (np.arange(len(codes)) - np.searchsorted(of, of))[np.searchsorted(codes, each)]
    found = np.zeros((functions, *common.cells.shape))
    found[function, row, along] = values[function, row, own]
    return Entries(np.tile(common.cells, (functions, 1)), found.reshape(-1, found.shape[-1]), q)


def kept_random(outputs: Sequence[Variable]) -> dict[Variable, Variable]:
    """Return replacements that map each random variable in the graphs to itself.

    Replaced data can determine the size of a random variable. PyTensor would then copy this variable. The copy would
    not be a variable of the model, and would be drawn again.
    """
    found = [v for v in ancestors(outputs) if v.owner is not None and isinstance(v.owner.op, RNGConsumerOp)]
    return {v: v for v in found if v.name is not None}


class InNormals(Protocol):
    """Protocol of a sum, with expressions as functions of q standard normals or other coefficients; see `EffectSum`."""

    @property
    def model(self) -> pm.Model:
        """The model."""

    @property
    def hyperparameters(self) -> tuple[TensorVariable, ...]:
        """Variables that are not integrated out."""

    @property
    def n_normals(self) -> int:
        """Number of standard normals, q."""

    @property
    def sources(self) -> frozenset[Variable]:
        """Integrated variables that are not processes, and the latent values of processes."""

    @property
    def recipe_means(self) -> list[TensorVariable]:
        """Means of integrated variables that are not processes."""

    def by_normals(
        self,
        outputs: Sequence[TensorVariable],
        z: TensorVariable,
        moved: Mapping[TensorVariable, TensorVariable] | None = None,
        *,
        seen: bool = False,
    ) -> list[TensorVariable]:
        """Return expressions with integrated variables replaced by functions of z (q,); see `EffectSum.by_normals`."""


class AffineValues(NamedTuple):
    """Values of variables at new data, as affine functions of standard normals plus noise."""

    centres: dict[str, Array]
    slopes: dict[str, Array]
    """Coefficients of the q standard normals by name, (q, ...)."""
    noise: dict[str, Array]
    """Variances of the noise by name: of processes at new inputs, given their values at inputs of the model."""
    axes: dict[str, int]
    """Axis of the new rows in each variable, by name."""


def _replaced(value: TensorVariable, by: Mapping[Variable, Variable]) -> TensorVariable:
    """Return the graph of `value` in double precision after the replacements `by`."""
    return graph_replace([value.astype("float64")], {**kept_random([value]), **by}, strict=False)[0]


class ValueTaken(NamedTuple):
    """The value of a process output that each entry of an expression selects, and its coefficient."""

    coefficients: Array
    cells: NDArray[np.int64]
    """Index of the selected point of the process, for each entry."""
    alone: bool
    """Whether each entry selects at most one value."""


class Affine(NamedTuple):
    """Values of expressions, as affine functions of standard normals and of values of processes."""

    centres: dict[str, Array]
    slopes: dict[str, Array]
    """Changes of the expressions along s directions of the standard normals, by name, (s, ...)."""
    taken: dict[str, list[list[ValueTaken]]]
    """Coefficients of process values by name: a list for each separate process, with an item for each output."""
    inputs: list[Array]
    """Inputs of each separate process, (m, d)."""


type ByValues = Callable[[TensorVariable, Mapping[TensorVariable, TensorVariable]], list[TensorVariable]]
"""Function that returns expressions, given z and the centred values g of each process by its latent values."""


def at_inputs(
    what: str,
    prior: InNormals,
    expressions: Sequence[TensorVariable],
    own: Array,
    x: TensorVariable,
    axis: Callable[[TensorVariable], int],
    moved: Sequence[LatentGP],
    gps: Sequence[pm.gp.Latent] | None = None,
    *,
    seen: bool = False,
) -> ByValues:
    """Return a function that computes expressions at new inputs x. They replace the array `own` in the graphs.

    `axis` returns the axis of rows of an expression. `what` is the name of the expressions in messages, a plural. `gps`
    are the `pm.gp` objects of the processes `moved`. Raise a CannotSplitError if an expression cannot be computed at x,
    and a ValueError if an expression combines rows of a process.
    """
    makers = {gp.f: gp for gp in gps or () if getattr(gp, "f", None) is not None}
    sums = MovedSum(own, moved, prior.model.basic_RVs, x)
    try:
        sums.check_apart(prior.recipe_means)
        there = [sums.values[v] if v in sums.values else sums.moved(v, axis(v)) for v in expressions]
        means = [sums.mean(latent, makers.get(latent.f)) for latent in moved]
    except MixedRowsError as why:
        if of := [f for f in sums.values if sums.is_of(why.source, f)]:
            raise dependent_rows(what, why, of, [str(f.name) for f in of]) from None
        raise
    nothing = {latent.f: pt.zeros(()) for latent in moved}

    def by(z: TensorVariable, g: Mapping[TensorVariable, TensorVariable]) -> list[TensorVariable]:
        made = prior.by_normals([*there, *means], z, nothing, seen=seen)
        values = {latent.f: mean + g[latent.f] for latent, mean in zip(moved, made[len(there) :], strict=True)}
        return [sums.with_values(each, values) for each in made[: len(there)]]

    return by


class AffineMap:
    """Function of hyperparameters and data. It returns expressions in the form t + T z + Σ A g of this module.

    Parameters
    ----------
    prior : InNormals
    expressions : dict of str to TensorVariable
        Expressions by name.
    data : mapping
        Data of the model → their replacements.
    moved : sequence of LatentGP
        Processes with separate terms in g. The values of a process are g plus the mean of the process.
    given : sequence of TensorVariable
        Variables in the replacements. Each call has their values as arguments.
    inputs : sequence of TensorVariable
        Inputs of the separate processes.
    by : callable, optional
        Function of z, and of g of each process by latent values. It returns the expressions in order. The default is
        `prior.by_normals`.
    seen : bool
        Whether expressions may differ by a shift that the likelihood ignores.
    size : int, optional
        Number of coefficients, if `by` has other arguments than standard normals.
    """

    def __init__(
        self,
        prior: InNormals,
        expressions: Mapping[str, TensorVariable],
        data: Mapping[Variable, Variable],
        moved: Sequence[LatentGP] = (),
        given: Sequence[TensorVariable] = (),
        inputs: Sequence[TensorVariable] = (),
        by: ByValues | None = None,
        *,
        seen: bool = False,
        size: int | None = None,
    ) -> None:
        outputs = list(expressions.values())
        self._by = by or (lambda z, g: prior.by_normals(outputs, z, g, seen=seen))
        self.names, self.moved, self.n_normals = (
            list(expressions),
            list(moved),
            prior.n_normals if size is None else size,
        )
        self.functions = ModelFunctions(prior.model, prior.hyperparameters, data)
        self.given, self.inputs = list(given), self.functions.known(inputs)
        z = pt.vector("normals", shape=(self.n_normals,), dtype="float64")
        shapes = [(*latent.f.type.shape[:-1], None) for latent in moved]
        of = [str(latent.f.name) for latent in moved]
        g = [pt.tensor(f"{name}_there", dtype="float64", shape=shape) for name, shape in zip(of, shapes, strict=True)]
        self.symbols = [z, *g]
        self.made = self._by(z, {latent.f: value for latent, value in zip(moved, g, strict=True)})

    def graphs(self, name: str, along: Sequence[TensorVariable]) -> list[TensorVariable]:
        """Return graphs of an expression at z = 0 and g = 0, and of its slopes along directions of z and of each g.

        `along` are directions (s, ...) of standard normals z, then of process values g. Missing directions are skipped.
        """
        symbols, value = self.symbols, self.made[self.names.index(name)]
        zeros: dict[Variable, Variable] = {symbols[0]: pt.zeros(symbols[0].type.shape)}
        zeros |= {v: pt.zeros_like(each[0]) for v, each in zip(symbols[1:], along[1:], strict=False)}
        graphs = [centre := _replaced(value, zeros)]
        for v, units_of in zip(symbols, along, strict=False):
            alone = _replaced(value, {other: zero for other, zero in zeros.items() if other is not v})
            if v not in ancestors([alone]):
                graphs.append(pt.zeros((shape_tuple(units_of)[0], *shape_tuple(alone))))
            else:
                graphs.append(vectorize_graph(alone, {**kept_random([alone]), v: units_of}) - centre)
        return graphs

    @cached_property
    def _function(self) -> AtPoint:
        """Compiled function of values of `given` and of directions. It returns expressions, slopes and inputs."""
        units = pt.matrix("units", shape=(None, self.n_normals), dtype="float64")
        along = [units, *(pt.tensor(dtype="float64", shape=(None, *v.type.shape)) for v in self.symbols[1:])]
        graphs = [each for name in self.names for each in self.graphs(name, along)]
        return self.functions([*graphs, *self.inputs], [*self.given, *along])

    def __call__(
        self, point: PointType, given: Sequence[Any] = (), lengths: Sequence[int] = (), units: Array | None = None
    ) -> Affine:
        """Return the expressions for values of the value variables and of the variables `given`.

        `lengths` are the numbers of points of the separate processes. `units` (s, q) are directions of the standard
        normals for the slopes. The default is all unit vectors.
        """
        shapes = [(*latent.f.type.shape[:-1], n) for latent, n in zip(self.moved, lengths, strict=True)]
        every = np.eye(self.n_normals) if units is None else units
        found = self._function(point, *given, every, *map(_of_each_output, shapes))
        size = 2 + len(shapes)
        result = Affine({}, {}, {}, [np.asarray(x, np.float64) for x in found[size * len(self.names) :]])
        for i, name in enumerate(self.names):
            centre, slopes, *changes = found[size * i : size * (i + 1)]
            result.centres[name], result.slopes[name] = np.asarray(centre), slopes
            result.taken[name] = [_value_taken(each, shape) for each, shape in zip(changes, shapes, strict=True)]
        return result

    @cached_property
    def _at(self) -> AtPoint:
        return self.functions(self.made, [*self.given, *self.symbols], shared=True)

    def at(self, point: PointType, z: Array, g: Sequence[Array] = (), given: Sequence[Any] = ()) -> list[Array]:
        """Return the values of the expressions at standard normals z (q,) and process values g.

        A function of slopes is used if it is already compiled. Otherwise a function of values is compiled, since this
        takes less time.
        """
        if "_function" in self.__dict__ and not g:
            found = self(point, given, units=z[None])
            return [found.centres[name] + found.slopes[name][0] for name in self.names]
        return list(self._at(point, *given, z, *g))

    def along(
        self,
        point: PointType,
        name: str,
        given: Sequence[Any] = (),
        spread: Callable[[Array], Array] | None = None,
        lengths: Sequence[int] = (),
    ) -> tuple[Array, Linear]:
        """Return an expression at z = 0, and a function that computes its slopes along directions (s, q) of normals z.

        `spread` maps slopes (s, ...) of the expression to an array (s, ...). Its flattened rows are the values (s, m).
        `lengths` are the numbers of points of the separate processes.
        """
        place = self.names.index(name)
        g = [np.zeros((*latent.f.type.shape[:-1], n)) for latent, n in zip(self.moved, lengths, strict=True)]
        centre = np.asarray(self.at(point, np.zeros(self.n_normals), g, given)[place], np.float64)

        def linear(directions: Array) -> Array:
            if "_function" in self.__dict__:
                slopes = self(point, given, lengths, directions).slopes[name]
            else:
                slopes = np.stack([self.at(point, z, g, given)[place] - centre for z in directions])
            return (slopes if spread is None else spread(slopes)).reshape(len(directions), -1)

        return centre, linear

    def check_apart(
        self,
        what: str,
        name: str | int,
        axis: int | None,
        point: PointType,
        rows: Mapping[TensorVariable, NDArray[Any]],
        others: Mapping[TensorVariable, Any],
        n: int,
    ) -> None:
        """Raise an error if entries of an expression along an axis depend on data of other rows.

        Parameters
        ----------
        what : str
            Name of the values in messages, a plural.
        name : str or int
            Name of an expression, or index of a process. The inputs of a process are then checked.
        axis : int or None
            Axis of rows; None if all rows have the same values.
        point : dict
            Values of the value variables.
        rows : mapping
            Variables of `given` with data over rows → their values at fitted rows, (n, ...).
        others : mapping
            Other variables of `given` → their values.
        n : int
            Number of fitted rows.
        """
        noise = np.random.default_rng(SEED).standard_normal
        of = {v.f: pt.tensor(v.f.name, dtype="float64", shape=(None,) * v.f.ndim) for v in self.moved}
        if isinstance(name, int):
            output = self.inputs[name]
        else:
            z = pt.constant(noise(self.n_normals))
            made = self._by(z, {f: value.T for f, value in of.items()})[self.names.index(name)]
            (output,) = self.functions.known([made])
        values = {of[v.f]: noise((n, *[len(v.classes)] * (v.f.ndim - 1))) for v in self.moved}
        check_rows_apart(
            what,
            output,
            axis,
            {**rows, **values},
            at_point(self.functions, point, output, others),
            processes=[str(v.name) for v in of.values()],
        )


def _of_each_output(shape: tuple[int, ...]) -> Array:
    """Return three `probes` for each output of a process, (3 outputs, ...). All other outputs of a probe are 0."""
    every = probes(shape)
    if len(shape) == 1:
        return every
    return (np.eye(shape[0])[:, None, :, None] * every).reshape(-1, *shape)


def _value_taken(changes: Array, shape: tuple[int, ...]) -> list[ValueTaken]:
    """Return the selected values for each output of a process, from changes due to its probes."""
    found = []
    for own in np.asarray(changes).reshape(-1, 3, *np.shape(changes)[1:]):
        cells, alone = cells_by_probes(own, shape)
        found.append(ValueTaken(own[0], cells % shape[-1], bool(alone.all())))
    return found
