"""Which sweeps of an iteration may be computed with matrices that have 32 bits a number, in half the time."""

import numpy as np

from pymc_gpep.solvers.problem import Problem

__all__ = ["SinglePrecision"]

_SMALL = 200  # points; below, factorisations take little of the time
_USELESS = 0.03  # error of the sites beyond which too few sweeps are left
_REACH = 3.0  # residual, in units of this error, that the next sweep has to leave for it to gain on the error
_RATE = 0.4  # of the residual that a sweep leaves
_PATIENCE = 3  # sweeps that may pass without a smaller residual


class SinglePrecision:
    """The decision before each sweep whether it may be in single precision.

    The first sweep may from cold alone, since nothing says yet how far from the solution another start is. Once
    residuals are too small no sweep may.

    Rounding changes the sites that match the moments of a posterior by up to ε trace K, in units of their marginals.
    An iteration comes that close to its fixed point, and goes on from there with 64 bits. The final sites and the
    evidence are computed with 64 bits.

    Parameters
    ----------
    problem : Problem
    cold : bool
        Whether the iteration starts from nothing.
    tolerance : float
        Largest residual of a converged iteration.
    exists : bool
        Whether the posterior has matrices in single precision.
    """

    def __init__(self, problem: Problem, cold: bool, tolerance: float, *, exists: bool = True) -> None:
        error = float(np.finfo(np.float32).eps) * float(problem.prior.variances.sum(axis=1).max())
        self._possible = exists and len(problem.labels) >= _SMALL and error < _USELESS
        self.usable = cold and self._possible
        self._enough = max(_REACH * error, tolerance)
        self._smallest = np.inf
        self._patience = _PATIENCE

    def note(self, evidence: float, residual: float) -> None:
        """Note the evidence and the residual of the last sweep, NaN where it failed."""
        self._patience = _PATIENCE if residual < self._smallest else self._patience - 1
        self._smallest = min(residual, self._smallest)
        closer = self._enough < _RATE * residual < np.inf and self._patience > 0
        self._possible &= closer and bool(np.isfinite(evidence))
        self.usable = self._possible
