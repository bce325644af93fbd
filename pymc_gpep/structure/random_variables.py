"""Random variables that stay themselves while others in a graph are replaced."""

from collections.abc import Sequence

from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.op import RNGConsumerOp

__all__ = ["kept_random"]


def kept_random(outputs: Sequence[Variable]) -> dict[Variable, Variable]:
    """Return the random variables behind some variables, each to be replaced by itself.

    PyTensor copies a random variable where it replaces others, if data that give its size are used beside it as well.
    A copy is no variable of the model, and would be drawn anew.
    """
    found = [v for v in ancestors(outputs) if v.owner is not None and isinstance(v.owner.op, RNGConsumerOp)]
    return {v: v for v in found if v.name is not None}
