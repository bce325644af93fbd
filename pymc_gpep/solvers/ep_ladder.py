"""Accelerated EP, and where that gets no closer any more, plain damped EP: for EPs without an energy to descend."""

from typing import Any

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.status import CONVERGED, NOT_FINITE, NOT_POSITIVE_DEFINITE
from pymc_gpep.solvers.accelerated_ep import Steps, Sweep, accelerated_ep
from pymc_gpep.solvers.history import History

__all__ = ["SCHEMES", "ep_ladder"]

SCHEMES = ("accelerated EP", "damped EP", "damped EP with small steps")
_PATIENCE = 40  # sweeps without progress before the next rung
_SHRINKAGE = 0.6  # damping of each rung, in units of that of the one before


def ep_ladder(sweep: Sweep, sites: Array, history: History, *, ladder: bool, **options: Any) -> tuple[float, int, int]:
    """Iterate from `sites`, which are overwritten. Returns evidence, status and the rung reached.

    Options are those of `pymc_gpep.solvers.accelerated_ep.Steps`.
    """
    steps = Steps(**options)
    rung = 0
    while True:
        last = not ladder or rung == len(SCHEMES) - 1
        evidence, status = accelerated_ep(sweep, sites, history, steps, patience=np.inf if last else _PATIENCE)
        if status in (CONVERGED, NOT_POSITIVE_DEFINITE) or last or history.is_full():
            return evidence, status, rung
        if status == NOT_FINITE:
            sites[:] = 0.0
        rung += 1
        steps = steps.times(_SHRINKAGE)._replace(memory=0)
