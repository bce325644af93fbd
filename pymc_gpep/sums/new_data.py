"""Data of new rows as passed by the user, and the levels that an index in the data selects.

Predictions of latent functions and of likelihood parameters use this module.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import ArrayLike, NDArray
from pymc.pytensorf import get_symbolic_rv_shapes
from pytensor.compile.ops import ViewOp
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import Cast, Second
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.random.op import RNGConsumerOp
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.subtensor import AdvancedSubtensor
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.graphs.affine import is_elementwise
from pymc_gpep.graphs.interpreted import SEED, evaluate
from pymc_gpep.solvers.coefficients import Entries
from pymc_gpep.sums.affine_map import COEFFICIENT_TOLERANCE

NOT_ALIKE = (
    "names a level that is not in the model, and the levels of the model have different priors. If a covariate of the "
    "levels is in their prior mean, move it to the rows: u[g] + gamma * x in place of u[g] with the mean gamma * x, "
    "where x = pm.Data('x', ...) has an entry for each row. If the levels are a walk or a process, declare them with "
    "the levels to predict."
)
"""Message for data with a new level, after the name of the data."""


def levels_of(variable: Variable, outputs: Sequence[TensorVariable]) -> int | None:
    """Return the number of levels that `variable` indexes; None if it is not an index."""
    return min((_shape(source)[axis] for source, axis in _selected(variable, outputs)), default=None)


def of_each_level(variable: Variable, outputs: Sequence[TensorVariable]) -> TensorVariable | None:
    """Return a number for each level: a random combination of all entries that the index selects for this level.

    Levels with equal numbers have equal entries. The result is None if the data are not only an index.
    """
    if _read_otherwise(variable, outputs):
        return None
    levels, rng = levels_of(variable, outputs), np.random.default_rng(SEED)
    total: TensorVariable = pt.zeros((levels or 0,))
    for source, axis in _selected(variable, outputs):
        count, *rest = np.moveaxis(np.empty(_shape(source), bool), axis, 0).shape
        entries = pt.moveaxis(source.astype("float64"), axis, 0).reshape((count, int(np.prod(rest))))[:levels]
        total = total + entries @ pt.constant(rng.uniform(1.0, 2.0, size=int(np.prod(rest))))
    return total


def selected_by(variable: Variable, outputs: Sequence[TensorVariable]) -> list[TensorVariable]:
    """Return the arrays that `variable` indexes."""
    return [source for source, _ in _selected(variable, outputs)]


def computed_indices(variable: Variable, outputs: Sequence[TensorVariable]) -> list[tuple[Variable, int]]:
    """Return each index that the model computes from the values of `variable`, with its number of levels."""
    found = []
    for source, axis, index in _gathers(outputs):
        shapes = {v for v in ancestors([index]) if v.owner is not None and isinstance(v.owner.op, Shape | Shape_i)}
        if _as_it_is(index) is not variable and variable in ancestors([index], blockers=shapes):
            found.append((index, _shape(source)[axis]))
    return found


def outside_levels(
    given: Mapping[SharedVariable, NDArray[Any]], outputs: Sequence[TensorVariable], data: Mapping[Variable, Variable]
) -> dict[SharedVariable, tuple[NDArray[np.bool_], int]]:
    """Return a mask of values out of range, and the number of levels, for each index with such values.

    Parameters
    ----------
    given : mapping
        Data with one entry for each row → their values at new rows.
    outputs : sequence of TensorVariable
        Variables that depend on these data.
    data : mapping
        Data of the model → constants with their values in the fit.

    Raises
    ------
    ValueError
        If an index that the model computes from these data is out of range.
    """
    found = {}
    for variable, values in given.items():
        if (levels := levels_of(variable, outputs)) is not None:
            outside = (values < 0) | (values >= levels)
            if outside.any():
                found[variable] = outside, levels
    there = {v: pt.tensor(v.name, dtype=v.dtype, shape=(None,) * v.ndim) for v in given}
    for variable in given:
        for index, count in computed_indices(variable, outputs):
            try:
                (fitted,) = evaluate(graph_replace([index], dict(data), strict=False))
                moved = graph_replace([index], {**data, **there}, strict=False)
                (values,) = evaluate(moved, dict(zip(there.values(), given.values(), strict=True)))
            except (ValueError, IndexError, AssertionError):
                continue  # The index needs further data, or depends on a hyperparameter.
            # If fitted rows have negative indices, negative indices count from the last level.
            wrong = (values >= count) | ((values < 0) & (np.min(fitted, initial=0) >= 0))
            if wrong.any():
                raise ValueError(
                    f"The index that the model computes from data[{variable.name!r}] is {values[wrong][0]} at a new "
                    f"row, but its levels are 0 to {count - 1}. For a new level, compute the index in NumPy before the "
                    "model, declare it as pm.Data, and predict with new_levels=True."
                )
    return found


def refuse_labels(model: pm.Model, variable: Variable, outputs: Sequence[TensorVariable], values: NDArray[Any]) -> None:
    """Raise an error if values of an index are labels of levels instead of positions."""
    selected = _selected(variable, outputs)
    dims = [model.named_vars_to_dims.get(str(source.name), ())[axis : axis + 1] for source, axis in selected]
    count = levels_of(variable, outputs)
    alike = [dim for dim, labels in model.coords.items() if labels is not None and len(labels) == count]
    for dim in [str(dim) for each in dims for dim in each] or alike:
        labels = list(model.coords.get(dim) or ())
        own = values.ravel().tolist()
        if label := [value for value in own if value in labels or isinstance(value, str)]:
            raise ValueError(
                f"data[{variable.name!r}] has the label {label[0]!r}, and an index has positions from 0 on. Give "
                f"data={{{variable.name!r}: pd.Index(model.coords[{dim!r}]).get_indexer(labels)}}, where a label that "
                "is not in the model becomes -1, a new level."
            )
    if selected and values.dtype.kind not in "biuf":
        raise ValueError(
            f"data[{variable.name!r}] is an index of type {values.dtype}. It must contain positions, whole numbers "
            f"from 0 to {(count or 1) - 1}."
        )


def _gathers(outputs: Sequence[TensorVariable]) -> list[tuple[TensorVariable, int, Variable]]:
    """Return the selections in the graphs: array, indexed axis, and index."""
    found = []
    for each in ancestors(outputs):
        if each.owner is None or not isinstance(each.owner.op, AdvancedSubtensor):
            continue
        source, *indices = each.owner.inputs
        axes = [axis for axis, entry in enumerate(each.owner.op.idx_list) if isinstance(entry, int)]
        found += [(source, axis, index) for axis, index in zip(axes, indices, strict=False)]
    return found


def _selected(variable: Variable, outputs: Sequence[TensorVariable]) -> list[tuple[TensorVariable, int]]:
    """Return the arrays that `variable` indexes, with the indexed axes."""
    return [(source, axis) for source, axis, index in _gathers(outputs) if _as_it_is(index) is variable]


def _read_otherwise(variable: Variable, outputs: Sequence[TensorVariable]) -> bool:
    """Return whether outputs use the data `variable` other than as an index."""
    pending: list[Variable] = list(outputs)
    seen: set[Variable] = set()
    while pending:
        each = pending.pop()
        if each is variable:
            return True
        if each in seen or each.owner is None or isinstance(each.owner.op, Shape | Shape_i):
            continue
        seen.add(each)
        inputs = each.owner.inputs[is_elementwise(each, Second) :]
        selects = isinstance(each.owner.op, AdvancedSubtensor)
        pending += [v for v in inputs if not (selects and _as_it_is(v) is variable)]
    return False


def used_beside(variable: Variable, outputs: Sequence[TensorVariable], targets: Collection[Variable]) -> bool:
    """Return whether outputs depend on `targets` in another way than by entries that the index `variable` selects."""
    pending: list[Variable] = list(outputs)
    seen: set[Variable] = set()
    while pending:
        each = pending.pop()
        if each in targets:
            return True
        if each in seen or each.owner is None:
            continue
        seen.add(each)
        others = each.owner.inputs[1:]
        selects = isinstance(each.owner.op, AdvancedSubtensor) and any(_as_it_is(v) is variable for v in others)
        pending += others if selects else each.owner.inputs
    return False


def _shape(variable: TensorVariable) -> tuple[int, ...]:
    """Return the shape of a variable. The shape must not depend on values of random variables."""
    random = [v for v in ancestors([variable]) if v.owner is not None and isinstance(v.owner.op, RNGConsumerOp)]
    random = [v for v in random if isinstance(v, TensorVariable)]
    shapes = get_symbolic_rv_shapes(random)
    zeros = {v: pt.zeros(shape, dtype=v.dtype) for v, shape in zip(random, shapes, strict=True)}
    (value,) = evaluate(graph_replace([variable], zeros, strict=False))
    return value.shape


def _as_it_is(index: Variable) -> Variable:
    """Return the original index before casts and changes of axes."""
    while index.owner is not None:
        op = index.owner.op
        if not (is_elementwise(index, Cast) or isinstance(op, ViewOp | DimShuffle)):
            break
        index = index.owner.inputs[0]
    return index


def owners_of(name: str, mean: Array, rows: Entries) -> NDArray[np.int64]:
    """Return the level of each standard normal; −1 for a normal of no level, or of all levels.

    Parameters
    ----------
    name : str
        Name of the index, for messages.
    mean : array (L,)
        Prior means of the numbers from `of_each_level`, for L ≥ 2 levels.
    rows : Entries
        Coefficients (L, q) of standard normals in these numbers.

    Returns
    -------
    array (q,)

    Raises
    ------
    ValueError
        If levels have different priors, so that a new level has no defined prior.
    """
    count = len(mean)
    level, along = np.nonzero(rows.values)
    place, value = rows.cells[level, along], rows.values[level, along]
    times = np.bincount(place, minlength=rows.q)
    alone, first = times == 1, np.zeros(rows.q)
    first[place] = value
    own = alone[place]
    squares = np.bincount(level[own], value[own] ** 2, minlength=count)
    same = all(np.ptp(each) <= COEFFICIENT_TOLERANCE * (1.0 + np.abs(each).max()) for each in (mean, squares))
    size = COEFFICIENT_TOLERANCE * (1.0 + np.abs(value).max(initial=0.0))
    if not same or not (own | ((times[place] == count) & (np.abs(value - first[place]) <= size))).all():
        raise ValueError(f"data[{name!r}] {NOT_ALIKE}")
    owners = np.full(rows.q, -1)
    owners[place[own]] = level[own]
    return owners


def normals_of_one_level(places: Mapping[TensorVariable, slice], number: TensorVariable, q: int) -> NDArray[np.int64]:
    """Return `owners_of` an index with one level: 0 for variables in `number` with an axis of length 1, else −1."""
    owners = np.full(q, -1)
    behind = set(ancestors([number]))
    for variable, own in places.items():
        if variable in behind and 1 in _shape(variable):
            owners[own] = 0
    return owners


XNEW = "Xnew"
"""Name of inputs of a process if they are an array of the model, not data."""


@dataclass(frozen=True)
class NewData:
    """Data of new rows. Indexing by a slice selects rows.

    Attributes
    ----------
    by_row : dict of str to array
        Data with one entry for each row, by name, and inputs of processes that are not data.
    others : dict of str to array
        Data that all rows share, by name.
    n_rows : int
        Number of rows.
    unseen_levels : dict of str to array (n_rows,)
        Masks of rows with a level that is not in the model, by the name of the index.
    """

    by_row: Mapping[str, NDArray[Any]]
    others: Mapping[str, NDArray[Any]]
    n_rows: int
    unseen_levels: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all data, data over rows first."""
        return *self.by_row, *self.others

    def values(self, length: int) -> list[NDArray[Any]]:
        """Return all data in the order of `names`. Data over rows have `length` rows, by repetition of the last row."""
        return [*(_repeated_rows(value, length) for value in self.by_row.values()), *self.others.values()]

    def __len__(self) -> int:
        return self.n_rows

    def __getitem__(self, rows: slice) -> "NewData":
        cut = {name: values[rows] for name, values in self.by_row.items()}
        unseen_levels = {name: mask[rows] for name, mask in self.unseen_levels.items()}
        return NewData(cut, self.others, len(range(*rows.indices(self.n_rows))), unseen_levels)


def _repeated_rows(values: NDArray[Any], length: int) -> NDArray[Any]:
    return values if len(values) == length else values[np.minimum(np.arange(length), len(values) - 1)]


def repeated(rows: Any, count: int) -> Any:
    """Repeat a single new row `count` times. Return several rows, and rows of the model, unchanged."""
    if len(rows) != 1 or count < 2 or isinstance(rows, RowsOfData):
        return rows
    if not isinstance(rows, NewData):
        return np.repeat(rows, count, axis=0)
    by_row = {name: np.repeat(values, count, axis=0) for name, values in rows.by_row.items()}
    unseen_levels = {name: np.repeat(mask, count, axis=0) for name, mask in rows.unseen_levels.items()}
    return NewData(by_row, rows.others, count, unseen_levels)


def by_name(data: Any, model: pm.Model) -> Mapping[str, ArrayLike]:
    """Return data of a model by name, from a mapping or a data frame. Other columns of the frame are ignored.

    Raises
    ------
    ValueError
        If no column of the data frame has the name of data of the model.
    """
    if data is None or isinstance(data, Mapping) or not hasattr(data, "columns"):
        return data or {}
    names = [str(each.name) for each in model.data_vars]
    found = {name: data[name].to_numpy() for name in data.columns if name in names}
    if not found:
        raise ValueError(
            f"Columns of data are {', '.join(map(repr, data.columns)) or 'none'}, and data of the model are "
            f"{', '.join(map(repr, names)) or 'none'}. Give the columns these names."
        )
    return found


@dataclass(frozen=True)
class RowsOfData:
    """Rows of the model, selected by position."""

    positions: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, rows: slice) -> "RowsOfData":
        return RowsOfData(self.positions[rows])


class DataBehind:
    """Data on which expressions of a model depend, with their values in the fit and at new rows.

    Parameters
    ----------
    model : pm.Model
    outputs : sequence of TensorVariable
        Expressions. Data may be an index of levels in these expressions.
    known : dict of str to SharedVariable
        The data, by name.
    data : mapping
        Data of the model → constants with their values in the fit. All other data keep their current values.
    n_rows : int
        Number of fitted rows.
    every : bool
        Whether all arrays have an axis of rows. By default only arrays with `n_rows` rows have this axis.
    free : bool
        Whether each axis of new data may have another length than in the fit.
    """

    def __init__(
        self,
        model: pm.Model,
        outputs: Sequence[TensorVariable],
        known: Mapping[str, SharedVariable],
        data: Mapping[Variable, Variable],
        n_rows: int,
        *,
        every: bool = False,
        free: bool = False,
    ) -> None:
        self._model, self._outputs, self.known, self._data = model, outputs, known, data
        self._n_rows, self._every, self._free = n_rows, every or free, free

    @cached_property
    def fitted(self) -> dict[str, NDArray[Any]]:
        """Values of the data in the fit, by name. Inputs of processes that are not data may be added."""
        values = evaluate([self._data.get(v, v) for v in self.known.values()]) if self.known else []
        return dict(zip(self.known, values, strict=True))

    def each_row(self, name: str) -> bool:
        """Return whether data have one entry for each row."""
        shape = self.fitted[name].shape
        return bool(shape) if self._every else shape[:1] == (self._n_rows,)

    def read(
        self,
        given: Mapping[str, ArrayLike],
        inputs: NDArray[Any] | None = None,
        rows: int | None = None,
        *,
        infinite: bool = False,
    ) -> NewData:
        """Return the data of new rows, given values by name.

        Parameters
        ----------
        given : dict of str to array_like
            Values with one entry for each new row, or one entry for all new rows.
        inputs : array (m, d), optional
            Inputs of processes that are not data.
        rows : int, optional
            Number of new rows.
        infinite : bool
            Whether values may be infinite, for example bounds.

        Raises
        ------
        ValueError
            If values do not match the model, or if they have different numbers of rows.
        """
        by_row: dict[str, NDArray[Any]] = {} if inputs is None else {XNEW: inputs}
        others: dict[str, NDArray[Any]] = {}
        for name, value in given.items():
            (by_row if self.each_row(name) else others)[name] = self._read(name, value, infinite)
        lengths = {name: len(value) for name, value in by_row.items()}
        if self._free:
            return NewData(by_row, others, 0)
        m = max(lengths.values(), default=1) if rows is None else rows
        if wrong := [name for name, length in lengths.items() if length not in (1, m)]:
            if rows is None:
                raise ValueError(f"All data must have the same number of rows, but have {lengths}: check {wrong[0]!r}.")
            raise ValueError(
                f"data[{wrong[0]!r}] must have one entry for each of the {m} new rows, but has {lengths[wrong[0]]}."
            )
        return NewData({name: _repeated_rows(value, m) for name, value in by_row.items()}, others, m)

    def _read(self, name: str, value: ArrayLike, infinite: bool) -> NDArray[Any]:
        """Return values in the dtype of the data. The first axis may be missing for a single row."""
        variable, shape, given = self.known[name], self.fitted[name].shape, np.asarray(value)
        if given.dtype.kind not in "biuf":
            refuse_labels(self._model, variable, self._outputs, given)
        wide, wanted = given, ", ".join(map(str, shape))
        if self._free:
            wide = np.full(shape, given) if given.ndim == 0 else given
            wanted = ", ".join(["any"] * len(shape))
            shape = wide.shape if wide.ndim == len(shape) else shape
        elif self.each_row(name):
            wanted = ", ".join(["rows", *map(str, shape[1:])])
            wide = given[None] if given.ndim == len(shape) - 1 else given
            wide = np.full((1, *shape[1:]), given) if given.ndim == 0 else wide
            shape = (*wide.shape[:1], *shape[1:])
        if wide.dtype.kind not in "biuf" or wide.shape != shape:
            raise ValueError(
                f"data[{name!r}] must be numbers of shape ({wanted}), but has type {given.dtype} and shape "
                f"{given.shape}."
            )
        with np.errstate(invalid="ignore", over="ignore"):
            converted = wide.astype(variable.type.dtype)
        if not (infinite or np.isfinite(converted).all()) or not np.allclose(converted, wide, rtol=1e-6):
            whole = "whole " * (np.dtype(variable.type.dtype).kind in "iub")
            finite = "" if infinite else "finite "
            raise ValueError(f"data[{name!r}] must be {finite}{whole}numbers, like the data of the model.")
        return converted

    def outside(self, x: NewData) -> dict[str, tuple[NDArray[np.bool_], int]]:
        """Return a mask of new values out of range, and the number of levels, for each index by name."""
        given = {self.known[name]: value for name, value in x.by_row.items() if name in self.known}
        found = outside_levels(given, self._outputs, self._data)
        return {str(variable.name): each for variable, each in found.items()}

    @cached_property
    def _lengths(self) -> set[int]:
        """Lengths of all axes of the data and of the expressions in the model."""
        coords = [len(values) for values in self._model.coords.values() if values is not None]
        static = [size for v in self._outputs for size in v.type.shape if size is not None]
        return {self._n_rows, *(len(each) for each in self.fitted.values() if each.ndim), *coords, *static}

    def free_length(self, m: int) -> int:
        """Return the smallest length ≥ m that is not the length of an axis in the fit. Fixed axes then raise errors."""
        return next(length for length in range(m, m + len(self._lengths) + 1) if length not in self._lengths)

    def symbols(self, names: Sequence[str]) -> dict[str, TensorVariable]:
        """Return symbols for the data of new rows, by name."""
        types = {name: self.known[name].type for name in names if name in self.known}
        return {
            name: pt.tensor(name, dtype=types[name].dtype, shape=(None,) * types[name].ndim)
            if name in types
            else pt.dmatrix(name)
            for name in names
        }

    def replaced(self, there: Mapping[str, TensorVariable]) -> dict[Variable, Variable]:
        """Return a map from the data of the model to the symbols in `there`, else to their values in the fit."""
        return {**self._data, **{self.known[name]: v for name, v in there.items() if name in self.known}}

    def apart(
        self, there: Mapping[str, TensorVariable], x: NewData
    ) -> tuple[dict[TensorVariable, NDArray[Any]], dict[TensorVariable, NDArray[Any]]]:
        """Return two dicts for `check_rows_apart`: symbols over rows → fitted values, other symbols → new values.

        Short arrays are repeated to the length of the longest array.
        """
        rows = {there[name]: self.fitted[name] for name in x.by_row}
        n = max(map(len, rows.values()), default=0)
        rows = {v: values[np.arange(n) % len(values)] for v, values in rows.items()}
        return rows, {there[name]: value for name, value in x.others.items()}
