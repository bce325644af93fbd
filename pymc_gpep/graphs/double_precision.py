"""Constants of graphs: in double precision, and copied from the user's arrays.

PyMC takes arrays as they come, and PyTensor computes with them in the least precision that holds them. A covariance of
single-precision inputs and a length scale of 1 is one of single precision. Sums of small integers overflow, and a
product of booleans is a boolean.

PyTensor makes a constant of an array without a copy. A model whose arrays change later is another model.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import cast

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.ops import ViewOp
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import Op
from pytensor.graph.traversal import ancestors, toposort
from pytensor.raise_op import CheckAndRaise
from pytensor.scalar.basic import BinaryBitOp, UnaryBitOp
from pytensor.tensor.basic import Alloc, AllocDiag, Join, alloc_diag
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.math import Dot
from pytensor.tensor.shape import Reshape, SpecifyShape
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor
from pytensor.tensor.variable import TensorVariable
from scipy.sparse import issparse

from pymc_gpep.noted_inputs import renew_note

_ALL_NUMBERS = (Elemwise, CAReduce, Dot, Blockwise, DimShuffle, ViewOp, OpFromGraph)
_FIRST_NUMBERS = (Alloc, Reshape, SpecifyShape, Subtensor, AdvancedSubtensor)
"""What takes shapes or indices after its first input."""


# Largest distance of an input from an integer that it is rounded to.
_DISTANCE_TO_INTEGER = 1e-6
_ONLY_WHOLE = CheckAndRaise(
    ValueError,
    "Inputs must be whole numbers where the covariance looks something up by them: give Xnew, or inducing inputs, as "
    "those of the model are.",
)


def in_double_precision(outputs: Sequence[TensorVariable], stop: Collection[Variable]) -> list[TensorVariable]:
    """The same expressions with data and constants in double precision, where they are numbers.

    Indices, shapes and what works on bits are computed as they were.

    Parameters
    ----------
    outputs : sequence of TensorVariable
    stop : collection of Variable
        Random variables of the model, behind which nothing changes.
    """
    return [cast(TensorVariable, each) for each in _promoted_graph(outputs, stop, {})]


def _promoted_graph(
    outputs: Sequence[Variable], stop: Collection[Variable], made: dict[Variable, Variable]
) -> list[Variable]:
    """The same expressions with what is `made` already in place of other variables."""

    def new(variable: Variable) -> Variable:
        if variable not in made:
            leaf = variable.owner is None and variable not in stop
            made[variable] = _promoted(variable) if leaf else variable
        return made[variable]

    for node in toposort(outputs, blockers=stop):
        inputs = [new(each) if number else each for each, number in zip(node.inputs, _numbers(node), strict=True)]
        if any(each is not old for each, old in zip(inputs, node.inputs, strict=True)):
            made |= dict(zip(node.outputs, _remade(node.op, inputs), strict=True))
    return [new(each) for each in outputs]


def _remade(op: Op, inputs: Sequence[Variable]) -> list[Variable]:
    """Return the outputs of an operation on inputs of other types."""
    if isinstance(op, CAReduce):
        return [reduced(op, inputs[0])]
    if isinstance(op, AllocDiag):
        return [alloc_diag(inputs[0], op.offset, op.axis1, op.axis2)]
    if isinstance(op, OpFromGraph):  # made for the types of its first inputs
        return _promoted_graph(op.inner_outputs, (), dict(zip(op.inner_inputs, inputs, strict=True)))
    return op.make_node(*inputs).outputs


def reduced(op: CAReduce, values: Variable) -> TensorVariable:
    """A sum or the like, which PyTensor has given the type of its first values, of values of another type."""
    free = op.clone()
    free.dtype = free.acc_dtype = None
    return cast(TensorVariable, free(values))


def is_bitwise(node: Apply) -> bool:
    """Whether what a node computes is known of integers and booleans alone."""
    return isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, BinaryBitOp | UnaryBitOp)


def whole(made: TensorVariable, dtype: str) -> TensorVariable:
    """Integers or booleans of a type, of the same numbers in another; what is not whole is refused."""
    if made.dtype == dtype:
        return made
    rounded = pt.round(made)
    close = pt.all(pt.abs(rounded - made) < _DISTANCE_TO_INTEGER)
    return cast(TensorVariable, _ONLY_WHOLE(rounded, close).astype(dtype))


def _numbers(node: Apply) -> list[bool]:
    """Which inputs of a node are numbers to compute with."""
    count = len(node.inputs)
    if isinstance(node.op, Join) or (isinstance(node.op, _ALL_NUMBERS) and not is_bitwise(node)):
        return [True] * count
    return [isinstance(node.op, _FIRST_NUMBERS) and place == 0 for place in range(count)]


def _promoted(variable: Variable) -> Variable:
    """Data or a constant in double precision; lone integers stay, since they are counts and exponents."""
    if not isinstance(variable, TensorVariable | SharedVariable | Constant) or not hasattr(variable.type, "dtype"):
        return variable
    low = variable.type.dtype in ("float16", "float32")
    if not low and not (variable.type.ndim and variable.type.dtype.startswith(("int", "uint", "bool"))):
        return variable
    if isinstance(variable, Constant) and low and not variable.type.ndim:
        return pt.constant(variable.data.astype("float64"))
    return pt.cast(variable, "float64")


_OWN = "pymc_gpep_own"


def own_constants_of_model(model: pm.Model) -> None:
    """Give the constants of a model copies of their arrays, once."""
    own_constants([*model.basic_RVs, *model.potentials, *model.deterministics, *model.rvs_to_values.values()])


def own_constants(variables: Iterable[Variable]) -> None:
    """Give the constants behind variables copies of their arrays, once."""
    for each in _constants(list(variables), set()):
        if (isinstance(each.data, np.ndarray) or issparse(each.data)) and not getattr(each.tag, _OWN, False):
            former, each.data = each.data, each.data.copy()
            renew_note(each, former)
            setattr(each.tag, _OWN, True)


def _constants(variables: list[Variable], seen: set[int]) -> Iterator[Constant]:
    """Yield constants, those within operations that are graphs as well."""
    for each in ancestors(variables):
        if isinstance(each, Constant):
            yield each
        elif each.owner is not None and isinstance(each.owner.op, OpFromGraph) and id(each.owner.op) not in seen:
            seen.add(id(each.owner.op))
            yield from _constants(each.owner.op.inner_outputs, seen)
