"""The fixed-point iteration of EP, parallel, with Anderson acceleration: one for all kinds of sites."""

from typing import NamedTuple, Self

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.status import CONVERGED, NOT_FINITE, NOT_POSITIVE_DEFINITE, OUT_OF_ITERATIONS
from pymc_gpep.solvers.history import History
from pymc_gpep.solvers.site_space import SitesInMemory, SiteSpace, Sweep

__all__ = ["Steps", "Sweep", "accelerated_ep", "iterate"]


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
    """Iterate from `sites` (2, n, d), which are overwritten; see `iterate`."""
    return iterate(SitesInMemory(sweep, sites, steps.memory), history, steps, patience=patience)


def iterate(space: SiteSpace, history: History, steps: Steps, *, patience: float = np.inf) -> tuple[float, int]:
    """Iterate from the sites of a space until converged or without progress for `patience` sweeps.

    Sites are precisions and locations; those that match moments have precisions from the least to below the
    largest. Damped for the first sweeps, then accelerated, and starting afresh from a damped step whenever the residual
    grows. Returns evidence and status.
    """
    tolerance, memory, mixing, damping, largest_precision, least_precision = steps
    stored = sweeps = progress = 0
    smallest = best_residual = last_residual = np.inf
    evidence = np.nan
    while not history.is_full() and sweeps - progress < patience:
        ok, new_evidence, residual = space.sweep()
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
        norm = space.norm()
        if norm > (_GROWTH if last_residual > _NEAR else _GROWTH_NEAR) * smallest:
            stored = 0
            smallest = norm
        elif memory > 0 and sweeps > 1 and (sweeps > _WARM_UP + 1 or last_residual < _BOLD):
            space.remember(stored % memory)
            stored += 1
        smallest = min(smallest, norm)
        last_residual = residual
        if stored > 0:
            space.accelerate(min(stored, memory), mixing, damping, (least_precision, largest_precision))
        else:
            space.damp(damping)
    return evidence, OUT_OF_ITERATIONS
