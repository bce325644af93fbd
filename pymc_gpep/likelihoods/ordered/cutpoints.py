"""Latent values and cutpoints behind the probabilities of ordered classes, recognised by the values they give."""

from collections.abc import Callable, Collection, Iterator
from typing import cast

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors, toposort
from pytensor.scalar.basic import Sub
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.likelihoods.likelihood import Reading

_GRID = np.linspace(-4.0, 4.0, 9)
_SAME = 1e-6  # PyMC has functions that take √2 in single precision
_PLAIN = Mode(linker="py", optimizer=None)  # nothing is worth compiling


def read_cutpoints(
    p: TensorVariable, latents: Collection[Variable], distribution: Callable[[Array], Array]
) -> Reading | None:
    """Read probabilities F(κ_{k+1} − f) − F(κ_k − f): f and the cutpoints (K − 1, n); None if they are others.

    Parameters
    ----------
    p : TensorVariable, shape (n, K)
    latents : collection of Variable
        The latent values of the model.
    distribution : callable
        F, from numbers to numbers of the same shape.
    """
    for latent, cut in _differences(p, latents):
        if _gives(p, latent, cut, distribution):
            return Reading(cast(TensorVariable, latent.owner.inputs[0]), cut.T.astype("float64"))
    return None


def has_cutpoints(p: TensorVariable, latents: Collection[Variable]) -> bool:
    """Whether probabilities are made of differences of latent values and cutpoints, whatever their distribution."""
    return any(True for _ in _differences(p, latents))


def _differences(p: TensorVariable, latents: Collection[Variable]) -> Iterator[tuple[TensorVariable, TensorVariable]]:
    """What is made of latent values, as a column, and what may be cutpoints, as rows, that are subtracted.

    Cutpoints may depend on Gaussian variables as well, which then cannot be integrated.
    """
    known = set(latents)
    for node in toposort([p]):
        if not isinstance(node.op, Elemwise) or not isinstance(node.op.scalar_op, Sub):
            continue
        for latent, cut in (node.inputs, node.inputs[::-1]):
            column = latent.owner is not None and isinstance(latent.owner.op, DimShuffle)
            if not column or latent.owner.op.new_order != (0, "x") or cut.ndim != 2:
                continue
            if not known.isdisjoint(ancestors([latent])):
                yield latent, cut


def _gives(
    p: TensorVariable, latent: TensorVariable, cut: TensorVariable, distribution: Callable[[Array], Array]
) -> bool:
    """Whether p are the probabilities of latent values with cutpoints."""
    known = cut.type.shape[1] or 2
    cuts = np.arange(known) - 0.5 * known + 0.3
    inputs = [pt.tensor("latent", dtype="float64", shape=(None, 1)), pt.tensor("cut", dtype="float64", shape=(1, None))]
    outputs = clone_replace([p], dict(zip((latent, cut), inputs, strict=True)), rebuild_strict=False)
    below = distribution(cuts - _GRID[:, None])
    expected = np.diff(below, axis=1, prepend=0.0, append=1.0)
    try:
        with np.errstate(all="ignore"):
            (found,) = pytensor.function(inputs, outputs, mode=_PLAIN, on_unused_input="ignore")(
                _GRID[:, None], cuts[None]
            )
    except (ValueError, IndexError):  # shapes of the data are in the way
        return False
    return found.shape == expected.shape and bool(np.abs(found - expected).max() < _SAME)
