"""Nested EP, whole: a ladder of schemes for its fixed point, and the derivatives of the evidence there."""

from collections.abc import Callable
from typing import Any

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.status import NOT_FINITE, OUT_OF_DIGITS, OUT_OF_ITERATIONS
from pymc_gpep.solvers.accelerated_ep import Steps, accelerated_ep
from pymc_gpep.solvers.energy_descent import energy_descent
from pymc_gpep.solvers.problem import Found, History, Problem
from pymc_gpep.solvers.single_precision import SinglePrecision
from pymc_gpep.solvers.site_posterior import SitePosterior, derivatives, site_posterior, site_posterior_space

__all__ = ["SCHEMES", "nested_ep"]

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
