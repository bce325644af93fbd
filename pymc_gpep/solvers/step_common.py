"""The function that a likelihood of differences does not see, solved for at each step on arrays.

See `pymc_gpep.streaming.common_shift`, which has the same as a graph. Functions that share their features have these as
test functions. Then R and Q there follow from S. Else some features of each function are test functions.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from scipy.linalg.blas import dgemm, dsyrk

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.gaussians.coupled import mirror
from pymc_gpep.solvers.step_algebra import StepFeatures, StepPosterior, solved


class CommonSites(Protocol):
    """Sums over all sites that say which function common to all is missing: averages of batches, as S and h are."""

    def shift(self, q: StepPosterior) -> Array:
        """Move sites with that function, and return what becomes of g (r,). Nothing that is remembered changes."""

    def average(self, shifted: Array, features: Sequence[StepFeatures], t: Array, mean: Array, beta: float) -> None:
        """Remember a batch in the part β, by Σ t (B, c) and the means (B, c) that sites saw."""


class SameFeatures:
    """Functions that have their features in common.

    Parameters
    ----------
    location : array (M,)
        g, which is overwritten.
    """

    def __init__(self, location: Array) -> None:
        self._location = location

    def shift(self, q: StepPosterior) -> Array:
        return q.shift(self._location)

    def average(self, shifted: Array, features: Sequence[StepFeatures], t: Array, mean: Array, beta: float) -> None:
        (only,) = features
        self._location[:] = shifted + beta * (only.w.T @ (t * mean).sum(axis=1) - shifted)


class OwnFeatures:
    """Functions in several groups.

    Parameters
    ----------
    location : array (r,)
        g.
    cross : array (c, r, M)
        R.
    precision : array (r, r)
        Q. All three are overwritten.
    """

    def __init__(self, location: Array, cross: Array, precision: Array) -> None:
        self._location, self._cross, self._precision = location, cross, precision

    def shift(self, q: StepPosterior) -> Array:
        system = self._precision.copy()
        for half in q.halves(self._cross):
            dsyrk(-1.0, half, beta=1.0, c=system.T, trans=1, lower=0, overwrite_c=1)
        missing = sum(own @ mean for own, mean in zip(self._cross, q.mean, strict=True)) - self._location
        weights = solved(system, missing)
        if weights is None:
            return self._location.copy()
        q.move(weights @ self._cross)
        moved: Array = self._location + self._precision @ weights
        return moved

    def average(self, shifted: Array, features: Sequence[StepFeatures], t: Array, mean: Array, beta: float) -> None:
        tests = self._tests(features)
        self._location[:] = shifted + beta * (tests.T @ (t * mean).sum(axis=1) - shifted)
        weighted = tests * t.sum(axis=1)[:, None]
        dgemm(beta, weighted.T, tests.T, trans_b=1, beta=1.0 - beta, c=self._precision.T, overwrite_c=1)
        mirror(self._precision)
        for each in features:
            for k in each.group.functions:
                weighted = each.w * t[:, k, None]
                dgemm(beta, weighted.T, tests.T, trans_b=1, beta=1.0 - beta, c=self._cross[k].T, overwrite_c=1)

    def _tests(self, features: Sequence[StepFeatures]) -> Array:
        """Test functions φ (B, r): some features of each function, about as many in all as one has."""
        c, size = len(self._cross), self._cross.shape[2]
        part = self._cross.shape[1] // c
        of = {k: each.w for each in features for k in each.group.functions}
        starts = [min(k * part, size - part) for k in range(c)]
        return np.concatenate([of[k][:, start : start + part] for k, start in enumerate(starts)], axis=1)
