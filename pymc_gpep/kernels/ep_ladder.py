"""Accelerated EP, and where that gets no closer any more, plain damped EP: for EPs without an energy to descend."""

import numpy as np

from pymc_gpep.kernels.accelerated_ep import accelerated_ep
from pymc_gpep.kernels.compile import inlined_kernel
from pymc_gpep.kernels.status import CONVERGED, NOT_FINITE, NOT_POSITIVE_DEFINITE

__all__ = ["SCHEMES", "ep_ladder"]

SCHEMES = ("accelerated EP", "damped EP", "damped EP with small steps")
_PATIENCE = 40  # sweeps without progress before the next rung
_SHRINKAGE = 0.6  # damping of each rung, in units of that of the one before


@inlined_kernel
def ep_ladder(sweep, settings, problem, sites, space, options, history):
    """Iterate from `sites`, which are overwritten; what `sweep` is, `accelerated_ep` tells.

    The options are tolerance, memory, mixing, damping, and whether to climb. Returns evidence, status, number of sweeps
    and the rung reached.
    """
    evidence = np.nan
    status = NOT_FINITE
    sweeps = 0
    rung = 0
    memory = int(options[1])
    damping = options[3]
    while True:
        last = options[4] == 0.0 or rung == len(SCHEMES) - 1
        evidence, status, more = accelerated_ep(
            sweep, settings, problem, sites, space, options[0], memory, options[2], damping,
            history.shape[0] if last else _PATIENCE, history[sweeps:],
        )  # fmt: skip
        sweeps += more
        if status in (CONVERGED, NOT_POSITIVE_DEFINITE) or last or sweeps == history.shape[0]:
            return evidence, status, sweeps, rung
        if status == NOT_FINITE:
            sites[:] = 0.0
        rung += 1
        memory = 0
        damping *= _SHRINKAGE
