"""Nested EP, whole: a ladder of schemes for its fixed point, and the derivatives of the evidence there."""

from collections.abc import Callable
from typing import Any

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.status import NOT_FINITE, OUT_OF_DIGITS, OUT_OF_ITERATIONS
from pymc_gpep.solvers.accelerated_ep import Steps, accelerated_ep
from pymc_gpep.solvers.energy_descent import energy_descent
from pymc_gpep.solvers.problem import Found, History, Problem
from pymc_gpep.solvers.site_posterior import SitePosterior, derivatives, site_posterior, site_posterior_space

__all__ = ["SCHEMES", "SinglePrecision", "nested_ep"]

SCHEMES = ("accelerated EP", "accelerated EP with small steps", "energy descent")
_PATIENCE = 40  # sweeps without progress before the next rung
_SMALL = 0.3  # mixing and damping of the second rung, in units of the first one's
# Rounding keeps residuals below this part of the trace of the prior covariance from falling further; where they still
# are smaller than the other number, the prior variance is not to blame.
_ROUNDING, _NEGLIGIBLE = 2e-15, 1e-9


def nested_ep(
    problem: Problem,
    start: Array,
    history: History,
    *,
    update: Callable[..., tuple[float, float]],
    energies: Callable[..., tuple[float, float, float]],
    ladder: bool,
    max_inner: int,
    **options: Any,
) -> Found:
    """Iterate from the inner sites α and β in `start` (2n(c − 1),), which are overwritten.

    The ladder: accelerated EP, the same with small steps, descent on the energy, each from where the last one ended.
    `update` and `energies` are the kernels `coupled_update` and `energies` of
    `pymc_gpep.likelihoods.local_computations.DifferenceFactors`; options are those of
    `pymc_gpep.solvers.accelerated_ep.Steps`.
    """
    steps = Steps(**options)
    tolerance = steps.tolerance
    c, n = problem.mean.shape
    sites = start.reshape(2, n, c - 1)
    space = site_posterior_space(problem)
    rounded = space.in_single_precision
    single = SinglePrecision(problem, not sites.any(), tolerance, exists=rounded is not None)

    def compute(space: SitePosterior, sites: Array, target: Array, scale: Array) -> tuple[bool, float, float]:
        ok, gaussian = site_posterior(problem, sites, space)
        if not ok:
            return False, np.nan, np.nan
        terms, residual = update(
            space.mean, space.cov, problem.labels, sites[0], sites[1], max_inner, tolerance, target[0], target[1], scale
        )
        return True, gaussian + terms, residual

    def sweep(sites: Array, target: Array, scale: Array) -> tuple[bool, float, float]:
        if rounded is not None and single.usable:
            ok, evidence, residual = compute(rounded, sites, target, scale)
            single.note(evidence, residual)
            if np.isfinite(evidence) and tolerance <= residual < np.inf:
                return ok, evidence, residual
        ok, evidence, residual = compute(space, sites, target, scale)
        single.note(evidence, residual)
        return ok, evidence, residual

    rounding = _ROUNDING * float(problem.prior.variances.sum(axis=1).max())
    rung = 0
    while True:
        evidence, status = accelerated_ep(
            sweep, sites, history, steps.times(_SMALL) if rung else steps, patience=_PATIENCE if ladder else np.inf
        )
        if not (ladder and status in (OUT_OF_ITERATIONS, NOT_FINITE)) or history.is_full():
            break
        if rung == 1 and status == OUT_OF_ITERATIONS and _NEGLIGIBLE < rounding > history.smallest_residual:
            status = OUT_OF_DIGITS
            break
        if status == NOT_FINITE:
            sites[:] = 0.0
        rung += 1
        if rung == 2:
            evidence, status = energy_descent(
                problem, sites, space, history, energies=energies, tolerance=tolerance, damping=steps.damping
            )
            break
    return Found(evidence, status, space.weights, space.mean, space.cov, space.pi, lambda: derivatives(space), rung)


_FEW = 200  # points; below, factorisations take little of the time
_USELESS = 0.03  # error of the sites beyond which too few sweeps are left
_REACH = 3.0  # residual, in units of this error, that the next sweep has to leave for it to gain on the error
_RATE = 0.4  # of the residual that a sweep leaves
_UNIMPROVED = 3  # sweeps that may pass without a smaller residual


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
        self._possible = exists and len(problem.labels) >= _FEW and error < _USELESS
        self.usable = cold and self._possible
        self._enough = max(_REACH * error, tolerance)
        self._smallest = np.inf
        self._patience = _UNIMPROVED

    def note(self, evidence: float, residual: float) -> None:
        """Note the evidence and the residual of the last sweep, NaN where it failed."""
        self._patience = _UNIMPROVED if residual < self._smallest else self._patience - 1
        self._smallest = min(residual, self._smallest)
        closer = self._enough < _RATE * residual < np.inf and self._patience > 0
        self._possible &= closer and bool(np.isfinite(evidence))
        self.usable = self._possible
