"""Sums of effects with a sparse precision: prior, variables, and new rows.

Each variable is an affine function of numbers with a sparse precision (`Field`), or of standard normals. Coefficients,
moments, draws and new rows refer to these numbers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import accumulate
from typing import Any, NoReturn, Protocol

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.blocking import PointType
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.prior import BoundPrior, DensePrior
from pymc_gpep.gaussians.row_prior import PrecisionPrior
from pymc_gpep.graphs.interpreted import SEED, AtPoint, ModelFunctions
from pymc_gpep.latent.latent_prior import Elsewhere, Joint, PosteriorFunctions, RowsOfNormals
from pymc_gpep.prior_moments.prior_functions import frozen_data
from pymc_gpep.reading.classifier import GPClassifier
from pymc_gpep.recipes.recipe import shape_of
from pymc_gpep.solvers.coefficients import Coefficients, Entries
from pymc_gpep.solvers.precision_form import PrecisionStructure
from pymc_gpep.solvers.prior_form import TakesForms
from pymc_gpep.solvers.sparse_precision import pairs_of_rows
from pymc_gpep.sums.affine_map import AffineMap, InNormals, SumVariables
from pymc_gpep.sums.effect_sum import EffectSum
from pymc_gpep.sums.latent_sum import LatentSum
from pymc_gpep.sums.levels import NOT_ALIKE, NewData, RowsOfData
from pymc_gpep.sums.sparse_slopes import Blocks, SparseSlopes, rows_of
from pymc_gpep.sums.sum_elsewhere import SumElsewhere
from pymc_gpep.sums.sum_values import SumValues


class Numbers(Protocol):
    """The posterior of x."""

    @property
    def centre(self) -> Array:
        """Mean, (q,)."""

    @property
    def covariance(self) -> Any:
        """Covariance, which has `solve` and `halved` of rows (m, q)."""

    def variances_of(self, rows: Coefficients) -> Array:
        """Return variances (m,) of T x, of rows T."""


class _Solved:
    """A covariance (q, q) that columns can be multiplied by."""

    def __init__(self, numbers: Numbers) -> None:
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers.centre)

    def __matmul__(self, columns: Array) -> Array:
        return np.asarray(self._numbers.covariance.solve(np.ascontiguousarray(columns.T)).T)


class _SparseJoint(Joint):
    """A Gaussian of several variables by few coefficients of each."""

    def __init__(self, means: dict[str, Array], rows: Mapping[str, Entries], numbers: Numbers) -> None:
        super().__init__(means, {}, _Solved(numbers))
        self._rows, self._numbers = rows, numbers

    def variances(self) -> dict[str, Array]:
        return {
            name: np.maximum(self._numbers.variances_of(rows), 0.0).reshape(np.shape(self.means[name]))
            for name, rows in self._rows.items()
        }

    def columns(self, name: str, some: slice = slice(None)) -> Array:
        rows = self._rows[name]
        return rows.some(np.arange(len(rows.cells))[some]).T

    def combined(self, name: str, weights: Array) -> Array:
        return self._rows[name].sums(weights.ravel())


class PrecisionVariables(SumVariables):
    """Integrated variables as affine functions of numbers with a sparse precision.

    Parameters
    ----------
    prior : InNormals
    blocks : sequence of tuple of int
        Shapes of the variables that the numbers are of.
    data : mapping
        Data of the model → constants that take their place.
    """

    def __init__(self, prior: InNormals, blocks: Blocks, data: Mapping[Variable, Variable]) -> None:
        super().__init__(prior, data)
        self._blocks = blocks

    @cached_property
    def _own_rows(self) -> "_NamedRows":
        return self._named(self._variables)

    def _named(self, variables: Mapping[str, TensorVariable]) -> "_NamedRows":
        return _NamedRows(self._prior, variables, self._blocks, self._data)

    def draws(self, point: PointType, f: Array, z: Array) -> dict[str, Array]:
        found = self._own_rows(point)
        flat = self.flat(z)
        return {
            name: np.stack([centre + rows.products(each).reshape(centre.shape) for each in flat])
            for name, (centre, rows) in found.items()
        }

    def posterior(self, functions: PosteriorFunctions) -> tuple[Array, Any]:
        """Return mean (q,) of the numbers, and their covariance as far as columns are multiplied by it."""
        numbers = _numbers(functions)
        return numbers.centre, _Solved(numbers)

    def moments(self, point: PointType, functions: PosteriorFunctions) -> tuple[dict[str, Array], dict[str, Array]]:
        joint = self._sparse_joint(self._own_rows, self._values, point, functions)
        return joint.means, joint.variances()

    def affine(self, names: Sequence[str]) -> Callable[[PointType, PosteriorFunctions], Joint]:
        self._check(names)
        rows = self._named({name: self._prior.model[name] for name in names})
        return lambda point, functions: self._sparse_joint(rows, names, point, functions)

    def _sparse_joint(
        self, variables: "_NamedRows", names: Sequence[str], point: PointType, functions: PosteriorFunctions
    ) -> Joint:
        numbers = _numbers(functions)
        found = variables(point)
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
        for name, (_, rows) in self._own_rows(point).items():
            if name in places:
                slopes[places[name]] = rows.some(np.arange(len(rows.cells)))
        half = numbers.covariance.halved(slopes)
        found: Array = half @ half.T
        return found


class _NamedRows:
    """Variables by name as t + T x, by entries of T where these are few."""

    def __init__(
        self,
        prior: InNormals,
        variables: Mapping[str, TensorVariable],
        blocks: Blocks,
        data: Mapping[Variable, Variable],
    ) -> None:
        self._names = list(variables)
        self._slopes = SparseSlopes(prior, list(variables.values()), blocks, data)
        self._dense = AffineMap(prior, variables, data) if self._slopes.entries is None else None

    def __call__(self, point: PointType) -> dict[str, tuple[Array, Entries]]:
        """Return t (...) and rows of T by name."""
        if self._dense is not None:
            found = self._dense(point)
            return {name: (centre, _in_full(found.slopes[name])) for name, centre in found.centres.items()}
        centre, rows = self._slopes(point)
        ends = np.cumsum([0, *(int(np.prod(shape)) for shape in self._slopes.shapes)])
        own_rows = {}
        for name, shape, begin, end in zip(self._names, self._slopes.shapes, ends[:-1], ends[1:], strict=True):
            own = Entries(rows.cells[begin:end], rows.values[begin:end], rows.q)
            own_rows[name] = centre[begin:end].reshape(shape), own
        return own_rows


def _in_full(slopes: Array) -> Entries:
    """Rows of all coefficients, of slopes (q, ...)."""
    q = len(slopes)
    values = np.ascontiguousarray(slopes.reshape(q, -1).T)
    return Entries(np.tile(np.arange(q), (len(values), 1)), values, q)


def _numbers(functions: PosteriorFunctions) -> Numbers:
    found: Numbers = functions.posterior  # type: ignore[attr-defined]  # those of all rows together have it
    return found


_DIRECTIONS = 3  # along which rows are compared


class PrecisionElsewhere(SumElsewhere):
    """Coefficients of x at new rows.

    Parameters
    ----------
    prior : EffectSum
    blocks : sequence of tuple of int
        Shapes of the variables that the numbers are of.
    independent : array (q,)
        Which numbers are standard normals.
    data : mapping
        Data of the model → constants, as the fit had them.
    """

    def __init__(self, prior: EffectSum, blocks: Blocks, independent: Any, data: Mapping[Variable, Variable]) -> None:
        super().__init__(prior, None, data, blocks)
        self._independent = independent
        self._functions: dict[tuple[str, ...], AtPoint] = {}

    @cached_property
    def _units(self) -> Array:
        """A few directions, along which slopes tell rows apart."""
        return np.random.default_rng(SEED).standard_normal((_DIRECTIONS, self._prior.n_normals))

    def by_normals(self, point: PointType, x: NewData | RowsOfData) -> RowsOfNormals:
        """See `Elsewhere`; raises what `SumElsewhere` raises."""
        if isinstance(x, RowsOfData):
            mean, every = self._sparse_rows(point, (), [], self._rows)
            rows = Entries(every.cells[x.positions], every.values[x.positions], every.q)
            return RowsOfNormals(rows, np.zeros((1, len(x))), mean[:, x.positions])
        for name in x.strange:
            if (self._levels.owners(point, name)[~self._independent] >= 0).any():
                raise ValueError(f"data[{name!r}] {NOT_ALIKE}")
        x = self._resolved(point, x)
        mean, rows = self._at_rows(point, x)
        beside = np.zeros((1, len(x)))
        for alone in self._levels.owned_cells(point, x, rows.cells):
            beside += (np.where(alone, rows.values, 0.0) ** 2).sum(axis=1)
            rows.values[alone] = 0.0
        return RowsOfNormals(rows, beside, mean)

    def _at_rows(self, point: PointType, x: NewData) -> tuple[Array, Entries]:
        """Return means (1, m) and coefficients at rows without new levels, or with their placeholders."""
        names = (*x.by_row, *x.others)
        if names not in self._complete:
            self._at(point, NewData(x.by_row, x.others, len(x))[:1])  # refuses data that are missing
            self._complete.add(names)
        return self._sparse_rows(point, names, [*x.by_row.values(), *x.others.values()], len(x))

    def _used(self, point: PointType, x: NewData, other: NewData) -> NDArray[np.bool_]:
        _, rows = self._at_rows(point, x)
        each = self._levels.owned_cells(point, other, rows.cells)
        return np.any([(owned & (rows.values != 0.0)).any(axis=1) for owned in each], axis=0)

    def __call__(self, point: PointType, x: NewData | RowsOfData) -> NoReturn:
        raise TypeError("Covariances with all fitted rows are not known by a sparse precision.")

    def _sparse_rows(
        self, point: PointType, names: tuple[str, ...], values: Sequence[Any], m: int
    ) -> tuple[Array, Entries]:
        """Return means (1, m) and coefficients at data by name."""
        prior = self._prior
        if names not in self._functions:
            z = pt.vector("numbers", shape=(prior.n_normals,), dtype="float64")
            known = {name: self._known[name] for name in names}
            there = {v: pt.tensor(name, dtype=v.dtype, shape=(None,) * v.ndim) for name, v in known.items()}
            functions = ModelFunctions(prior.model, prior.hyperparameters, self._data)
            outputs = prior.by_normals([self._argument], z, seen=True)
            self._functions[names] = functions(outputs, [z, *there.values()], there)
        function = self._functions[names]

        def argument(numbers: Array) -> Array:
            return self._by_function(np.asarray(function(point, numbers, *values)[0]), m)

        still = argument(np.zeros(prior.n_normals))
        return still, rows_of(lambda numbers: argument(numbers)[0] - still[0], self._blocks)


_MANY = 500  # standard normals, below which matrices of them cost next to nothing
_PAIRS = 40_000_000  # of entries of rows, at most: 160 MB of their places
_DEARER = 50.0  # times that a product of a sparse factorisation takes as long as one of dense matrices


@dataclass(frozen=True, eq=False)
class PrecisionSum(LatentSum):
    """A sum of effects by numbers with a sparse precision.

    Attributes
    ----------
    plain : LatentSum
        The same by standard normals.
    slopes : SparseSlopes
        The latent function by x.
    structure : PrecisionStructure
        Where coefficients and precision have entries, with the data of the model that it was made with.
    """

    plain: LatentSum | None = None
    slopes: SparseSlopes | None = None
    structure: PrecisionStructure | None = None

    @classmethod
    def of(cls, plain: LatentSum, data: Mapping[Variable, Variable]) -> "PrecisionSum | None":
        """Return a sum by numbers with a sparse precision; None where matrices of standard normals are cheaper."""
        n, q = plain.n_points, plain.n_normals
        if plain.n_functions > 1 or plain.processes or q < _MANY or plain.seen:
            return None
        made = {v: each.by_field() for v, each in plain.recipes.items()}
        own = {each.name: getattr(plain, each.name) for each in fields(LatentSum)}
        part = cls(**{**own, "recipes": made}, plain=plain)
        rows = SparseSlopes(part, [part.shaped(part.argument, n)[0]], part.blocks, data)
        if rows.entries is None or n * rows.entries.cells.shape[1] ** 2 > _PAIRS:
            return None
        values = SparseSlopes(part, list(plain.recipes), part.blocks, data)
        if values.entries is None:
            return None
        structure = part.structured(rows, values)
        dense = q if n >= 2 * q else n
        if _DEARER * structure.posterior.flops > float(dense) ** 3:
            return None
        return replace(part, slopes=rows, structure=structure)

    @property
    def blocks(self) -> list[tuple[int, ...]]:
        """Shapes of the numbers of each variable."""
        found: list[tuple[int, ...]] = []
        for variable, recipe in self.recipes.items():
            shape = shape_of(variable)
            own = shape if int(np.prod(shape)) == recipe.size else (recipe.size,)
            found += recipe.as_field.blocks or (own,)
        return found

    def structured(self, rows: SparseSlopes, values: SparseSlopes) -> PrecisionStructure:
        """Return where rows and precision have entries; covariances of the entries of a variable are wanted, too."""
        assert rows.entries is not None
        assert values.entries is not None
        given = [each.as_field for each in self._plain.recipes.values()]
        begins = [own.start for own in self.places.values()]
        columns = np.zeros((sum(len(each.widths) for each in given), self.n_normals))
        ends = accumulate(len(each.widths) for each in given)
        for each, begin, end in zip(given, begins, ends, strict=True):
            columns[end - len(each.widths) : end, begin : begin + each.columns.shape[1]] = each.columns
        return PrecisionStructure(
            rows.entries.cells,
            np.concatenate([each.first + begin for each, begin in zip(given, begins, strict=True)]),
            np.concatenate([each.second + begin for each, begin in zip(given, begins, strict=True)]),
            columns,
            np.concatenate([each.widths for each in given]),
            [pairs_of_rows(values.entries.cells)],
        )

    @property
    def _plain(self) -> LatentSum:
        assert self.plain is not None
        return self.plain

    def array(self) -> TensorVariable:
        """Return coefficients of rows and entries of the precision, (1, 1, nk + m)."""
        assert self.slopes is not None
        entries = [each.as_field.entries(each.scales).astype("float64") for each in self._plain.recipes.values()]
        found: TensorVariable = pt.concatenate([self.slopes.graph().ravel(), *entries])[None, None]
        return found

    @property
    def arrays(self) -> Mapping[type[DensePrior], Callable[[], TensorVariable]]:
        return {PrecisionPrior: self.array}

    def bound(self, prior_type: type[DensePrior], data: Mapping[Variable, Variable]) -> tuple[Any, TensorVariable]:
        assert self.structure is not None
        return BoundPrior(PrecisionPrior, self.structure), self.array()

    def covariances(self) -> TensorVariable:
        return self._plain.covariances()

    def roots(self) -> TensorVariable:
        return self._plain.roots()

    def sampled(self, data: Mapping[Variable, Variable]) -> SumValues:
        return self._plain.sampled(data)

    def variables(self, data: Mapping[Variable, Variable]) -> PrecisionVariables:
        return PrecisionVariables(self, self.blocks, data)

    def elsewhere(self, gps: Sequence[pm.gp.Latent] | None, data: Mapping[Variable, Variable]) -> Elsewhere:
        independent = [each.field is None for each in self._plain.recipes.values() for _ in range(each.size)]
        return PrecisionElsewhere(self, self.blocks, np.array(independent), data)


def suited(classifier: GPClassifier, approximator: TakesForms) -> GPClassifier:
    """Return a classifier whose prior suits an approximation and the size of the model best.

    Sums of many effects are given by a sparse precision to approximations that take one.
    """
    prior = classifier.prior
    plain = prior.plain if isinstance(prior, PrecisionSum) else prior
    if not isinstance(plain, LatentSum):
        return classifier
    if not approximator.takes(PrecisionPrior.form):
        return classifier if plain is prior else replace(classifier, prior=plain)
    if plain is not prior:
        return classifier
    if "by precision" not in plain.made:
        plain.made["by precision"] = PrecisionSum.of(plain, frozen_data(plain.model))
    found = plain.made["by precision"]
    return classifier if found is None else replace(classifier, prior=found)
