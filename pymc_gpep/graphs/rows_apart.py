"""Proof that values at a row depend only on the data of that row: from the graph, or by values at changed rows."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.blocking import PointType
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import Second
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.graphs.affine import is_elementwise
from pymc_gpep.graphs.errors import listing
from pymc_gpep.graphs.interpreted import EVALUATION_TOLERANCE, SEED, ModelFunctions, graph_function
from pymc_gpep.graphs.rows_of_graphs import COLUMNS, ROWS, CannotSplitError, Leaves, MixedRowsError, Role, Walk, named

# Number of fitted rows with values computed twice: alone, and together with companion rows.
_COMPARED = 6
# If values of a single row cannot be computed, this number of copies of the row is used.
_COPIES = 5
# Largest number of companion rows.
_COMPANIONS = 200
# Sizes of the values of extreme companion rows, relative to the data.
_EXTREMES = (3.0, 1e2, 1e4)
# Relative differences up to this number count as rounding if data are in single precision.
_SINGLE = 1e-4
# Absolute differences up to this number count as rounding.
_NEAR_ZERO = 1e-13

_AS_THEY_ARE = (DimShuffle, Elemwise, Reshape, SpecifyShape)
_OPERATIONS = {
    "Sum": "a sum over rows",
    "Prod": "a product over rows",
    "Max": "a maximum over rows",
    "Min": "a minimum over rows",
    "Argmax": "the position of a maximum among rows",
    "IncSubtensor": "values that are set at given positions",
    "AdvancedIncSubtensor": "values that are summed or set at given positions",
    "Subtensor": "values at given positions of rows",
    "AdvancedSubtensor": "values at given positions of rows",
    "CumOp": "a cumulative sum over rows",
    "Join": "rows that are shifted",
    "SortOp": "an order of rows",
    "ArgSortOp": "an order of rows",
    "Dot": "a matrix product over rows",
}
_OF_DATA = (
    "Compute such numbers in NumPy before the model: a constant, such as {0}_train.mean() in place of {0}.mean(), or "
    "a column of its own, such as pm.Data('{0}_lag', ...)."
)
_OF_PROCESSES = (
    "Give the prior of {0!r} the inputs of all rows, the n fitted rows and the new rows, and select the values of "
    "rows by an index: ({0} - {0}[:n].mean())[pm.Data('row', np.arange(n))]."
)


def check_rows_apart(
    what: str,
    output: TensorVariable,
    axis: int | None,
    rows: Mapping[TensorVariable, NDArray[Any]],
    function: Callable[[Sequence[TensorVariable]], Callable[..., Any]],
    *,
    processes: Collection[str] = (),
    stop: Sequence[Variable] = (),
) -> None:
    """Raise an error if values of rows depend on the data of other rows.

    Parameters
    ----------
    what : str
        Name of the values in messages, a plural.
    output : TensorVariable
        Values of rows.
    axis : int or None
        Axis of the output over rows; None if all rows have the same values.
    rows : mapping
        Variables of the graph with data over rows, and their values at the fitted rows, (n, ...).
    function : callable
        Function of a sequence of variables of `rows`. It returns a function that computes the output from their values.
    processes : collection of str
        Names of the variables in `rows` that are values of Gaussian processes.
    stop : sequence of Variable
        Random variables of the model.

    Raises
    ------
    ValueError
        If the graph computes a number from all rows together, or if values change when other rows change.
    """
    behind = set(ancestors([output]))
    own = {variable: values for variable, values in rows.items() if variable in behind}
    why = _unproven(output, axis, own, stop) if own else None
    if why is None:
        return
    found = why.source if isinstance(why, MixedRowsError) else None
    if found is None and not _differs(function(list(own)), axis, list(own.values())):
        return
    of = [found] if found is not None else _by_values(output, own) or list(own)
    raise dependent_rows(what, why, of, processes)


def check_entries_apart(
    what: str,
    output: TensorVariable,
    axis: int,
    new: Mapping[TensorVariable, NDArray[Any]],
    function: Callable[[Mapping[TensorVariable, NDArray[Any]]], Array],
    stop: Sequence[Variable] = (),
) -> None:
    """Raise an error if entries of an array depend on data of entries at other positions along an axis.

    Parameters
    ----------
    what : str
        Name of the entries in messages, a plural.
    output : TensorVariable
        A parameter of the distribution of the entries.
    axis : int
        Axis of the parameter.
    new : mapping
        New values of data of the model.
    function : callable
        Function that returns the parameter at new values.
    stop : sequence of Variable
        Random variables of the model.

    Raises
    ------
    ValueError
        If the graph computes one number from all entries, or if new values at one position change other entries.
    """
    if output.type.broadcastable[axis] or not (behind := set(new).intersection(ancestors([output]))):
        return
    leaves = Leaves()
    count = pt.lscalar()
    try:
        roles = [ROWS if place == axis else None for place in range(output.type.ndim)]
        Walk(leaves, {ROWS: count, COLUMNS: count}, pt.zeros((1, 1)), stop)(output, roles)
    except (CannotSplitError, TypeError, ValueError, IndexError, NotImplementedError):
        pass
    found = [variable for variable in behind if variable in leaves.found]
    why = _unproven(output, axis, found, stop) if found else None
    if found and why is None:
        return
    if not _may_be_shorter(new, axis, function):
        return  # Effects have one value at each position. New data must have all positions.
    if isinstance(why, MixedRowsError):
        raise dependent_rows(what, why, [why.source])
    for variable in behind:
        if not _confined(new, variable, axis, function):
            raise dependent_rows(what, why or CannotSplitError("is not read"), [variable])


def _may_be_shorter(
    new: Mapping[TensorVariable, NDArray[Any]],
    axis: int,
    function: Callable[[Mapping[TensorVariable, NDArray[Any]]], Array],
) -> bool:
    """Return whether an output can have fewer positions along an axis, because its data have fewer positions."""
    length = function(new).shape[axis]
    which = [(variable, own) for variable, each in new.items() for own, size in enumerate(each.shape) if size == length]
    for some in (which, *([each] for each in which)):
        shorter = dict(new)
        for variable, own in some:
            shorter[variable] = np.delete(shorter[variable], -1, own)
        try:
            if function(shorter).shape[axis] < length:
                return True
        except (ValueError, IndexError, AssertionError):
            continue
    return False


def _confined(
    new: Mapping[TensorVariable, NDArray[Any]],
    variable: TensorVariable,
    axis: int,
    function: Callable[[Mapping[TensorVariable, NDArray[Any]]], Array],
) -> bool:
    """Return whether new values at a position of the data change entries of the output only at this position.

    True if no axis of the data has the length of the output: such data may change all entries.
    """
    values, before = new[variable], function(new)
    length = before.shape[axis]
    for own in (i for i, size in enumerate(values.shape) if size == length and length > 1):
        for place in {0, length - 1, length // 2}:
            moved = np.moveaxis(values.copy(), own, 0)
            far = moved[[i for i in range(length) if i != place]]
            moved[place] = far[-1] if values.dtype.kind != "f" else 1.5 * np.abs(far).max(axis=0) + 1.0
            after = function({**new, variable: np.moveaxis(moved, 0, own)})
            changed = ~np.isclose(after, before, rtol=EVALUATION_TOLERANCE, atol=_NEAR_ZERO, equal_nan=True)
            positions = [set(np.nonzero(changed)[i].tolist()) for i in range(changed.ndim)]
            if not any(each <= {place} for each in positions):
                return False
    return True


def dependent_rows(
    what: str, why: CannotSplitError, of: Sequence[Variable], processes: Collection[str] = ()
) -> ValueError:
    """Return the error with a remedy for values of rows that depend on other rows.

    Parameters
    ----------
    what : str
        Name of the values, a plural.
    why : CannotSplitError
        Error of the proof.
    of : sequence of Variable
        Variables with other rows on which the values depend.
    processes : collection of str
        Names of the variables that are values of Gaussian processes.
    """
    name = next((str(v.name) for v in of if v.name in processes), str(of[0].name))
    advice = _OF_PROCESSES if name in processes else _OF_DATA
    return ValueError(
        f"{what} at a row depend on other rows of {listing(of)}{_operation(why)}, so they cannot be computed from a "
        f"new row alone. {advice.format(name)}"
    )


def at_point(
    functions: ModelFunctions,
    point: PointType,
    output: TensorVariable,
    others: Mapping[TensorVariable, Any] | None = None,
) -> Callable[[Sequence[TensorVariable]], Callable[..., Any]]:
    """Return the argument `function` of `check_rows_apart`, for the values of a point and of other data."""
    given = [*functions.values, *(others or {})]
    values = [*(point[name] for name in functions.names), *(others or {}).values()]
    return lambda rows: partial(graph_function(functions.model, [*given, *rows], output), *values)


class _RowData:
    """Replacements (`RowPoints`) for a walk that only reads the graph: data over rows stay the same."""

    def __init__(self, rows: Collection[Variable]) -> None:
        self._rows = set(rows)

    def __call__(self, data: Variable, role: Role) -> TensorVariable:
        """Return data over rows. Raise an error for other arrays of the fit with an entry for each row."""
        if data not in self._rows:
            raise CannotSplitError(f"depends on {named(data)} at each row")
        assert isinstance(data, TensorVariable)
        return data

    def holds(self, variable: Variable) -> bool:
        """Return whether a variable is data over rows."""
        return variable in self._rows


class _Proof(Walk):
    """Walk that raises an error also for values that are computed from the number of rows."""

    def _unchanged(self, variable: TensorVariable) -> TensorVariable:
        super()._unchanged(variable)
        if any(self._points.holds(source) for source in ancestors([variable], blockers=self._stop)):
            raise CannotSplitError("is computed from the number of rows")
        return variable


def _unproven(
    output: TensorVariable, axis: int | None, rows: Collection[Variable], stop: Sequence[Variable]
) -> CannotSplitError | None:
    """Return an error if the graph does not prove that rows are independent; None if it proves it."""
    count = pt.lscalar()
    walk = _Proof(_RowData(rows), {ROWS: count, COLUMNS: count}, pt.zeros((1, 1)), stop)
    one = output.type.broadcastable
    try:
        walk(output, [ROWS if place == axis and not one[place] else None for place in range(output.type.ndim)])
    except CannotSplitError as why:
        return why
    except (TypeError, ValueError, IndexError, NotImplementedError, RecursionError):
        return CannotSplitError("is not read")
    return None


def _by_values(output: TensorVariable, rows: Collection[TensorVariable]) -> list[TensorVariable]:
    """Return the data with values that affect the output, without data of which only the shape is used."""
    pending: list[Variable] = [output]
    behind: set[Variable] = set()
    while pending:
        variable = pending.pop()
        if variable in behind:
            continue
        behind.add(variable)
        if variable.owner is not None and not isinstance(variable.owner.op, Shape | Shape_i):
            pending += variable.owner.inputs[is_elementwise(variable, Second) :]
    return [variable for variable in rows if variable in behind]


def _operation(why: CannotSplitError) -> str:
    """Return the name of the operation that mixes rows, for a message; empty if it is unknown."""
    if not isinstance(why, MixedRowsError):
        return f" ({_OPERATIONS[why.operation]})" if why.operation in _OPERATIONS else ""
    pending = [why.number]
    while pending:
        variable = pending.pop(0)
        if variable.owner is None or why.source not in ancestors([variable]):
            continue
        op = variable.owner.op
        name = type(getattr(op, "core_op", op)).__name__
        if not isinstance(op, _AS_THEY_ARE):
            return f" ({_OPERATIONS.get(name, name)})"
        pending += variable.owner.inputs
    return ""


def _differs(function: Callable[..., Any], axis: int | None, rows: Sequence[NDArray[Any]]) -> bool:
    """Return whether additional rows change the values of fitted rows."""
    rng = np.random.default_rng(SEED)
    n = len(rows[0])
    own = rng.permutation(n)[:_COMPARED]
    same = _SINGLE if any(values.dtype in (np.float32, np.float16) for values in rows) else EVALUATION_TOLERANCE

    def at(places: NDArray[np.int64], extremes: Sequence[Sequence[Any]] = ()) -> Array | None:
        """Return values (m, ...) at fitted rows, computed with extreme rows; None if they cannot be computed."""
        arrays = [
            np.concatenate([values[places], *(np.asarray(each[i], values.dtype)[None] for each in extremes)])
            for i, values in enumerate(rows)
        ]
        try:
            found = np.asarray(function(*arrays))
        except (ValueError, AssertionError):
            return None
        m = len(arrays[0])
        found = found[None] if axis is None or found.ndim <= axis else np.moveaxis(found, axis, 0)
        return np.broadcast_to(found, (m, *found.shape[1:])) if len(found) in (1, m) else None

    found = []
    for place in own:
        try:
            alone = at(np.array([place]))
            alone = at(np.repeat(place, _COPIES)) if alone is None else alone
        except IndexError:
            return True  # The graph selects a row by its position.
        if alone is None:
            return False  # The graph also needs other data. A prediction without these raises an error.
        found.append(alone[:1])
    expected = np.concatenate(found)
    # Largest absolute value of each entry over the compared rows.
    size = np.abs(np.where(np.isfinite(expected), expected, 0.0)).max(axis=0)

    def changed(places: NDArray[np.int64], extremes: Sequence[Sequence[Any]] = ()) -> bool:
        """Return whether additional extreme rows change values at the compared rows."""
        try:
            found = at(places, extremes)
        except IndexError:  # The graph uses an extreme value as an index.
            return False
        if found is None:
            return False
        where = {int(place): i for i, place in enumerate(own)}
        pairs = [(i, where[int(place)]) for i, place in enumerate(places) if int(place) in where]
        if extremes and not np.isfinite(found[len(places) :]).all():
            return False  # In a product with a diagonal matrix, 0 × ∞ = NaN would appear at other rows.
        here, there = (list(each) for each in zip(*pairs, strict=True))
        return not np.allclose(found[here], expected[there], rtol=0.0, atol=same * size + _NEAR_ZERO, equal_nan=True)

    every = rng.permutation(n)[:_COMPANIONS]
    companions = [own, own[::-1], rng.permutation(own), np.concatenate([every, own]), np.concatenate([own, every])]
    companions += [np.repeat(own, rng.integers(1, 4, len(own))), np.repeat(own, 1 + np.arange(len(own)))[::-1]]
    keys = [values.reshape(n, -1)[:, 0] for values in rows]
    orders = [np.argsort(key[companions[3]], kind="stable") for key in keys]
    companions += [companions[3][order] for order in orders] + [companions[3][order[::-1]] for order in orders]
    far = [[_extreme(values, factor) for values in rows] for size_of in _EXTREMES for factor in (size_of, -size_of)]
    return any(map(changed, companions)) or any(changed(own, [each]) for each in far) or changed(own, far)


def _extreme(values: NDArray[Any], factor: float) -> NDArray[Any]:
    """Return a row (...) with entries larger in size than all entries of the data.

    Integers may be indices. They become the largest or the smallest value.
    """
    highest, lowest = values.max(axis=0), values.min(axis=0)
    if values.dtype.kind != "f":
        return np.asarray(highest if factor > 0.0 else lowest)
    return np.asarray(np.maximum(np.abs(highest), np.abs(lowest)) * factor + factor)
