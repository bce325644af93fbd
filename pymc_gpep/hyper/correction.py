"""The correction of EP's log evidence as a function of the hyperparameters.

It is for sums of effects. With few binary rows in a group the error of EP's evidence adds up over groups, and depends
on their scale. Its term of second order is known (`TiltedFactors.two_loops`). It is computed at the maximum and at a
point on each side of it along each axis. Between these it is interpolated by parabolas, axis by axis.
"""

from collections.abc import Sequence

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.hyper.evaluation import Evaluation
from pymc_gpep.hyper.log_posterior import LogPosterior

_MOST = 5000  # latent values, beyond which matrices of all pairs are too large
_AT, _BEYOND = 1.7, 1.5  # standard deviations of the points, and how much farther parabolas go on
_SHARE, _SMALL = 0.5, 0.01  # the next order as a share of this one, and as a number, at most
_LARGEST = 2.0  # difference between two points beyond which the series says nothing


def has_correction(log_posterior: LogPosterior) -> bool:
    """Whether a sum of effects has a known correction that does not take too long."""
    if not log_posterior.joint:
        return False
    classifier, approximator = log_posterior.classifier, log_posterior.approximator
    few = classifier.prior.effects and classifier.n_functions == 1 and classifier.n_points <= _MOST
    return bool(few and approximator.matches_moments and not approximator.whole_factors)


def correction_at(log_posterior: LogPosterior, z: Array, nodes: Sequence[Evaluation], draws: Array) -> Array:
    """The correction (m,) at standardised draws (m, d).

    Parameters
    ----------
    log_posterior : LogPosterior
    z : array (s, d)
        Standardised places of nodes, the maximum first.
    nodes : sequence of Evaluation
    draws : array (m, d)
    """
    axes = [_beside(z, axis) for axis in range(z.shape[1])]
    needed = sorted({0, *(s for pair in axes for s in pair)})
    found = dict(zip(needed, (_two_loops(log_posterior, nodes[s]) for s in needed), strict=True))
    total = np.full(len(draws), found[0] if np.isfinite(found[0]) else 0.0)
    for axis, pair in enumerate(axes):
        places = [0.0, *(float(z[s, axis]) for s in pair)]
        values = np.array([0.0, *(found[s] - found[0] for s in pair)])
        if not np.isfinite(values).all() or np.abs(values).max() > _LARGEST:
            continue
        parabola = np.polyfit(places, values, len(places) - 1)
        total += np.polyval(parabola, np.clip(draws[:, axis], _BEYOND * min(places), _BEYOND * max(places)))
    return total


def _beside(z: Array, axis: int) -> list[int]:
    """Numbers of a place on each side along one axis, as far from the maximum as most of the mass."""
    on_axis = (z != 0.0).sum(axis=1) == 1
    sides = (np.flatnonzero(on_axis & (side * z[:, axis] > 0.0)) for side in (-1.0, 1.0))
    return [int(own[np.argmin(np.abs(np.abs(z[own, axis]) - _AT))]) for own in sides if own.size]


def _two_loops(log_posterior: LogPosterior, node: Evaluation) -> float:
    solution = log_posterior.solve(node.theta, node.start)
    if not solution.converged:
        return np.nan
    factors = log_posterior.approximator.tilted_factors(solution)
    found = float(factors.two_loops.sum())
    # The largest term of the next order, of pairs of factors.
    later = float(factors.fourth @ factors.lines**4 @ factors.fourth) / 48.0
    return found if abs(later) < _SHARE * abs(found) + _SMALL else np.nan
