"""Sums of effects with a sparse precision: prior, variables, and new rows.

Each variable is an affine function t + T x of coordinates x. The coordinates have a sparse precision (`Field`), or are
standard normals. Coefficients of rows, moments, draws and new rows are in terms of x.

The sparsity pattern of T is found at one point of the hyperparameters. At other points, coordinates without a common
row are moved together (Curtis, Powell and Reid 1974). This mostly takes as many evaluations as a row has coefficients.
If more are needed, slopes along a few random directions determine the few coefficients of each row.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from functools import cached_property, partial
from itertools import accumulate
from typing import Any, ClassVar, NamedTuple, NoReturn, cast

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.blocking import PointType
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable
from scipy.sparse import csr_array

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.precision_prior import PrecisionPrior, PrecisionStructure
from pymc_gpep.gaussians.prior_form import BoundForm, PriorForm
from pymc_gpep.graphs.interpreted import SEED, AtPoint
from pymc_gpep.latent.latent_prior import Joint, PosteriorFunctions, PriorAtNewRows, RowsOfNormals
from pymc_gpep.recipes.recipe import Field, Recipe, shape_of
from pymc_gpep.solvers.coefficients import Entries
from pymc_gpep.solvers.sparse_precision import SparsePrecision, pairs_of_rows
from pymc_gpep.sums.affine_map import (
    AffineMap,
    Blocks,
    InNormals,
    Linear,
    at_common_places,
    entries_of,
    every_entry,
    in_full,
)
from pymc_gpep.sums.effect_sum import EffectSum
from pymc_gpep.sums.latent_sum import LatentSum, SumInForm
from pymc_gpep.sums.new_data import NOT_ALIKE, NewData, RowsOfData
from pymc_gpep.sums.sum_at_new_rows import ARGUMENT, SumAtNewRows
from pymc_gpep.sums.sum_values import SumVariables

# Largest number of coefficients of a value for which random directions are used.
_MOST_COEFFICIENTS = 8


def _colours(entries: Entries, q: int) -> NDArray[np.int64]:
    """Return a colour for each coordinate, (q,). Coordinates that occur in the same row have different colours."""
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
    """Values t + T x of variables, as a function of the hyperparameters.

    Parameters
    ----------
    prior : InNormals
    values : dict of str to TensorVariable
        Variables by name, as expressions that depend on x. Their values are concatenated.
    blocks : sequence of tuple of int
        Shapes of the blocks of x.
    data : mapping
        Data of the model → their replacements.
    rounding : float
        Values below this fraction of the largest along a direction count as zero.
    functions : int
        Number of functions. Their values are concatenated, and their coefficients have the same sparsity pattern.

    Attributes
    ----------
    linear : callable
        Function from directions (s, q) to T along these directions, at one point of the hyperparameters.
    entries : Entries or None
        T at this point; None if rows of T have many coefficients.
    shapes : dict of str to tuple of int
        Shape of each variable, by name.
    """

    def __init__(
        self,
        prior: InNormals,
        values: Mapping[str, TensorVariable],
        blocks: Blocks,
        data: Mapping[Variable, Variable],
        rounding: float = 0.0,
        functions: int = 1,
    ) -> None:
        self._affine = affine = AffineMap(prior, values, data, seen=True)
        point = affine.functions.nearby(np.random.default_rng(SEED))
        centres = affine.at(point, np.zeros(prior.n_normals))
        self.shapes = {name: np.shape(centre) for name, centre in zip(values, centres, strict=True)}
        still = _flat(centres)

        def linear(directions: Array) -> Array:
            return _rounded(np.stack([_flat(affine.at(point, x)) - still for x in directions]), rounding)

        self.linear: Linear = linear
        found = entries_of(linear, blocks)
        self.entries = found if found is None or functions == 1 else at_common_places(found, functions)

    def _along(self, directions: Array) -> tuple[TensorVariable, TensorVariable]:
        """Return t (m,), and T along directions (s, q), in terms of the model's random variables."""
        found = [self._affine.graphs(name, [pt.constant(directions)]) for name in self.shapes]
        slopes = [along.reshape((len(directions), -1)) for _, along in found]
        return pt.concatenate([centre.ravel() for centre, _ in found]), pt.concatenate(slopes, axis=1)

    def graph(self) -> TensorVariable:
        """Return the entries of T, (m, k), in terms of the model's random variables."""
        return self._graphs[1]

    @cached_property
    def _graphs(self) -> tuple[TensorVariable, TensorVariable]:
        """Graphs of t (m,), and of the entries of T (m, k)."""
        assert self.entries is not None
        cells, q = self.entries.cells, self.entries.q
        there = self.entries.values != 0.0
        colours = _colours(self.entries, q)
        k = cells.shape[1]
        if k <= _MOST_COEFFICIENTS and colours.max() >= k + 2:
            # The coefficients of a value are solved from its slopes along a few directions.
            directions = np.random.default_rng(SEED).standard_normal((k + 2, q))
            apart = np.linalg.pinv(np.where(there, directions[:, cells], 0.0).swapaxes(0, 1))
            centre, moved = self._along(directions)
            return centre, cast(TensorVariable, (apart * moved.T[:, None]).sum(axis=2))
        centre, moved = self._along((colours == np.arange(colours.max() + 1)[:, None]).astype(np.float64))
        rows = np.arange(len(cells))[:, None]
        return centre, cast(
            TensorVariable, moved[pt.constant(colours[cells]), pt.constant(rows)] * there.astype(np.float64)
        )

    @cached_property
    def _numbers(self) -> AtPoint:
        return self._affine.functions(self._graphs, shared=True)

    def __call__(self, point: PointType) -> tuple[Array, Entries]:
        """Return t and T for values of the value variables. T is dense if its rows have many coefficients."""
        if self.entries is None:
            every = self._affine(point)
            slopes = [each.reshape(len(each), -1) for each in every.slopes.values()]
            return _flat(list(every.centres.values())), in_full(np.concatenate(slopes, axis=1))
        centre, values = self._numbers(point)
        return centre, Entries(self.entries.cells, np.ascontiguousarray(values), self.entries.q)

    def by_name(self, point: PointType) -> dict[str, tuple[Array, Entries]]:
        """Return t (...) and rows of T, by name."""
        centre, rows = self(point)
        found, begin = {}, 0
        for name, shape in self.shapes.items():
            own = slice(begin, begin := begin + int(np.prod(shape)))
            found[name] = centre[own].reshape(shape), Entries(rows.cells[own], rows.values[own], rows.q)
        return found


def _flat(values: Sequence[Array]) -> Array:
    return np.concatenate([np.ravel(np.asarray(each, np.float64)) for each in values])


class Numbers(NamedTuple):
    """The posterior of x."""

    centre: Array
    """Posterior mean, (q,)."""
    precision: SparsePrecision
    """Posterior precision, factorised."""


class _Solved:
    """Posterior covariance (q, q), as an operator on columns."""

    def __init__(self, numbers: Numbers) -> None:
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers.centre)

    def __matmul__(self, columns: Array) -> Array:
        return np.asarray(self._numbers.precision.solve(np.ascontiguousarray(columns.T)).T)


class _SparseJoint(Joint):
    """Joint Gaussian of several variables, each entry of which depends on few coordinates."""

    def __init__(self, means: dict[str, Array], rows: Mapping[str, Entries], numbers: Numbers) -> None:
        super().__init__(means, {}, _Solved(numbers))
        self._rows, self._numbers = rows, numbers

    def variances(self) -> dict[str, Array]:
        return {
            name: np.maximum(self._numbers.precision.variances(rows), 0.0).reshape(np.shape(self.means[name]))
            for name, rows in self._rows.items()
        }

    def columns(self, name: str, some: slice = slice(None)) -> Array:
        rows = self._rows[name]
        return rows.some(np.arange(len(rows.cells))[some]).T

    def combined(self, name: str, weights: Array) -> Array:
        return self._rows[name].sums(weights.ravel())


class PrecisionVariables(SumVariables):
    """Integrated variables as affine functions of coordinates with a sparse precision.

    Parameters
    ----------
    prior : EffectSum
    blocks : sequence of tuple of int
        Shapes of the blocks of x.
    data : mapping
        Data of the model → constants that replace them.
    """

    def __init__(self, prior: EffectSum, blocks: Blocks, data: Mapping[Variable, Variable]) -> None:
        super().__init__(prior, data)
        self._blocks = blocks

    @cached_property
    def _own_rows(self) -> SparseSlopes:
        return SparseSlopes(self._prior, self._variables, self._blocks, self._data)

    def draws(self, point: PointType, f: Array, z: Array) -> dict[str, Array]:
        found = self._own_rows.by_name(point)
        flat = self.flat(z)
        return {
            name: np.stack([centre + rows.products(each).reshape(centre.shape) for each in flat])
            for name, (centre, rows) in found.items()
        }

    def posterior(self, functions: PosteriorFunctions) -> tuple[Array, Any]:
        """Return the posterior mean of x, (q,), and its covariance as an operator on columns."""
        numbers = _numbers(functions)
        return numbers.centre, _Solved(numbers)

    def moments(self, point: PointType, functions: PosteriorFunctions) -> tuple[dict[str, Array], dict[str, Array]]:
        joint = self._sparse_joint(self._own_rows, self._values, point, functions)
        return joint.means, joint.variances()

    def affine(self, names: Sequence[str]) -> Callable[[PointType, PosteriorFunctions], Joint]:
        self._check(names)
        named = {name: self._prior.model[name] for name in names}
        rows = SparseSlopes(self._prior, named, self._blocks, self._data)
        return lambda point, functions: self._sparse_joint(rows, names, point, functions)

    def _sparse_joint(
        self, variables: SparseSlopes, names: Sequence[str], point: PointType, functions: PosteriorFunctions
    ) -> Joint:
        numbers = _numbers(functions)
        found = variables.by_name(point)
        means = {}
        for name in names:
            centre, rows = found[name]
            means[name] = centre + rows.products(numbers.centre).reshape(centre.shape)
        return _SparseJoint(means, {name: found[name][1] for name in names}, numbers)

    def covariance(
        self, point: PointType, functions: PosteriorFunctions, places: Mapping[str, slice], size: int
    ) -> Array:
        numbers = _numbers(functions)
        slopes = np.zeros((size, len(numbers.centre)))
        for name, (_, rows) in self._own_rows.by_name(point).items():
            if name in places:
                slopes[places[name]] = rows.some(np.arange(len(rows.cells)))
        half = numbers.precision.halved(slopes)
        found: Array = half @ half.T
        return found


def _numbers(functions: PosteriorFunctions) -> Numbers:
    posterior = functions.posterior  # type: ignore[attr-defined]  # `DenseFunctions` has a posterior.
    return Numbers(posterior.coordinates[0], posterior.algebra.factor)


_DIRECTIONS = 3  # Number of directions along which rows are compared.


class PrecisionAtNewRows(SumAtNewRows):
    """Coefficients of coordinates x at new rows.

    Parameters
    ----------
    prior : EffectSum
    blocks : sequence of tuple of int
        Shapes of the blocks of x.
    independent : array (q,)
        Mask of coordinates that are independent standard normals.
    data : mapping
        Data of the model → constants with the values of the fit.
    """

    def __init__(self, prior: EffectSum, blocks: Blocks, independent: Any, data: Mapping[Variable, Variable]) -> None:
        super().__init__(prior, None, data, blocks)
        self._independent = independent

    @cached_property
    def _units(self) -> Array:
        """A few directions along which slopes show differences between rows."""
        return np.random.default_rng(SEED).standard_normal((_DIRECTIONS, self._prior.n_normals))

    def by_normals(self, point: PointType, x: NewData | RowsOfData) -> RowsOfNormals:
        """See `PriorAtNewRows`. It raises the errors of `SumAtNewRows`."""
        if isinstance(x, RowsOfData):
            mean, every = self._rows_at(point, self._own_rows, [], self._rows)
            of = (self._rows * np.arange(len(mean))[:, None] + x.positions).ravel()
            rows = Entries(every.cells[of], every.values[of], every.q)
            return RowsOfNormals.exact(rows, mean[:, x.positions])
        found, unknown = self._divided(point, x)
        if unknown is not None:
            cells, values = (each.reshape(*found.mean.shape, -1) for each in (unknown.cells, unknown.values))
            for i, j in np.ndindex(len(found.mean), len(found.mean)):
                same = cells[i, :, :, None] == cells[j, :, None]
                found.residual_covariance[:, i, j] = np.einsum("ma,mab,mb->m", values[i], same, values[j])
        return found

    def _divided(self, point: PointType, x: NewData) -> tuple[RowsOfNormals, Entries | None]:
        """Return rows without new levels, and the coefficients of new levels (None without such levels)."""
        for name in x.unseen_levels:
            if (self._levels.owners(point, name)[~self._independent] >= 0).any():
                raise ValueError(f"data[{name!r}] {NOT_ALIKE}")
        x = self._resolved(point, x)
        mean, rows = self._at_rows(point, x)
        if not x.unseen_levels:
            return RowsOfNormals.exact(rows, mean), None
        each = [self._levels.owned_cells(point, x, own) for own in rows.cells.reshape(*mean.shape, -1)]
        alone = np.concatenate([np.any(own, axis=0) for own in each])
        known = Entries(rows.cells, np.where(alone, 0.0, rows.values), rows.q)
        return RowsOfNormals.exact(known, mean), Entries(rows.cells, np.where(alone, rows.values, 0.0), rows.q)

    def of_new_levels(self, point: PointType, x: NewData | RowsOfData, points: NDArray[np.intp]) -> Array | None:
        if isinstance(x, RowsOfData) or (unknown := self._divided(point, x)[1]) is None:
            return None
        return self._with_points(point, unknown, points)

    def between(self, point: PointType, x: NewData | RowsOfData, points: NDArray[np.intp]) -> Array:
        rows = self.by_normals(point, x).rows
        assert isinstance(rows, Entries)
        return self._with_points(point, rows, points)

    def _with_points(self, point: PointType, rows: Entries, points: NDArray[np.intp]) -> Array:
        """Return prior covariances (c, m, s) of rows (cm, q) with points, for independent coordinates."""
        prior, c = self._prior, self._prior.n_functions
        if not self._of_fit:
            self._of_fit[()] = AffineMap(prior, {ARGUMENT: prior.argument}, self._data, seen=True)
        _, fitted = self._rows_at(point, self._of_fit[()], [], prior.n_points)
        own, seen = map(_as_sparse, (rows, fitted))
        m, n = len(rows.cells) // c, prior.n_points
        return np.stack([(own[k * m : (k + 1) * m] @ seen[k * n + points].T).toarray() for k in range(c)])

    def _at_rows(self, point: PointType, x: NewData) -> tuple[Array, Entries]:
        """Return means (c, m) and coefficients at rows. Placeholders stand for new levels."""
        return self._rows_at(point, self._whole(point, x), x.values(len(x)), len(x))

    def _used(self, point: PointType, x: NewData, other: NewData) -> NDArray[np.bool_]:
        mean, rows = self._at_rows(point, x)
        used = rows.values.reshape(*mean.shape, -1) != 0.0
        found = np.zeros(len(x), bool)
        for own, cells in zip(used, rows.cells.reshape(used.shape), strict=True):
            for owned in self._levels.owned_cells(point, other, cells):
                found |= (owned & own).any(axis=1)
        return found

    def __call__(self, point: PointType, x: NewData | RowsOfData) -> NoReturn:
        raise TypeError("A prior by a sparse precision cannot compute covariances with all fitted rows.")

    def _rows_at(self, point: PointType, affine: AffineMap, values: Sequence[Any], m: int) -> tuple[Array, Entries]:
        """Return means (c, m) and coefficients at m rows."""
        prior = self._prior
        centre, linear = affine.along(point, ARGUMENT, values, partial(prior.by_function, n_points=m, batched=True))
        return prior.by_function(centre, m), every_entry(linear, self._blocks)


def _as_sparse(rows: Entries) -> csr_array:
    n, k = rows.cells.shape
    return csr_array((rows.values.ravel(), rows.cells.ravel(), k * np.arange(n + 1)), shape=(n, rows.q))


_PAIRS = 40_000_000  # Largest number of pairs of entries of a row, summed over rows (160 MB).
_DENSE = 1.0 / 3.0  # Operations of a dense factorisation of a (q, q) matrix, divided by q³.
_ORDER = 2  # Largest order of running sums that is tried.
_ROUNDING = 1e-11  # Differences below this fraction of the largest along a direction count as zero.

type Fields = Mapping[TensorVariable, Field]


@dataclass(frozen=True, eq=False)
class PrecisionSum(SumInForm):
    """A sum of effects in coordinates x with a sparse precision.

    Attributes
    ----------
    slopes : SparseSlopes
        Latent functions in terms of x.
    structure : PrecisionStructure
        Sparsity pattern of coefficients and precision, for these data of the model.
    by_fields : mapping of TensorVariable to Field
        Field of each variable.
    """

    form: ClassVar[type[PriorForm]] = PrecisionPrior

    slopes: SparseSlopes | None = None
    structure: PrecisionStructure | None = None
    by_fields: Fields = dataclass_field(default_factory=dict)

    @classmethod
    def of(cls, plain: LatentSum, data: Mapping[Variable, Variable]) -> "PrecisionSum | None":
        """Return a sum of effects with a sparse precision; None if dense matrices of standard normals are cheaper.

        If rows have many coefficients of a variable, running sums are tried: rows may have few coefficients of these.
        """
        part = cls._with({v: each.as_field for v, each in plain.recipes.items()}, plain)
        rows = part._rows(data)
        if rows.entries is None:
            if (fields := part._summed(rows.linear)) is None:
                return None
            part = cls._with(fields, plain)
            rows = part._rows(data, _ROUNDING)
        n, q = plain.n_points, plain.n_normals
        if rows.entries is None or n * rows.entries.cells.shape[1] ** 2 > _PAIRS:
            return None
        values = SparseSlopes(part, {str(v.name): v for v in plain.recipes}, part.blocks, data)
        if values.entries is None:
            return None
        structure = part.structured(rows, values)
        dense = q if n >= 2 * q or plain.shared else n * plain.n_functions
        if structure.posterior.work > _DENSE * float(dense) ** 3:
            return None
        return replace(part, slopes=rows, structure=structure)

    @classmethod
    def _with(cls, fields: Fields, plain: LatentSum) -> "PrecisionSum":
        made = {v: each.by_field(fields[v]) for v, each in plain.recipes.items()}
        return cls.made_of(plain, recipes=made, by_fields=fields)

    def _rows(self, data: Mapping[Variable, Variable], rounding: float = 0.0) -> SparseSlopes:
        argument = {"argument": self.shaped(self.argument, self.n_points)}
        return SparseSlopes(self, argument, self.blocks, data, rounding, self.n_functions)

    def _summed(self, linear: Linear) -> Fields | None:
        """Return fields with running sums for variables with many coefficients in a row; None if sums do not help."""
        found = dict(self.by_fields)
        begin, q = 0, self.n_normals
        for variable, recipe in self.recipes.items():
            within = 0
            for shape in _blocks(variable, recipe, found[variable]):
                own = slice(begin, begin + int(np.prod(shape)))
                order, few = 0, entries_of(_of_sums(linear, own, shape, q, 0), [shape])
                while few is None and order < _ORDER and shape[-1] > 1:
                    found[variable] = found[variable].cumulated(within, shape)
                    order += 1
                    few = entries_of(_of_sums(linear, own, shape, q, order), [shape])
                if few is None:
                    return None
                begin, within = own.stop, within + int(np.prod(shape))
        return found

    @property
    def blocks(self) -> list[tuple[int, ...]]:
        """Shapes of the coordinates, for each variable."""
        return [shape for v, recipe in self.recipes.items() for shape in _blocks(v, recipe, self.by_fields[v])]

    def structured(self, rows: SparseSlopes, values: SparseSlopes | None) -> PrecisionStructure:
        """Return the sparsity pattern of rows and prior precision, with pairs of coefficients in a row of `values`."""
        assert rows.entries is not None
        given = list(self.by_fields.values())
        begins = [self.places[v].start for v in self.by_fields]
        columns = np.zeros((sum(len(each.widths) for each in given), self.n_normals))
        ends = accumulate(len(each.widths) for each in given)
        for each, begin, end in zip(given, begins, ends, strict=True):
            columns[end - len(each.widths) : end, begin : begin + each.columns.shape[1]] = each.columns
        nothing = np.zeros(0, np.int64)
        return PrecisionStructure(
            rows.entries.cells[: self.n_points],
            np.concatenate([nothing, *(each.first + begin for each, begin in zip(given, begins, strict=True))]),
            np.concatenate([nothing, *(each.second + begin for each, begin in zip(given, begins, strict=True))]),
            columns,
            np.concatenate([np.zeros(0), *(each.widths for each in given)]),
            [] if values is None or values.entries is None else [pairs_of_rows(values.entries.cells)],
            np.array(self.plain.flat, np.int64),
            self.n_functions,
        )

    def array(self) -> TensorVariable:
        """Return coefficients of rows and entries of the precision as one array, (1, 1, cnk + m)."""
        assert self.slopes is not None
        recipes = self.plain.recipes
        entries = [field.entries(recipes[v].scales).astype("float64") for v, field in self.by_fields.items()]
        found: TensorVariable = pt.concatenate([self.slopes.graph().ravel(), *entries])[None, None]
        return found

    @property
    def arrays(self) -> Mapping[type[PriorForm], Callable[[], TensorVariable]]:
        return {self.form: self.array}

    def bound(self, prior_type: type[PriorForm], data: Mapping[Variable, Variable]) -> tuple[Any, TensorVariable]:
        assert self.structure is not None
        return BoundForm(PrecisionPrior, self.structure), self.array()

    def covariances(self) -> TensorVariable:
        return self.plain.covariances()

    def roots(self) -> TensorVariable:
        return self.plain.roots()

    def variables(self, data: Mapping[Variable, Variable]) -> PrecisionVariables:
        return PrecisionVariables(self, self.blocks, data)

    def at_new_rows(self, gps: Sequence[pm.gp.Latent] | None, data: Mapping[Variable, Variable]) -> PriorAtNewRows:
        return PrecisionAtNewRows(self, self.blocks, self._independent, data)

    @property
    def _independent(self) -> NDArray[np.bool_]:
        """Mask of coordinates of effects that are independent standard normals."""
        sizes = [self.plain.recipes[v].size for v in self.by_fields]
        return np.repeat(np.array([field.independent for field in self.by_fields.values()], bool), sizes)


def _blocks(variable: TensorVariable, recipe: Recipe, field: Field) -> Sequence[tuple[int, ...]]:
    """Return the shapes of the coordinates of a variable."""
    shape = shape_of(variable)
    return field.blocks or (shape if int(np.prod(shape)) == recipe.size else (recipe.size,),)


def _of_sums(linear: Linear, own: slice, shape: tuple[int, ...], q: int, order: int) -> Linear:
    """Return a linear function with a slice of its q coordinates replaced by running sums of this order."""

    def of(directions: Array) -> Array:
        parts = directions.reshape(-1, *shape)
        for _ in range(order):
            parts = np.diff(parts, axis=-1, prepend=0.0)
        every = np.zeros((len(directions), q))
        every[:, own] = parts.reshape(directions.shape)
        return _rounded(linear(every), _ROUNDING if order else 0.0)

    return of


def _rounded(values: Array, rounding: float) -> Array:
    """Return values (s, m) along directions, with 0 in place of rounding errors."""
    if not rounding:
        return values
    sizes = np.abs(values)
    return np.where(sizes > rounding * sizes.max(axis=1, keepdims=True, initial=0.0), values, 0.0)
