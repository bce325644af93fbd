"""Hyperparameters that the same latent functions have, whose draws are weighted together.

Where the priors of the hyperparameters and of the latent values both are products, so is q(φ). Each block then has
weights from its own latent functions alone (Girolami and Rogers 2006, equation 4.5 and appendix A.3).
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from pymc_gpep.array_types import Array
from pymc_gpep.structure.hierarchy import Hierarchy
from pymc_gpep.structure.prior_functions import Moments

__all__ = ["Blocks", "find_blocks"]


class Blocks(NamedTuple):
    """Which hyperparameters belong together, and to which latent functions."""

    functions: NDArray[np.bool_]
    """Whether a function's density weighs the draws of a block, (b, c)."""
    of: dict[str, NDArray[np.int64]]
    """The block of each entry of the children, by name."""


def find_blocks(
    hierarchy: Hierarchy,
    here: Mapping[str, Array],
    there: Mapping[str, Array],
    moments: Callable[[Mapping[str, Array]], Moments],
) -> Blocks:
    """Find out which functions' priors change when a hyperparameter goes from here to there.

    Functions that share a covariance have one block with all hyperparameters. A hyperparameter that several functions
    have puts them into one block. Entries of a variable that depend on each other are in one block. So are variables of
    which one is in the prior of the other.

    Parameters
    ----------
    hierarchy : Hierarchy
    here, there : mapping
        Children by name, on their natural scale; values that are equal in both say nothing.
    moments : callable
        The prior of the latent values at such children.
    """
    children = {name: np.asarray(here[name], dtype=np.float64) for name in hierarchy.children}
    before = moments(children)
    functions = len(before.mean)
    if len(before.k) == 1:
        return Blocks(
            np.ones((1, functions), dtype=bool), {name: np.zeros(x.shape, dtype=int) for name, x in children.items()}
        )
    first = functions + np.cumsum([0, *(x.size for x in children.values())])
    nodes = {
        name: start + np.arange(x.size).reshape(x.shape)
        for (name, x), start in zip(children.items(), first, strict=False)
    }
    tied = set().union(*hierarchy.joint)
    edges: list[tuple[int, int]] = []
    for name, x in children.items():
        for entry in [...] if name in tied else list(np.ndindex(x.shape)):
            moved = x.copy()
            moved[entry] = np.asarray(there[name])[entry]
            after = moments({**children, name: moved})
            # A covariance that is not finite counts as one that has changed.
            changed = (after.k != before.k).any(axis=(1, 2)) | (after.mean != before.mean).any(axis=1)
            edges += [(int(node), int(k)) for node in np.ravel(nodes[name][entry]) for k in np.flatnonzero(changed)]
    for names in hierarchy.joint:
        together = np.concatenate([nodes[name].ravel() for name in sorted(names)])
        edges += [(int(together[0]), int(node)) for node in together[1:]]
    ends = np.array(edges, dtype=int).reshape(-1, 2).T
    total = int(first[-1])
    _, part = connected_components(coo_array((np.ones(ends.shape[1]), tuple(ends)), shape=(total, total)), False)
    parts, block = np.unique(part[functions:], return_inverse=True)
    return Blocks(parts[:, None] == part[:functions], {name: block[own - functions] for name, own in nodes.items()})
