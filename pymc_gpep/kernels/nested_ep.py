"""Nested EP, whole: a ladder of schemes for its fixed point, and the derivatives of the evidence there."""

import numpy as np
from numba import carray

from pymc_gpep.kernels.accelerated_ep import accelerated_ep
from pymc_gpep.kernels.blas_threads import limit_blas_threads, restore_blas_threads
from pymc_gpep.kernels.compile import inlined_kernel, kernel
from pymc_gpep.kernels.energy_descent import energy_descent
from pymc_gpep.kernels.entry import Entry
from pymc_gpep.kernels.inner_ep import inner_ep_update
from pymc_gpep.kernels.problem import add_to_all, read_problem, report
from pymc_gpep.kernels.site_posterior import posterior_space, site_posterior, write_derivatives
from pymc_gpep.kernels.status import (
    CONVERGED,
    NOT_FINITE,
    OUT_OF_DIGITS,
    OUT_OF_ITERATIONS,
)

__all__ = ["descent", "nested_ep"]

_PATIENCE = 40  # sweeps without progress before the next rung
_SMALL = 0.3  # mixing and damping of the second rung, in units of the first one's
# Rounding keeps residuals below this part of the trace of the prior covariance from falling further; where they still
# are smaller than the other number, the prior variance is not to blame.
_ROUNDING, _NEGLIGIBLE = 2e-15, 1e-9


@kernel
def _sweep(settings, problem, sites, space, target, scale):
    max_inner, tolerance = settings
    ok, gaussian = site_posterior(problem, sites, space)
    if not ok:
        return False, np.nan, np.nan
    terms, residual = inner_ep_update(
        space[6], space[7], problem[2], sites[0], sites[1], max_inner, tolerance, target[0], target[1], scale
    )
    return True, gaussian + terms, residual


def _descent(
    matrices, c, n, k_, prior_mean_, y_, sites_, options_, wanted,
    evidence_, gradient_, gradient_mean_, weights_, mean_, cov_, precision_, history_, max_iterations, outcome_,
):  # fmt: skip
    options = carray(options_, (6,))
    sites = carray(sites_, (2, n, c - 1))
    _, problem, common = read_problem(matrices, c, n, k_, prior_mean_, y_, sites_, sites.size)
    space = posterior_space(c, n, weights_, mean_, cov_, precision_)
    evidence, status, sweeps = energy_descent(
        problem, sites, space, options[0], options[3], carray(history_, (max_iterations, 2))
    )
    add_to_all(space[6], common)
    if wanted != 0 and status == CONVERGED:
        write_derivatives(matrices, space, gradient_, gradient_mean_)
    report(evidence_, outcome_, evidence, status, sweeps, 0)


descent = Entry(_descent, late=True)
"""The last rung alone, a solver like any other. It is seldom wanted, so it is not compiled before it is."""


@inlined_kernel
def _accelerated(
    matrices, c, n, k_, prior_mean_, y_, sites_, options_, wanted,
    evidence_, gradient_, gradient_mean_, weights_, mean_, cov_, precision_, history_, max_iterations, outcome_,
):  # fmt: skip
    """The first two rungs, accelerated EP and the same with small steps."""
    options = carray(options_, (6,))
    tolerance, memory, mixing, damping = options[0], int(options[1]), options[2], options[3]
    ladder, max_inner = options[4] != 0.0, int(options[5])
    sites = carray(sites_, (2, n, c - 1))
    history = carray(history_, (max_iterations, 2))
    status, problem, common = read_problem(matrices, c, n, k_, prior_mean_, y_, sites_, sites.size)
    space = posterior_space(c, n, weights_, mean_, cov_, precision_)
    evidence = np.nan
    sweeps = 0
    rung = 0
    rounding = 0.0
    for a in range(matrices):
        rounding = max(rounding, _ROUNDING * np.trace(problem[0][a]))
    sound = status == CONVERGED
    while sound and rung < 2:
        size = 1.0 if rung == 0 else _SMALL
        patience = _PATIENCE if ladder else max_iterations
        evidence, status, more = accelerated_ep(
            _sweep, (max_inner, tolerance), problem, sites, space, tolerance, memory, size * mixing, size * damping,
            patience, history[sweeps:],
        )  # fmt: skip
        sweeps += more
        stuck = status in (OUT_OF_ITERATIONS, NOT_FINITE)
        if not (ladder and stuck) or sweeps == max_iterations:
            break
        if rung == 1 and status == OUT_OF_ITERATIONS and _NEGLIGIBLE < rounding > history[:sweeps, 1].min():
            status = OUT_OF_DIGITS
            break
        if status == NOT_FINITE:
            sites[:] = 0.0
        rung += 1
    add_to_all(space[6], common)
    if wanted != 0 and status == CONVERGED:
        write_derivatives(matrices, space, gradient_, gradient_mean_)
    report(evidence_, outcome_, evidence, status, sweeps, rung)


def _nested_ep(
    matrices, c, n, k_, prior_mean_, y_, sites_, options_, wanted,
    evidence_, gradient_, gradient_mean_, weights_, mean_, cov_, precision_, history_, max_iterations, outcome_,
):  # fmt: skip
    threads = limit_blas_threads(n)
    _accelerated(
        matrices, c, n, k_, prior_mean_, y_, sites_, options_, wanted,
        evidence_, gradient_, gradient_mean_, weights_, mean_, cov_, precision_, history_, max_iterations, outcome_,
    )  # fmt: skip
    outcome = carray(outcome_, (3,))
    if outcome[2] == 2:
        sweeps = outcome[1]
        rest = carray(history_, (max_iterations, 2))[sweeps:]
        descend(
            matrices, c, n, k_, prior_mean_, y_, sites_, options_, wanted,
            evidence_, gradient_, gradient_mean_, weights_, mean_, cov_, precision_,
            rest.ctypes, max_iterations - sweeps, outcome_,
        )  # fmt: skip
        outcome[1] += sweeps
        outcome[2] = 2
    restore_blas_threads(threads)


descend = descent.external
nested_ep = Entry(_nested_ep, calls=(descent,))
"""Nested EP.

Its sites are α and β (2, n, c − 1); its options are tolerance, memory, mixing, damping, whether to climb the
ladder, and the limit on inner sweeps. The ladder: accelerated EP, the same with small steps, descent on the energy,
each from where the last one ended.
"""
