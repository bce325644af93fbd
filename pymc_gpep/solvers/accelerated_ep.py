"""The fixed-point iteration of EP, parallel, with Anderson acceleration: one for all kinds of sites."""

from collections.abc import Callable
from typing import NamedTuple, Self

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.schemes.anderson import accelerated_step, weighted_norm
from pymc_gpep.kernels.status import CONVERGED, NOT_FINITE, NOT_POSITIVE_DEFINITE, OUT_OF_ITERATIONS
from pymc_gpep.solvers.history import History

__all__ = ["Steps", "Sweep", "accelerated_ep"]

type Sweep = Callable[[Array, Array, Array], tuple[bool, float, float]]
"""One sweep of a kind of EP, `sweep(sites, target, scale)`.

It computes the posterior that the sites imply, writes the sites that match the tilted moments into `target` and the
marginal variances of what they act on into `scale` (n, d), and returns success, evidence, and the largest change of a
site in units of its marginal.
"""


class Steps(NamedTuple):
    """How an iteration goes from sweep to sweep; see `pymc_gpep.approximations.accelerated_ep.AcceleratedEP`."""

    tolerance: float
    memory: int
    mixing: float
    damping: float
    largest_precision: float
    """Precisions of sites that match moments are less."""
    least_precision: float = 0.0
    """And at least this."""

    def times(self, size: float) -> Self:
        """Steps that are so many times as long."""
        return self._replace(mixing=size * self.mixing, damping=size * self.damping)


_WARM_UP = 2  # damped sweeps before the first acceleration: the first steps are too nonlinear to extrapolate,
_BOLD = 1.0  # unless the residual is already this small, as it is from the sites of neighbouring hyperparameters
# A squared norm of the residual this much above the smallest one means that the extrapolation has gone astray. Near the
# fixed point, where the iteration is all but linear, it may grow for a sweep and the memory is still worth keeping.
_GROWTH, _GROWTH_NEAR = 2.0, 100.0
_NEAR = 0.1  # residual
_PROGRESS = 0.7  # a residual this much below the smallest one counts as progress


def accelerated_ep(
    sweep: Sweep,
    sites: Array,
    history: History,
    steps: Steps,
    *,
    patience: float = np.inf,
) -> tuple[float, int]:
    """Iterate from `sites`, which are overwritten, until converged or without progress for `patience` sweeps.

    `sites` (2, n, d) are the precisions and the locations of d scalar sites for each point; those that match moments
    have precisions from the least to below the largest. Damped for the first sweeps, then accelerated, and
    starting afresh from a damped step whenever the residual grows. Returns evidence and status.
    """
    tolerance, memory, mixing, damping, largest_precision, least_precision = steps
    target, scale = np.empty_like(sites), np.empty(sites.shape[1:])
    # The sites as one vector x, its residual f, and the weights that make it free of units.
    x = sites.reshape(-1)
    half = x.size // 2
    weight, step = np.empty((2, x.size))
    dx, df = np.empty((2, memory, x.size))
    old_x, old_f = np.empty((2, x.size))
    stored = sweeps = progress = 0
    smallest = best_residual = last_residual = np.inf
    evidence = np.nan
    while not history.is_full() and sweeps - progress < patience:
        ok, new_evidence, residual = sweep(sites, target, scale)
        if not ok:
            return np.nan, NOT_POSITIVE_DEFINITE
        change = abs(new_evidence - evidence)
        evidence = new_evidence
        history.add(evidence, residual)
        sweeps += 1
        if residual < tolerance and change < tolerance * (1.0 + abs(evidence)):
            return evidence, CONVERGED
        if not np.isfinite(evidence + residual):
            return np.nan, NOT_FINITE
        if residual < _PROGRESS * best_residual:
            best_residual = residual
            progress = sweeps
        f = target.reshape(-1)  # in place, as all is below: sites of a million points are what takes the memory
        f -= x
        variance = scale.reshape(-1)
        weight[half:] = variance
        np.multiply(variance, variance, out=weight[:half])
        norm = weighted_norm(weight, f)
        if norm > (_GROWTH if last_residual > _NEAR else _GROWTH_NEAR) * smallest:
            stored = 0
            smallest = norm
        elif memory > 0 and sweeps > 1 and (sweeps > _WARM_UP + 1 or last_residual < _BOLD):
            slot = stored % memory
            np.subtract(x, old_x, out=dx[slot])
            np.subtract(f, old_f, out=df[slot])
            stored += 1
        smallest = min(smallest, norm)
        last_residual = residual
        old_x[:], old_f[:] = x, f
        if stored > 0:
            accelerated_step(weight, f, dx, df, min(stored, memory), mixing, step)
            step += x
            # Where acceleration takes a precision out of its interval, the plain step does not.
            precisions = step[:half]
            outside = ~((precisions >= least_precision) & (precisions < largest_precision))
            precisions[outside] = x[:half][outside] + damping * f[:half][outside]
            x[:] = step
        else:
            f *= damping
            x += f
    return evidence, OUT_OF_ITERATIONS
