"""Whether EP stands at one of several modes, by a second solve from the rows that it takes for outliers."""

from dataclasses import replace

import numpy as np

from pymc_gpep.approximations.approximator import Approximator
from pymc_gpep.approximations.solution import Solution

__all__ = ["other_mode"]

_LESS = 3.0  # of log evidence: a mode of a twentieth
_APART = 2.0  # standard deviations of a difference of means
_ROUGHLY, _FEW = 1e-3, 60  # tolerance of the second solve, and iterations
_NAMED = 5  # rows


def other_mode(approximator: Approximator, solution: Solution) -> str:
    """Return in words where another mode is; empty if none is seen.

    Where a density is not log-concave, EP may take some rows for outliers, whose sites say next to nothing. The second
    solve begins with sites of these rows alone, as they are under the prior. Another fixed point is a mode of its own,
    and EP's evidence there is about the mass of that mode.

    Parameters
    ----------
    approximator : Approximator
    solution : Solution
        Its fixed point.
    """
    rows, start = approximator.from_outliers(solution)
    if not rows.size:
        return ""
    prior = solution.posterior.prior
    other = replace(approximator, tolerance=_ROUGHLY, max_iterations=_FEW).solve(
        prior.array, prior.mean, solution.labels, start, likelihood=solution.likelihood, prior_type=prior.maker
    )
    spread = np.sqrt(solution.cov[:, 0, 0] + other.cov[:, 0, 0])
    apart = np.abs(other.mean[0] - solution.mean[0]) > _APART * spread
    if not (other.converged and apart.any() and other.evidence > solution.evidence - _LESS):
        return ""
    named = ", ".join(map(str, rows[:_NAMED])) + (", …" if rows.size > _NAMED else "")
    return (
        f"EP stands at one of several modes, with a log evidence of {solution.evidence:.2f}. Started from "
        f"the rows that it takes for outliers ({named}), it ends at another mode, with {other.evidence:.2f}. The fit "
        "has the moments of the first alone: sample by several chains of pm.sample, or give a prior that excludes a "
        "mode."
    )
