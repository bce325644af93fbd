"""What hyperparameters do to the prior of the latent functions, seen from its covariances between points.

No name of a hyperparameter is looked at. One that changes the variance of the latent functions is a magnitude; one that
changes correlations between points and not the variance is a length scale, or works like one.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array

__all__ = ["PriorView", "correlations", "pairs_by_kind", "roles", "view"]

_STEPS = (1.0, 4.0)  # unconstrained; the second where the first shows nothing
_ROWS = 200  # points whose pairs with all others are enough for a median
_EFFECT = 1e-6  # least change that counts as one


class PriorView(NamedTuple):
    """What hyperparameters say of the latent functions before labels are seen."""

    log_sd: float
    """Of the median standard deviation."""
    correlation: dict[str, float]
    """Median correlation of each kind of pairs of points."""


def pairs_by_kind(labels: NDArray[np.int64]) -> dict[str, NDArray[np.bool_]]:
    """Pairs of different points by kind, (n, n) each."""
    different = ~np.eye(labels.size, dtype=bool)
    same = labels[:, None] == labels
    return {"all": different, "within": different & same, "between": different & ~same}


def correlations(k: Array, rows: slice = slice(None)) -> Array:
    """Of covariances (1 or c, n, n), some of their rows; 0 where there is none."""
    with np.errstate(all="ignore"):
        sd = np.sqrt(k.diagonal(axis1=1, axis2=2))
        return np.nan_to_num(k[:, rows] / (sd[:, rows, None] * sd[:, None, :]))


def view(k: Array, pairs: dict[str, NDArray[np.bool_]]) -> PriorView:
    """Of covariances (1 or c, n, n), over all functions; of many points, pairs with some of them."""
    rows = slice(None, None, -(-k.shape[1] // _ROWS))
    r = correlations(k, rows)
    chosen = {kind: which[rows] for kind, which in pairs.items()}
    medians = {kind: float(np.median(r[:, which])) for kind, which in chosen.items() if which.any()}
    medians["neighbours"] = float(np.median(np.where(chosen["all"], r, -1).max(axis=2)))
    with np.errstate(all="ignore"):
        return PriorView(float(np.nan_to_num(np.log(np.median(k.diagonal(axis1=1, axis2=2))) / 2)), medians)


def roles(look: Callable[[Array], PriorView], first: Array) -> tuple[Array, Array]:
    """Directions (d,) that raise the variance, and that raise correlations and leave the variance: 1, −1 or 0 each."""
    magnitudes, scales = np.zeros(first.size), np.zeros(first.size)
    for i, direction in enumerate(np.eye(first.size)):
        for step in _STEPS:
            ahead, behind = look(first + step * direction), look(first - step * direction)
            louder = ahead.log_sd - behind.log_sd
            closer = sum(ahead.correlation.values()) - sum(behind.correlation.values())
            if abs(louder) > _EFFECT:
                magnitudes[i] = np.sign(louder)
            elif abs(closer) > _EFFECT:
                scales[i] = np.sign(closer)
            else:
                continue
            break
    return magnitudes, scales
