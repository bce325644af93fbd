"""Error for a model that cannot be read, and descriptions of variables for messages."""

from collections.abc import Iterable

from pytensor.graph.basic import Variable
from pytensor.tensor.random.op import RNGConsumerOp


class StructureError(ValueError):
    """The package cannot read the model.

    Examples
    --------
    >>> try:
    ...     pm.fit(method="nested_ep", model=pm.Model())
    ... except gpep.StructureError as error:
    ...     print(error)  # what is missing, and what to write
    """


class NotProcessesAloneError(StructureError):
    """Latent functions are not only Gaussian processes at the points of their priors. They may be sums of effects."""


def describe(variable: Variable) -> str:
    """Return the quoted name of a variable, with the distribution of a random variable: `'beta' (Normal)`."""
    name, which = repr(variable.name or str(variable)), distribution(variable)
    return f"{name} ({which})" if which else name


def distribution(variable: Variable) -> str:
    """Return the name of the distribution of a random variable; empty for other variables."""
    if variable.owner is None or not isinstance(variable.owner.op, RNGConsumerOp):
        return ""
    op = variable.owner.op
    printed = getattr(op, "_print_name", None)
    return str(printed[0] if printed else type(op).__name__)


def listing(variables: Iterable[Variable]) -> str:
    """Return descriptions of variables, separated by commas; "none" without variables."""
    return ", ".join(describe(variable) for variable in variables) or "none"
