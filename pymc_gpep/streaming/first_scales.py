"""Initial length scales: half of the typical distance between two rows."""

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.log_posteriors.hyperparameters import Hyperparameters
from pymc_gpep.rows.chunks import column_deviations, sample_inputs
from pymc_gpep.rows.rows import Rows
from pymc_gpep.solvers.step_blocks import ScaleFunctions

_PAIRS = 1000
_SQUARE = 4.0  # squared distance of two rows, in length scales: the median
_NEWTON, _CLOSE, _LONGEST = 10, 1e-3, 2.0  # steps, and how long the last and any are, unconstrained
_PARTS = 1.0, 0.5, 0.25  # of the way
_UNLIKELY = 10.0  # by how much the log prior may fall


def first_scales(
    space: Hyperparameters, functions: ScaleFunctions, theta: Array, free: Collection[str], rows: Rows, seed: int
) -> Array:
    """Hyperparameters (p,) with length scales that data suggest, as far as their prior has nothing against these.

    One that all columns share is half of the median distance of two rows. Others are in the same ratio to the
    deviations of their columns. Near a length scale that is much too short or too long there is no slope to follow.

    Parameters
    ----------
    space : Hyperparameters
    functions : ScaleFunctions
        One covariance's.
    theta : array (p,)
        Where all of them begin otherwise.
    free : collection of str
        Names of the hyperparameters that may move.
    rows : Rows
    seed : int
    """
    moves = np.array([owner in free for owner in space.owners], bool)
    if not moves.any():
        return theta
    x = sample_inputs(rows, 2 * _PAIRS, np.random.default_rng(seed))
    half = len(x) // 2
    (scales,), *_ = functions(theta)
    used = scales > 0.0
    own = not _same_slopes(functions, theta, scales, used)
    base = 1.0 / _positive(column_deviations(rows)) if own else scales
    square = float(np.median((x[:half, used] - x[half : 2 * half, used]) ** 2 @ base[used] ** 2)) if half else 0.0
    if not (np.isfinite(square) and square > 0.0):
        return theta
    wanted = np.log(base * np.sqrt(_SQUARE / square))
    looked_at = np.flatnonzero(used) if own else np.flatnonzero(used)[:1]
    at = theta.copy()
    for _ in range(_NEWTON):
        (scales,), *_ = functions(at)
        slopes = np.array([_slopes(functions, at, each) for each in np.eye(len(scales))[looked_at]])
        slopes = np.where(moves, slopes / scales[looked_at, None], 0.0)
        step, *_ = np.linalg.lstsq(slopes, wanted[looked_at] - np.log(scales[looked_at]), rcond=1e-8)
        if not np.isfinite(step).all() or np.abs(step).max(initial=0.0) < _CLOSE:
            break
        at = at + np.clip(step, -_LONGEST, _LONGEST)
    before = space.log_prior(theta)
    for part in _PARTS:
        moved = theta + part * (at - theta)
        if space.log_prior(moved) > before - _UNLIKELY:
            return moved
    return theta


def _same_slopes(functions: ScaleFunctions, theta: Array, scales: Array, used: NDArray[np.bool_]) -> bool:
    """Whether hyperparameters move all scales alike: seen by weights of columns that are drawn."""
    if np.ptp(scales[used]):
        return False
    weights = np.where(used, np.random.default_rng(0).normal(size=len(scales)), 0.0)
    drawn = _slopes(functions, theta, weights)
    of_all = _slopes(functions, theta, used.astype(np.float64))
    return bool(np.allclose(drawn, of_all * weights.sum() / used.sum(), rtol=1e-8, atol=1e-12))


def _slopes(functions: ScaleFunctions, theta: Array, weights: Array) -> Array:
    """Derivatives of the sum of scales with weights (d,)."""
    return functions.pulled(theta, weights[None], np.zeros(1), np.zeros(1))


def _positive(deviations: Array) -> Array:
    return np.where(deviations > 0.0, deviations, 1.0)
