"""Data of new rows, and the levels of groups that data select."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
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


@dataclass(frozen=True)
class NewData:
    """Data at new rows, which can be cut to some of them.

    Attributes
    ----------
    by_row : dict of str to array
        Data with an entry for each row, and inputs of processes where these are no data of the model.
    others : dict of str to array
        Data that all rows share.
    n_rows : int
    strange : dict of str to array (n_rows,)
        Which rows have a level that the model does not have, by the data that say the level.
    """

    by_row: Mapping[str, NDArray[Any]]
    others: Mapping[str, NDArray[Any]]
    n_rows: int
    strange: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.n_rows

    def __getitem__(self, rows: slice) -> "NewData":
        cut = {name: values[rows] for name, values in self.by_row.items()}
        strange = {name: mask[rows] for name, mask in self.strange.items()}
        return NewData(cut, self.others, len(range(*rows.indices(self.n_rows))), strange)


def repeated(rows: Any, count: int) -> Any:
    """Return a single new row as often as is wanted; several rows, and rows of the model, are returned as they are."""
    if len(rows) != 1 or count < 2 or isinstance(rows, RowsOfData):
        return rows
    if not isinstance(rows, NewData):
        return np.repeat(rows, count, axis=0)
    by_row = {name: np.repeat(values, count, axis=0) for name, values in rows.by_row.items()}
    strange = {name: np.repeat(mask, count, axis=0) for name, mask in rows.strange.items()}
    return NewData(by_row, rows.others, count, strange)


@dataclass(frozen=True)
class RowsOfData:
    """Some of the rows that the model has, by their positions."""

    positions: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, rows: slice) -> "RowsOfData":
        return RowsOfData(self.positions[rows])


def as_data(
    model: pm.Model,
    variable: SharedVariable,
    outputs: Sequence[TensorVariable],
    value: ArrayLike,
    shape: Sequence[int | str],
) -> NDArray[Any]:
    """Return what a user gives for data of the model, in their type.

    Parameters
    ----------
    model : pm.Model
    variable : SharedVariable
        The data.
    outputs : sequence of TensorVariable
        Variables made of them, where the data may be an index of levels.
    value : array_like
        The values given; a single row may lack the first axis.
    shape : sequence of int or str
        Length of each axis; a name stands for any length, of rows.
    """
    given = np.asarray(value)
    if given.dtype.kind not in "biuf":
        refuse_labels(model, variable, outputs, given)
    wide = given[None] if "rows" in shape and given.ndim == len(shape) - 1 else given
    fits = wide.ndim == len(shape) and all(
        isinstance(wanted, str) or size == wanted for size, wanted in zip(wide.shape, shape, strict=True)
    )
    if wide.dtype.kind not in "biuf" or not fits:
        raise ValueError(
            f"data[{variable.name!r}] must be numbers of shape ({', '.join(map(str, shape))}), but has type "
            f"{given.dtype} and shape {given.shape}."
        )
    converted = wide.astype(variable.type.dtype)
    if not np.isfinite(converted).all() or not np.allclose(converted, wide, rtol=1e-6):
        whole = "whole " * (np.dtype(variable.type.dtype).kind in "iub")
        raise ValueError(f"data[{variable.name!r}] must be finite {whole}numbers, as the model has them there.")
    return converted


def repeated_rows(values: NDArray[Any], length: int) -> NDArray[Any]:
    """Return one row, or the last of several, as often as a number of rows wants."""
    return values[np.minimum(np.arange(length), len(values) - 1)]


def common_length(lengths: Mapping[str, int]) -> int:
    """Return the number of rows that data have which say them, of lengths by name; one row stands for all."""
    m = max(lengths.values(), default=1)
    if wrong := [name for name, length in lengths.items() if length not in (1, m)]:
        raise ValueError(f"data must have as many rows each, but have {lengths}: look at {wrong[0]!r}.")
    return m


NOT_ALIKE = (
    "names a level that is not in the model, and the levels of the model have different priors. If a covariate of the "
    "levels is in their prior mean, move it to the rows: u[g] + gamma * x in place of u[g] with the mean gamma * x, "
    "where x = pm.Data('x', ...) has an entry for each row. If the levels are a walk or a process, declare them with "
    "the levels to predict."
)
"""What is wrong with data that name a new level, after the name of the data."""


def levels_of(variable: Variable, outputs: Sequence[TensorVariable]) -> int | None:
    """Return the number of levels that data select from by their values; None where they are no index."""
    return min((_shape(source)[axis] for source, axis in _selected(variable, outputs)), default=None)


def of_each_level(variable: Variable, outputs: Sequence[TensorVariable]) -> TensorVariable | None:
    """Return one number for each level, made of all that data select by it; None where they do more than select.

    The numbers are a random combination. Where these are alike, so is all that a level has.
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
    """Return arrays that data select from by their values."""
    return [source for source, _ in _selected(variable, outputs)]


def computed_indices(variable: Variable, outputs: Sequence[TensorVariable]) -> list[tuple[Variable, int]]:
    """Return indices that a model computes from the values of data, and the number of levels of each."""
    found = []
    for source, axis, index in _gathers(outputs):
        shapes = {v for v in ancestors([index]) if v.owner is not None and isinstance(v.owner.op, Shape | Shape_i)}
        if _as_it_is(index) is not variable and variable in ancestors([index], blockers=shapes):
            found.append((index, _shape(source)[axis]))
    return found


def outside_levels(
    given: Mapping[SharedVariable, NDArray[Any]], outputs: Sequence[TensorVariable], data: Mapping[Variable, Variable]
) -> dict[SharedVariable, tuple[NDArray[np.bool_], int]]:
    """Return which new values of data are out of range as an index, and the number of levels, by the data.

    Parameters
    ----------
    given : mapping
        Data with an entry for each row, and their values at new rows.
    outputs : sequence of TensorVariable
        Variables made of them.
    data : mapping
        Data of the model → constants, as the fit had them.

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
                continue  # further data are missing, or a hyperparameter is behind the index
            # An index below 0 counts from the last level, if the fitted rows have such.
            wrong = (values >= count) | ((values < 0) & (np.min(fitted, initial=0) >= 0))
            if wrong.any():
                raise ValueError(
                    f"The index that the model computes from data[{variable.name!r}] is {values[wrong][0]} at a new "
                    f"row, but its levels are 0 to {count - 1}. For a new level, compute the index in NumPy before the "
                    "model, declare it as pm.Data, and predict with new_levels=True."
                )
    return found


def refuse_labels(model: pm.Model, variable: Variable, outputs: Sequence[TensorVariable], values: NDArray[Any]) -> None:
    """Refuse values of an index that are labels of levels in place of positions."""
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
            f"data[{variable.name!r}] is an index and has positions, whole numbers from 0 to {(count or 1) - 1}."
        )


def _gathers(outputs: Sequence[TensorVariable]) -> list[tuple[TensorVariable, int, Variable]]:
    """Return arrays, axes, and the indices by which entries along them are selected."""
    found = []
    for each in ancestors(outputs):
        if each.owner is None or not isinstance(each.owner.op, AdvancedSubtensor):
            continue
        source, *indices = each.owner.inputs
        axes = [axis for axis, entry in enumerate(each.owner.op.idx_list) if isinstance(entry, int)]
        found += [(source, axis, index) for axis, index in zip(axes, indices, strict=False)]
    return found


def _selected(variable: Variable, outputs: Sequence[TensorVariable]) -> list[tuple[TensorVariable, int]]:
    """Return arrays and axes that data select from by their values."""
    return [(source, axis) for source, axis, index in _gathers(outputs) if _as_it_is(index) is variable]


def _read_otherwise(variable: Variable, outputs: Sequence[TensorVariable]) -> bool:
    """Tell whether values of data count for more than what they select."""
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
    """Return whether outputs depend on some variables otherwise than by what data select."""
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
    """Return the shape of a variable, whatever the values of random variables behind it are."""
    random = [v for v in ancestors([variable]) if v.owner is not None and isinstance(v.owner.op, RNGConsumerOp)]
    random = [v for v in random if isinstance(v, TensorVariable)]
    shapes = get_symbolic_rv_shapes(random)
    zeros = {v: pt.zeros(shape, dtype=v.dtype) for v, shape in zip(random, shapes, strict=True)}
    (value,) = evaluate(graph_replace([variable], zeros, strict=False))
    return value.shape


def _as_it_is(index: Variable) -> Variable:
    """Return what an index was before its type or its axes were changed."""
    while index.owner is not None:
        op = index.owner.op
        if not (is_elementwise(index, Cast) or isinstance(op, ViewOp | DimShuffle)):
            break
        index = index.owner.inputs[0]
    return index


def owners_of(name: str, mean: Array, rows: Entries) -> NDArray[np.int64]:
    """Return the level that each standard normal belongs to alone, and -1 for those of none or of all levels.

    Parameters
    ----------
    name : str
        Name of the data that say the level.
    mean : array (L,)
        Means of a number of each of two levels or more.
    rows : Entries
        Coefficients of q standard normals, (L, q).

    Returns
    -------
    array (q,)

    Raises
    ------
    ValueError
        If levels are not alike a priori, so that those of the model say nothing of another one.
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
    """Return 0 for normals of variables with an axis of one level behind a number of it, and -1 elsewhere, (q,)."""
    owners = np.full(q, -1)
    behind = set(ancestors([number]))
    for variable, own in places.items():
        if variable in behind and 1 in _shape(variable):
            owners[own] = 0
    return owners
