"""Ends of the last solves of a problem, so that a sampler's next evaluation starts near its solution.

Samplers evaluate the same graph at one point after another and carry nothing from one to the next but the point. What
is kept here changes how long a solve takes, and its result by no more than the tolerance allows. It is kept for each
process and thread on its own. Chains do not see each other, and a chain in a process of its own begins with nothing.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Hashable

import numpy as np

from pymc_gpep.approximations.neighbours import Neighbours
from pymc_gpep.array_types import Array
from pymc_gpep.solvers.prior_form import PriorForm

_PROBLEMS = 16  # that are remembered at a time
_SOLVES = 48  # of each
_POINTS = 12  # whose prior moments tell one solve from another
_CORRELATION = 3.0  # by so much more than logarithms of variances do correlations count


class RecentSolves:
    """For each problem the ends of its last solves."""

    def __init__(self) -> None:
        self._problems: OrderedDict[Hashable, Neighbours] = OrderedDict()
        self._lock = threading.Lock()

    def near(self, problem: Hashable) -> Neighbours | None:
        """Solves of a problem by this thread; None before the first one."""
        with self._lock:
            return self._problems.get(self._key(problem))

    def add(self, problem: Hashable, place: Array, start: Array) -> None:
        """Remember one more, and forget the problem that was not seen for longest where there are too many."""
        key = self._key(problem)
        with self._lock:
            near = self._problems.pop(key, Neighbours((), ()))
            self._problems[key] = near.joined(place, start, _SOLVES)
            while len(self._problems) > _PROBLEMS:
                self._problems.popitem(last=False)

    def _key(self, problem: Hashable) -> Hashable:
        return os.getpid(), threading.get_ident(), problem


def place_of(prior: PriorForm, mean: Array) -> Array:
    """Numbers that tell prior moments apart, (d,): those of a few points, in units in which solutions vary.

    They are log variances, correlations, and means in standard deviations. A hyperparameter that becomes e times as
    large changes them by a distance of about one.
    """
    n = mean.shape[1]
    chosen = np.unique(np.linspace(0, n - 1, _POINTS).round().astype(int))
    matrices = prior.among(chosen)
    variances = np.diagonal(matrices, axis1=1, axis2=2)
    scales = np.sqrt(variances)
    upper = np.triu_indices(len(chosen), 1)
    parts = (
        np.log(variances),
        _CORRELATION * (matrices / (scales[:, :, None] * scales[:, None]))[:, upper[0], upper[1]],
        mean[:, chosen] / scales,
    )
    return np.concatenate([part.ravel() / np.sqrt(max(part.shape[1], 1)) for part in parts])
