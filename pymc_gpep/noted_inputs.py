"""Records of the input arrays of `pm.gp.Latent.prior`, attached to constants of its graph."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors

from pymc_gpep.array_types import Array


class NotedInputs(NamedTuple):
    """Inputs of a prior, and the columns of these inputs that a constant of the graph contains."""

    array: Array
    """The inputs (n, d)."""
    columns: tuple[int, ...] | None
    """Columns of the inputs that the constant contains; None if they are unknown, or evident from its values."""


def note_inputs(f: Variable, inputs: Any, functions: Sequence[Callable[[Any], Any]] = ()) -> None:
    """Attach a record of the inputs to each constant of the graph of f with an entry for each point.

    PyTensor copies the record with the graph. Inputs that are a variable of the graph need no record. If two columns of
    the inputs are equal, the covariance and mean functions are called with distinct columns. The call shows which
    columns they select, and in which order.
    """
    array = inputs.data if isinstance(inputs, Constant) else inputs
    if isinstance(array, Variable) or np.ndim(array) != 2:
        return
    array = np.array(array)
    leaves = [leaf for leaf in _over_points(ancestors([f]), len(array)) if not hasattr(leaf.tag, _NOTE)]
    taken = _columns_taken(functions, array) if leaves and some_columns_alike(array) else []
    for leaf in leaves:
        whole = np.array_equal(leaf.data, array)
        fitting = {columns for columns in taken if np.array_equal(leaf.data, _of(array, columns, leaf.data.ndim))}
        columns = fitting.pop() if len(fitting) == 1 else None
        setattr(leaf.tag, _NOTE, NotedInputs(leaf.data if whole else array, columns))


def noted_inputs(leaf: Variable) -> NotedInputs | None:
    """Return the record of a constant; None if it has no record."""
    return getattr(leaf.tag, _NOTE, None)


def renew_note(leaf: Constant, former: Any) -> None:
    """Update the record of a constant whose array was replaced, if the record holds the `former` array."""
    noted = noted_inputs(leaf)
    if noted is not None and noted.array is former:
        setattr(leaf.tag, _NOTE, noted._replace(array=leaf.data))


def own_arrays(made: Any) -> None:
    """Replace the arrays of covariance and mean functions by copies, which later changes do not affect.

    The functions within sums and products are changed as well.
    """
    for name, value in list(vars(made).items()):
        several = isinstance(value, list | tuple)
        parts = list(value) if several else [value]
        if any(isinstance(each, np.ndarray) for each in parts):
            parts = [each.copy() if isinstance(each, np.ndarray) else each for each in parts]
            setattr(made, name, type(value)(parts) if several else parts[0])
        for each in parts:
            if isinstance(each, pm.gp.cov.BaseCovariance | pm.gp.mean.Mean):
                own_arrays(each)


def some_columns_alike(array: Array) -> bool:
    """Return whether any two columns of inputs (n, d) are equal at all points."""
    return len({column.tobytes() for column in array.T}) < array.shape[1]


def _over_points(variables: Any, points: int) -> list[Constant]:
    return [each for each in variables if isinstance(each, Constant) and np.shape(each.data)[:1] == (points,)]


def _columns_taken(functions: Sequence[Callable[[Any], Any]], array: Array) -> list[tuple[int, ...]]:
    """Return the columns of the inputs that functions turn into constants, from a call with inputs of distinct columns.

    In this call, the rows of column j are the binary digits of j, which every numeric type can represent.
    """
    n, d = array.shape
    numbers = np.arange(d)
    digits = np.stack([(numbers >> min(row, 62)) & 1 for row in range(n)]).astype(array.dtype)
    if n < int(d - 1).bit_length():
        return []
    number_of = {column.tobytes(): number for number, column in enumerate(digits.T)}
    try:
        with pm.Model(model=None), warnings.catch_warnings():  # Variables that functions declare go to this model.
            warnings.simplefilter("ignore")
            made = [result for function in functions if isinstance(result := function(digits), Variable)]
    except Exception:  # A user's function may fail for these inputs.
        return []
    found = []
    for leaf in _over_points(ancestors(made), n):
        data = np.asarray(leaf.data).astype(array.dtype)
        if data.ndim <= 2:
            places = [number_of.get(column.tobytes()) for column in data.reshape(n, -1).T]
            if None not in places:
                found.append(tuple(place for place in places if place is not None))
    return found


def _of(array: Array, columns: tuple[int, ...], ndim: int) -> Array:
    return array[:, columns[0]] if ndim == 1 else array[:, list(columns)]


_NOTE = "pymc_gpep_inputs"
