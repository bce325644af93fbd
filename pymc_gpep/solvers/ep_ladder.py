"""Accelerated EP, and where that gets no closer any more, plain damped EP: for EPs without an energy to descend."""

from typing import Any

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.status import CONVERGED, NOT_FINITE, NOT_POSITIVE_DEFINITE
from pymc_gpep.solvers.accelerated_ep import Steps, iterate
from pymc_gpep.solvers.history import History
from pymc_gpep.solvers.site_space import SitesInMemory, SiteSpace, Sweep

__all__ = ["PATIENCE", "SCHEMES", "climb", "ep_ladder"]

SCHEMES = ("accelerated EP", "damped EP", "damped EP with small steps")
PATIENCE = 40  # sweeps without progress before the next rung
_SHRINKAGE = 0.6  # damping of each rung, in units of that of the one before


def ep_ladder(sweep: Sweep, sites: Array, history: History, *, ladder: bool, **options: Any) -> tuple[float, int, int]:
    """Iterate from `sites` (2, n, d), which are overwritten; see `climb`."""
    space = SitesInMemory(sweep, sites, options["memory"])
    return climb(space, history, ladder=ladder, **options)


def climb(
    space: SiteSpace, history: History, *, ladder: bool, last_patience: float = np.inf, **options: Any
) -> tuple[float, int, int]:
    """Iterate from the sites of a space. Returns evidence, status and the rung reached.

    The last rung ends after `last_patience` sweeps without progress. Other options are those of
    `pymc_gpep.solvers.accelerated_ep.Steps`.
    """
    steps = Steps(**options)
    rung = 0
    while True:
        last = not ladder or rung == len(SCHEMES) - 1
        evidence, status = iterate(space, history, steps, patience=last_patience if last else PATIENCE)
        if status in (CONVERGED, NOT_POSITIVE_DEFINITE) or last or history.is_full():
            return evidence, status, rung
        if status == NOT_FINITE:
            space.clear()
        rung += 1
        steps = steps.times(_SHRINKAGE)._replace(memory=0)
