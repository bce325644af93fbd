"""The argument of a softmax in the graph of a model."""

from typing import cast

from pytensor.compile.ops import ViewOp
from pytensor.graph.basic import Variable, equal_computations
from pytensor.scalar.basic import Exp, TrueDiv
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Sum
from pytensor.tensor.special import Softmax
from pytensor.tensor.variable import TensorVariable


def softmax_argument(p: Variable) -> TensorVariable | None:
    """Return what probabilities are the softmax of over classes, class axis last; None if they are something else."""
    transposed = False
    while (found := _normalised(p)) is None:
        match p.owner and p.owner.op:
            case DimShuffle(new_order=(1, 0)):
                transposed = not transposed
            case ViewOp():  # of pm.Deterministic
                pass
            case _:
                return None
        p = p.owner.inputs[0]
    argument, axis = found
    if transposed:
        argument = argument.T
    return argument if axis == ((0,) if transposed else (argument.ndim - 1,)) else None


def _normalised(p: Variable) -> tuple[TensorVariable, tuple[int, ...]] | None:
    """Return x and its axes of a softmax, which may be written exp(x) / exp(x).sum(axis, keepdims=True)."""
    match p.owner and p.owner.op:
        case Softmax(axis=axis):
            return cast(TensorVariable, p.owner.inputs[0]), axis
        case Elemwise(scalar_op=TrueDiv()):
            above, below = p.owner.inputs
        case _:
            return None
    match above.owner and above.owner.op, below.owner and below.owner.op:
        case Elemwise(scalar_op=Exp()), DimShuffle(new_order=order):
            (total,) = below.owner.inputs
        case _:
            return None
    if not isinstance(total.owner and total.owner.op, Sum) or not equal_computations(total.owner.inputs, [above]):
        return None
    axis = tuple(range(above.type.ndim)) if total.owner.op.axis is None else total.owner.op.axis
    kept = iter(range(above.type.ndim - len(axis)))
    if order != tuple("x" if i in axis else next(kept) for i in range(above.type.ndim)):
        return None
    return cast(TensorVariable, above.owner.inputs[0]), axis
