"""The error for a model that cannot be read, and how its messages name variables."""

from collections.abc import Iterable

from pytensor.graph.basic import Variable
from pytensor.tensor.random.op import RNGConsumerOp

__all__ = ["StructureError", "describe", "listing"]


class StructureError(ValueError):
    """The model is not a Gaussian process classifier of a kind that can be read."""


def describe(variable: Variable) -> str:
    """Return the quoted name of a variable and, of a random one, its distribution: `'beta' (Normal)`."""
    name = repr(variable.name or str(variable))
    if variable.owner is None or not isinstance(variable.owner.op, RNGConsumerOp):
        return name
    op = variable.owner.op
    printed = getattr(op, "_print_name", None)
    return f"{name} ({printed[0] if printed else type(op).__name__})"


def listing(variables: Iterable[Variable]) -> str:
    """Return the descriptions of variables, separated by commas, or "none"."""
    return ", ".join(describe(variable) for variable in variables) or "none"
