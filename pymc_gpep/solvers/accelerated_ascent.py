"""A fixed-point iteration of scalar sites that maximises something, with Anderson acceleration and never downwards."""

from collections.abc import Callable

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.schemes.anderson import accelerated_step
from pymc_gpep.kernels.status import CONVERGED, NOT_FINITE, NOT_POSITIVE_DEFINITE, OUT_OF_ITERATIONS
from pymc_gpep.solvers.problem import History

type Sweep = Callable[[Array, Array, Array, Array], tuple[bool, float, float]]
"""One sweep, `sweep(sites, natural, better, scale)`.

It computes the posterior that the sites imply, and writes two kinds of sites to go to: towards `natural` what is
maximised rises at first, and is at its maximum where these are the sites; `better`, which it may leave alone there, is
reached in fewer steps. `scale` (n, d) receives the marginal variances of what the sites act on. It returns success,
value, and the largest change to the natural sites in units of the marginal.
"""

_LEVEL = 1e-10  # relative fall that rounding may cause
_PATIENCE = 40  # sweeps in a row that neither rise nor come closer: rounding is all that moves
_LAST_BETTER = 0.1  # length of a step from which on the natural direction is taken
_SHORTEST = 1e-8


def accelerated_ascent(
    sweep: Sweep,
    sites: Array,
    history: History,
    *,
    tolerance: float,
    depth: int,
    mixing: float,
    largest_precision: float,
    least_precision: float = 0.0,
) -> tuple[float, int]:
    """Iterate from `sites` (2, n, d), which are overwritten; return value and status.

    Where an accelerated step ends lower than it began, the iteration goes back and takes the step without acceleration.
    Then it takes half of that step, and so on, in the end along the natural direction.
    """
    natural, better, scale = np.empty_like(sites), np.empty_like(sites), np.empty(sites.shape[1:])
    best_sites, to_natural, to_better = sites.copy(), np.zeros_like(sites), np.zeros_like(sites)
    half = sites.size // 2
    weight, step = np.empty((2, sites.size))
    dx, df = np.empty((2, depth, sites.size))
    best, length, stored = -np.inf, 1.0, 0
    closest, idle = np.inf, 0
    while not history.is_full() and idle < _PATIENCE:
        ok, value, residual = sweep(sites, natural, better, scale)
        if not ok:
            if not (least_precision < 0.0 and np.isfinite(best)):
                return np.nan, NOT_POSITIVE_DEFINITE
            value, residual = -np.inf, np.inf  # negative precisions went too far
        history.add(value, residual)
        idle = 0 if value > best + _LEVEL * (1.0 + abs(best)) or residual < 0.5 * closest else idle + 1
        closest = min(closest, residual)
        if np.isfinite(value + residual) and value >= best - _LEVEL * (1.0 + abs(best)):
            if residual < tolerance and value - best < tolerance * (1.0 + abs(value)):
                return value, CONVERGED
            if residual < tolerance:
                better[:] = natural
            if depth > 0 and np.isfinite(best):
                slot = stored % depth
                dx[slot] = (sites - best_sites).reshape(-1)
                df[slot] = (better - sites - to_better).reshape(-1)
                stored += 1
            best, length = value, 1.0
            best_sites[:], to_natural[:], to_better[:] = sites, natural - sites, better - sites
        elif not np.isfinite(best):
            return np.nan, NOT_FINITE
        else:
            # A step without acceleration has failed if there was nothing to accelerate with.
            length *= 1.0 if stored else 0.5
            stored = 0
            if length < _SHORTEST:
                break
        if stored:
            variance = scale.reshape(-1)
            weight[half:] = variance
            np.multiply(variance, variance, out=weight[:half])
            accelerated_step(weight, to_better.reshape(-1), dx, df, min(stored, depth), mixing, step)
            np.add(best_sites, step.reshape(sites.shape), out=sites)
            # Where acceleration takes a precision out of its interval, the plain step does not.
            outside = ~((sites[0] >= least_precision) & (sites[0] <= largest_precision))
            sites[0][outside] = (best_sites + to_better)[0][outside]
        else:
            np.add(best_sites, length * (to_better if length > _LAST_BETTER else to_natural), out=sites)
    sites[:] = best_sites
    _, value, _ = sweep(sites, natural, better, scale)
    return value, OUT_OF_ITERATIONS
