"""Constants of graphs that no later change of a user's arrays reaches.

PyTensor makes a constant of an array without a copy. A model whose arrays change later is another model.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import pymc as pm
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors
from scipy.sparse import issparse

from pymc_gpep.noted_inputs import renew_note

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
