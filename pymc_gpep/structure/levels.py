"""Levels of groups: what data of a model select from, and rows of levels that it does not have."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.pytensorf import get_symbolic_rv_shapes
from pytensor.compile.ops import ViewOp
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import Cast
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.random.op import RNGConsumerOp
from pytensor.tensor.subtensor import AdvancedSubtensor
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.structure.assembly import evaluate
from pymc_gpep.structure.elementwise import is_elementwise

__all__ = ["NOT_ALIKE", "levels_of", "own_normals"]

NOT_ALIKE = (
    "has levels that the model does not have, and those it has differ a priori. A new level has a prior only where "
    "all levels have the same, as in pm.Normal('u', mu, sigma, dims=...). Declare walks as long as they are to be "
    "predicted."
)
"""What is wrong with data that name a new level, after the name of the data."""

_SAME = 1e-9


def levels_of(variable: Variable, outputs: Sequence[TensorVariable]) -> int | None:
    """Return the number of levels that data select from by their values; None where they are no index."""
    counts = []
    for each in ancestors(outputs):
        if each.owner is None or not isinstance(each.owner.op, AdvancedSubtensor):
            continue
        source, *indices = each.owner.inputs
        axes = [axis for axis, entry in enumerate(each.owner.op.idx_list) if isinstance(entry, int)]
        for axis, index in zip(axes, indices, strict=False):
            if _as_it_is(index) is variable:
                counts.append(_shape(source)[axis])
    return min(counts) if counts else None


def _shape(variable: TensorVariable) -> tuple[int, ...]:
    """Return the shape of a variable, whatever the values of random variables behind it are."""
    random = [v for v in ancestors([variable]) if v.owner is not None and isinstance(v.owner.op, RNGConsumerOp)]
    random = [v for v in random if isinstance(v, TensorVariable)]
    shapes = get_symbolic_rv_shapes(random)
    zeros = {v: pt.zeros(shape, dtype=v.dtype) for v, shape in zip(random, shapes, strict=True)}
    (value,) = evaluate(graph_replace([variable], zeros, strict=False))
    return value.shape


def _as_it_is(index: Variable) -> Variable:
    """Return what an index was before its type or its axes were changed."""
    while index.owner is not None:
        op = index.owner.op
        if not (is_elementwise(index, Cast) or isinstance(op, ViewOp | DimShuffle)):
            break
        index = index.owner.inputs[0]
    return index


def own_normals(name: str, first: tuple[Array, Array], second: tuple[Array, Array]) -> NDArray[np.bool_]:
    """Return which standard normals belong to one level alone, given rows of it and rows of another level.

    Parameters
    ----------
    name : str
        Name of the data that say the level.
    first, second : tuple of arrays (c, m) and (c, m, q)
        Means, and coefficients of standard normals, of the same rows with either level.

    Returns
    -------
    array (c, m, q)

    Raises
    ------
    ValueError
        If levels are not alike a priori, so that those of the model say nothing of another one.
    """
    (mean, roots), (other_mean, others) = first, second
    own, its = (roots != 0.0) & (others == 0.0), (others != 0.0) & (roots == 0.0)
    size = _SAME * (1.0 + np.abs(roots).max(initial=0.0))
    shared = ~(own | its)
    alike = np.allclose(mean, other_mean, rtol=0.0, atol=size) and np.allclose(
        np.where(shared, roots, 0.0), np.where(shared, others, 0.0), rtol=0.0, atol=size
    )

    def ordered(values: Any, mask: NDArray[np.bool_]) -> Array:
        return np.sort(np.where(mask, values, 0.0), axis=-1)

    if not alike or not np.allclose(ordered(roots, own), ordered(others, its), rtol=0.0, atol=size):
        raise ValueError(f"data[{name!r}] {NOT_ALIKE}")
    return own
