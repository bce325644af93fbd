"""A start that no gradient leads away from: prior moments and priors are symmetric about it in a hyperparameter."""

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.hyper.hyperparameters import Hyperparameters
from pymc_gpep.structure.inducing_blocks import InducingBlocks
from pymc_gpep.user_warnings import warn

__all__ = ["off_symmetry"]

_STEP = 0.1
_MOVE = 1.0  # of what is symmetric, unconstrained
_ROWS = 20
_SAME = 1e-10


def off_symmetry(space: Hyperparameters, blocks: InducingBlocks, theta: Array) -> Array:
    """A start with those hyperparameters moved, and a warning, about which everything is symmetric.

    A search that sees the log posterior of all rows looks beside points without a slope. Steps by batches see slopes
    alone, and a magnitude that is used squared and begins at 0 would stay there.
    """
    x = blocks.rows.inputs(slice(0, min(_ROWS, blocks.rows.n_rows)))

    def looked_at(at: Array) -> Array:
        block = blocks.block(space.point(at), x[None], x)
        return np.concatenate([*(each.ravel() for each in block), [space.log_prior(at)]])

    here, moves = looked_at(theta) if theta.size else np.empty(0), np.zeros(theta.size)
    for j, step in enumerate(_STEP * np.eye(theta.size)):
        ahead, behind = looked_at(theta + step), looked_at(theta - step)
        same = np.allclose(ahead, behind, rtol=_SAME, atol=_SAME)
        moves[j] = _MOVE if same and not np.allclose(ahead, here, rtol=_SAME, atol=_SAME) else 0.0
    if moves.any():
        names = " and ".join(repr(owner) for owner, move in zip(space.owners, moves, strict=True) if move)
        warn(
            f"The model is symmetric about where {names} begins, so that no gradient leads away from there. Batches "
            f"begin {_MOVE:g} beside it, unconstrained. Give another start=..."
        )
    return theta + moves
