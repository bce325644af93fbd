"""The argument of a random variable: the one variable through which it depends on Gaussian variables."""

from collections.abc import Collection
from typing import NamedTuple, cast

import numpy as np
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.likelihoods.observed_classes import known_shape
from pymc_gpep.structure.affine import Affinity, NotAffineError

_FEW = 5  # numbers of Gaussian variables that stay hyperparameters, as those of a scale


class Argument(NamedTuple):
    """The Gaussian variables that reach a random variable."""

    variable: TensorVariable
    """An affine function of them, a number for each row or one for all."""
    others: frozenset[Variable]
    """The Gaussian variables that reach the random variable by other ways, few numbers."""


def argument_of_variable(variable: TensorVariable, sources: Collection[Variable]) -> Argument | None:
    """Find the largest affine function of Gaussian variables that alone makes a random variable depend on them.

    Parameters
    ----------
    variable : TensorVariable
    sources : collection of Variable
        The Gaussian variables.

    Returns
    -------
    Argument or None
        None if there is no such function, or if there are several.
    """
    every = frozenset(sources)
    inputs = [each for each in variable.owner.inputs if not isinstance(each.type, RandomType)]
    behind = every.intersection(ancestors(inputs))
    if not behind:
        return None
    affinity = Affinity(every)
    best: tuple[int, int, Argument] | None = None
    nodes = toposort(inputs, blockers=behind)
    candidates = [*(node.outputs[0] for node in reversed(list(nodes))), *behind]
    for place, each in enumerate(candidates):
        if not isinstance(each, TensorVariable) or each.ndim > 1 or isinstance(each.type, RandomType):
            continue
        own = behind.intersection([each, *ancestors([each])])
        if not own or not _affine(affinity, every, each):
            continue
        rest = behind.intersection(ancestors(inputs, blockers=[each])) - {each}
        if own <= rest:
            continue
        if not rest:
            return Argument(_peeled(each, behind), frozenset())
        size = _size(rest)
        if size <= _FEW and size < _size(own) and (best is None or (size, place) < best[:2]):
            best = (size, place, Argument(each, frozenset(rest)))
    return None if best is None else best[2]._replace(variable=_peeled(best[2].variable, behind))


def _peeled(variable: TensorVariable, sources: frozenset[Variable]) -> TensorVariable:
    """The variable without its constant factors and terms: −f/√2 is of no interest."""
    while variable not in sources and variable.owner is not None and isinstance(variable.owner.op, Elemwise):
        inputs = variable.owner.inputs
        inner = [each for each in inputs if not _is_number(each)]
        if len(inner) != 1 or not all(all(each.type.broadcastable) for each in inputs if each is not inner[0]):
            break
        variable = cast(TensorVariable, inner[0])
    return variable


def _is_number(variable: Variable) -> bool:
    """Whether a variable is computed from constants alone."""
    return all(isinstance(each, Constant) for each in ancestors([variable]) if each.owner is None)


def _affine(affinity: Affinity, sources: frozenset[Variable], variable: Variable) -> bool:
    """Whether a variable is affine in sources, or would be with those of one factor of a product held."""
    try:
        affinity.behind(variable)
    except NotAffineError as error:
        if len(error.sides) < 2:
            return False
        least = min(error.sides, key=_size)
        try:
            Affinity(sources - least).behind(variable)
        except NotAffineError:
            return False
    return True


def _size(variables: Collection[Variable]) -> int:
    sizes = [known_shape(each) for each in variables if isinstance(each, TensorVariable)]
    return sum(int(np.prod([1 if length is None else length for length in shape])) for shape in sizes)
