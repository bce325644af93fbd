"""Elementwise operations in graphs."""

from pytensor.graph.basic import Variable
from pytensor.tensor.elemwise import Elemwise


def is_elementwise(variable: Variable, scalar_op: type) -> bool:
    """Whether a variable is what an elementwise operation made, such as `pytensor.scalar.basic.Add`."""
    node = variable.owner
    return node is not None and isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, scalar_op)
