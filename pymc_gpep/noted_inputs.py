"""Arrays that were given to `pm.gp.Latent.prior` as inputs, noted at the constants that its graph has of them."""

from typing import Any

import numpy as np
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors

from pymc_gpep.array_types import Array

__all__ = ["note_inputs", "noted_inputs"]


def note_inputs(f: Variable, inputs: Any) -> None:
    """Note at each constant behind the latent values f that is over the points which array its columns are of.

    PyTensor keeps the note through copies of a graph. What is a variable of the graph itself needs none.
    """
    array = inputs.data if isinstance(inputs, Constant) else inputs
    if isinstance(array, Variable) or np.ndim(array) != 2:
        return
    array = np.array(array)
    for leaf in ancestors([f]):
        if isinstance(leaf, Constant) and np.shape(leaf.data)[:1] == array.shape[:1] and not hasattr(leaf.tag, _NOTE):
            whole = np.array_equal(leaf.data, array)
            setattr(leaf.tag, _NOTE, leaf.data if whole else array)


def noted_inputs(leaf: Variable) -> Array | None:
    """The array (n, d) that a constant has columns of; None where that was not noted."""
    return getattr(leaf.tag, _NOTE, None)


_NOTE = "pymc_gpep_inputs"
