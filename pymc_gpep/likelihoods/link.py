"""Inverse link functions in graphs, recognised by their values, since each can be written in many ways."""

from collections.abc import Callable, Iterator
from typing import cast

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.mode import Mode
from pytensor.compile.ops import ViewOp
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import toposort
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.variable import TensorConstant, TensorVariable

from pymc_gpep.array_types import Array

_POINTWISE = (Elemwise, DimShuffle, ViewOp, CheckAndRaise)
"""What gives each point a value of its own; the last two hand on what they are given."""
_GRID = np.linspace(-6.0, 6.0, 41)
_SAME = 1e-6  # PyMC has functions that take √2 in single precision
_PLAIN = Mode(linker="py", optimizer=None)  # nothing is worth compiling


def argument_of(value: TensorVariable, link: Callable[[Array], Array]) -> TensorVariable | None:
    """Return the variable of which `value` is the given function, point by point; None if there is no such variable.

    Parameters
    ----------
    value : TensorVariable
        The value of the function, such as a probability.
    link : callable
        Function of numbers (m,) that returns numbers (m,).
    """
    expected = link(_GRID)
    innermost = None
    for argument in _arguments(value):
        if argument.ndim > value.ndim:
            continue  # a product of matrices gives its vectors a second axis
        found = _on_grid(value, argument)
        if found.shape == expected.shape and np.abs(found - expected).max() < _SAME:
            innermost = argument
            if argument.name:
                break  # further in is what it is made of
    return innermost


def behind(value: TensorVariable) -> list[str]:
    """Names of the nearest variables with names that a variable is made of, in alphabetical order."""
    names: set[str] = set()
    pending: list[Variable] = [value]
    while pending:
        variable = pending.pop()
        if variable.name and variable is not value:
            names.add(variable.name)
        elif variable.owner is not None:
            pending.extend(variable.owner.inputs)
    return sorted(names)


def _arguments(value: TensorVariable) -> Iterator[TensorVariable]:
    """Variables that `value` is a function of, point by point, of nothing else; from the outside inwards."""
    for frontier in _frontiers(value):
        if len(frontier) == 1 and frontier[0] is not value:
            yield cast(TensorVariable, frontier[0])


def _frontiers(value: TensorVariable) -> Iterator[list[Variable]]:
    """Sets of variables that with numbers make up `value`, each by looking into one variable of the last."""
    nodes = list(toposort([value]))
    numbers: set[Variable] = set()
    for node in nodes:
        operands = _operands(node)
        if operands and all(v in numbers or _is_number(v) for v in operands):
            numbers.update(node.outputs)
    frontier: dict[Variable, None] = {value: None}
    yield list(frontier)
    for node in reversed(nodes):  # so that whatever is made of a variable has been looked into before it
        operands = _operands(node)
        if operands and node.outputs[0] in frontier:
            del frontier[node.outputs[0]]
            frontier |= {v: None for v in operands if v not in numbers and not _is_number(v)}
            yield list(frontier)


def _operands(node: Apply) -> list[Variable]:
    """Return the inputs that a node works on point by point; an empty list if it does not work point by point."""
    if not isinstance(node.op, _POINTWISE):
        return []
    return node.inputs[:1] if isinstance(node.op, CheckAndRaise) else node.inputs


def _is_number(variable: Variable) -> bool:
    return isinstance(variable, TensorConstant) and variable.data.size == 1


def _on_grid(value: TensorVariable, argument: TensorVariable) -> Array:
    """Values of the function of `argument` that `value` is."""
    axes = argument.ndim
    grid = pt.tensor("grid", dtype=_GRID.dtype, shape=(None,) * axes)
    on_grid = clone_replace([value], {argument: grid.astype(argument.dtype)}, rebuild_strict=False)
    function = pytensor.function([grid], on_grid, mode=_PLAIN)
    with np.errstate(all="ignore"):
        if axes == 0:
            return np.array([function(np.asarray(x))[0] for x in _GRID]).ravel()
        (found,) = function(_GRID.reshape(-1, *[1] * (axes - 1)))
    return np.asarray(found).ravel()
