"""Graphs that differ in their leaves alone as one graph of stacked leaves: compiled once, worked off together."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Constant, Variable, equal_computations
from pytensor.graph.replace import graph_replace, vectorize_graph
from pytensor.graph.traversal import ancestors
from pytensor.sparse.variable import SparseVariable
from pytensor.tensor.subtensor import Subtensor
from pytensor.tensor.variable import TensorVariable
from scipy.sparse import issparse


def stacked(
    graphs: Sequence[Sequence[TensorVariable]], along: Mapping[Variable, TensorVariable]
) -> list[TensorVariable]:
    """Each of the outputs of c graphs as one variable with a leading axis (c, ...).

    Where the graphs are the same expressions of other variables or constants, an expression is made once, of these
    stacked; else there are c expressions.

    Parameters
    ----------
    graphs : sequence of sequence of TensorVariable
        The same outputs of each graph.
    along : dict
        Variables of all graphs → what takes their place in each, (c, ...).
    """
    count = len(graphs)
    leaves = differences(graphs, set(along))
    if leaves is None:
        each = [
            graph_replace(list(graph), {old: new[k] for old, new in along.items()}, strict=False)
            for k, graph in enumerate(graphs)
        ]
        return [pt.stack(list(outputs)) for outputs in zip(*each, strict=True)]
    together = dict(along) | {first: _stack([first, *others]) for first, others in leaves.items()}
    found = vectorize_graph(list(graphs[0]), replace=together)
    return [
        new if new.ndim > old.ndim else pt.broadcast_to(new, (count, *(new.shape[i] for i in range(new.ndim))))
        for new, old in zip(found, graphs[0], strict=True)
    ]


def differences(
    graphs: Sequence[Sequence[TensorVariable]], along: set[Variable]
) -> dict[Variable, tuple[Variable, ...]] | None:
    """Variables of the first graph → what is in their place in the others; None where the graphs are not alike.

    What is replaced in all of them is `along`.
    """
    found: dict[Variable, tuple[Variable, ...]] = {}
    same: set[Variable] = set()
    seen: dict[Variable, tuple[Variable, ...]] = {}

    def alike(variables: tuple[Variable, ...]) -> bool:
        first, *others = variables
        if first in seen:
            return seen[first] == variables
        if all(each is first for each in others) or _equal_constants(variables):
            same.add(first)
        elif not _same_node(variables) or not all(
            alike(inputs) for inputs in zip(*(each.owner.inputs for each in variables), strict=True)
        ):
            if (
                isinstance(first, SparseVariable)
                or not isinstance(first, TensorVariable)
                or not all(
                    isinstance(each, TensorVariable) and each.type.is_super(first.type) and each.dtype == first.dtype
                    for each in others
                )
            ):
                return False
            found[first] = tuple(others)
        seen[first] = variables
        return True

    if not all(alike(outputs) for outputs in zip(*graphs, strict=True)):
        return None
    # What is replaced must not be part of what all have in common, nor depend on what is replaced as well.
    for first in found:
        below = set(ancestors([first]))
        if along & below or any(first in ancestors([each]) for each in same):
            return None
    return found


def _stack(leaves: Sequence[TensorVariable]) -> TensorVariable:
    """Leaves as one variable, at once where they are elements of one vector."""
    owners = [each.owner for each in leaves]
    if all(owner is not None and isinstance(owner.op, Subtensor) and owner.op.idx_list == (0,) for owner in owners):
        vectors, places = zip(*(owner.inputs for owner in owners), strict=True)
        one = all(equal_computations([vectors[0]], [each]) for each in vectors)
        if one and all(isinstance(each, Constant) for each in places):
            found: TensorVariable = vectors[0][np.array([each.data for each in places])]
            return found
    return pt.stack(list(leaves))


def _same_node(variables: tuple[Variable, ...]) -> bool:
    owners = [each.owner for each in variables]
    if any(owner is None for owner in owners):
        return False
    first = owners[0]
    place = first.outputs.index(variables[0])
    return all(
        owner.op == first.op and len(owner.inputs) == len(first.inputs) and owner.outputs[place] is each
        for owner, each in zip(owners, variables, strict=True)
    )


def _equal_constants(variables: tuple[Variable, ...]) -> bool:
    if not all(isinstance(each, Constant) and each.type == variables[0].type for each in variables):
        return False
    if issparse(variables[0].data):
        return all(
            each.data.shape == variables[0].data.shape and (each.data != variables[0].data).nnz == 0
            for each in variables
        )
    return all(np.array_equal(np.asarray(each.data), np.asarray(variables[0].data)) for each in variables)
