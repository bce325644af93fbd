"""Accelerated EP, and where that gets no closer any more, plain damped EP: for EPs without an energy to descend."""

from collections.abc import Callable
from typing import Any

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.status import CONVERGED, NOT_FINITE, NOT_POSITIVE_DEFINITE
from pymc_gpep.solvers.accelerated_ep import Steps, iterate
from pymc_gpep.solvers.history import History
from pymc_gpep.solvers.site_space import SitesInMemory, SiteSpace, Sweep

__all__ = ["SCHEMES", "climb", "ep_ladder", "signed_ladder"]

SCHEMES = ("accelerated EP", "damped EP", "damped EP with small steps")
_PATIENCE = 40  # sweeps without progress before the next rung
_ROUGHLY = 1e-2  # tolerance of problems on the way
_SHRINKAGE = 0.6  # damping of each rung, in units of that of the one before


def ep_ladder(sweep: Sweep, sites: Array, history: History, *, ladder: bool, **options: Any) -> tuple[float, int, int]:
    """Iterate from `sites` (2, n, d), which are overwritten; see `climb`."""
    space = SitesInMemory(sweep, sites, options["memory"])
    return climb(space, history, ladder=ladder, **options)


def signed_ladder(
    sweep: Sweep,
    sites: Array,
    history: History,
    without: Callable[[Array], None],
    *,
    easier: Callable[[int], bool] | None = None,
    again: bool = True,
    least_again: float = 0.0,
    **options: Any,
) -> tuple[float, int, int]:
    """Iterate from sites whose precisions may be negative, and without these where that does not converge.

    Where easier problems lead to the one at hand, they are tried in between, from sites of zero.

    Parameters
    ----------
    sweep, sites, history
        As for `ep_ladder`.
    without : callable
        Makes the sweep leave negative precisions out. It gets the sites to begin from again, and may change them.
    easier : callable, optional
        Makes the sweep that of problem 0, 1, …, each nearer to the one at hand than the one before. It returns True
        once it is that one. This is the last rung.
    again : bool
        Whether to begin again without negative precisions, which is the last rung but one.
    least_again : float
        Least entry of the first half of the sites then.
    **options
        As for `ep_ladder`.
    """
    begun = sites.copy()
    ended = ep_ladder(sweep, sites, history, least_precision=-np.inf, last_patience=_PATIENCE, **options)
    if ended[1] == CONVERGED or not again or history.is_full():
        return ended
    if easier is not None:
        sites[:] = 0.0
        stage, status = 0, CONVERGED
        while status == CONVERGED:
            arrived = easier(stage)
            steps = options | {name: _SHRINKAGE * options[name] for name in ("mixing", "damping")}
            steps |= {"ladder": False} | ({} if arrived else {"tolerance": _ROUGHLY})
            evidence, status, _ = ep_ladder(
                sweep, sites, history, least_precision=-np.inf, last_patience=_PATIENCE, **steps
            )
            if arrived and status == CONVERGED:
                return evidence, status, len(SCHEMES) + 1
            stage += 1
    sites[:] = begun
    without(sites)
    evidence, status, _ = ep_ladder(sweep, sites, history, least_precision=least_again, **options)
    return evidence, status, len(SCHEMES)


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
        evidence, status = iterate(space, history, steps, patience=last_patience if last else _PATIENCE)
        if status in (CONVERGED, NOT_POSITIVE_DEFINITE) or last or history.is_full():
            return evidence, status, rung
        if status == NOT_FINITE:
            space.clear()
        rung += 1
        steps = steps.times(_SHRINKAGE)._replace(memory=0)
