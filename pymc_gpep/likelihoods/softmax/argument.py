"""The argument of a softmax in the graph of a model."""

from typing import cast

from pytensor.compile.ops import ViewOp
from pytensor.graph.basic import Variable
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.special import Softmax
from pytensor.tensor.variable import TensorVariable

__all__ = ["softmax_argument"]


def softmax_argument(p: Variable) -> TensorVariable | None:
    """Return what probabilities are the softmax of over classes, class axis last; None if they are something else."""
    transposed = False
    while not isinstance(p.owner and p.owner.op, Softmax):
        match p.owner and p.owner.op:
            case DimShuffle(new_order=(1, 0)):
                transposed = not transposed
            case ViewOp():  # of pm.Deterministic
                pass
            case _:
                return None
        p = p.owner.inputs[0]
    (argument,) = p.owner.inputs
    if transposed:
        argument = argument.T
    over_classes = p.owner.op.axis == ((0,) if transposed else (argument.ndim - 1,))
    return cast(TensorVariable, argument) if over_classes else None
