"""Nested EP, whole: a ladder of schemes for its fixed point, and the derivatives of the evidence there."""

import numpy as np
from numba import carray

from pymc_gpep.kernels.accelerated_ep import accelerated_ep
from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.coupled import evidence_gradient
from pymc_gpep.kernels.energy_descent import energy_descent
from pymc_gpep.kernels.entry import Entry
from pymc_gpep.kernels.inner_ep import inner_ep_update
from pymc_gpep.kernels.site_posterior import site_posterior
from pymc_gpep.kernels.status import CONVERGED, NOT_FINITE, NOT_POSITIVE_DEFINITE

__all__ = ["nested_ep"]

_PATIENCE = 40  # sweeps without progress before the next rung
_SMALL = 0.3  # mixing and damping of the second rung, in units of the first one's


@kernel
def _all_finite(pointer, size):
    total = 0.0
    for value in carray(pointer, (size,)):
        total += 0.0 * value
    return total == 0.0


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


def _nested_ep(
    matrices, c, n, k_, prior_mean_, y_, sites_, options_, wanted,
    evidence_, gradient_, gradient_mean_, weights_, mean_, cov_, precision_, history_, max_iterations, outcome_,
):  # fmt: skip
    k = carray(k_, (matrices, n, n))
    prior_mean = carray(prior_mean_, (c, n))
    sites = carray(sites_, (2, n, c - 1))
    options = carray(options_, (6,))
    history = carray(history_, (max_iterations, 2))
    b = carray(weights_, (c, n))
    pi = carray(precision_, (c, n))
    inverses = np.empty((c, n, n))
    work = np.empty((c, n, n))
    p = np.empty((n, n))
    problem = (k, prior_mean, carray(y_, (n,)))
    space = (pi, np.empty((c, n)), inverses, p, work, b, carray(mean_, (c, n)), carray(cov_, (n, c, c)))
    tolerance, max_inner, memory, mixing, damping = options[0], int(options[1]), int(options[2]), options[3], options[4]
    ladder = options[5] != 0.0
    # The ladder: accelerated EP, the same with small steps, descent on the energy, each from where the last one ended.
    sweeps = 0
    rung = 0
    evidence = np.nan
    status = NOT_FINITE
    finite = _all_finite(k_, matrices * n * n) and _all_finite(prior_mean_, c * n) and _all_finite(sites_, sites.size)
    while finite:
        if rung < 2:
            size = 1.0 if rung == 0 else _SMALL
            patience = _PATIENCE if ladder else max_iterations
            evidence, status, more = accelerated_ep(
                _sweep, (max_inner, tolerance), problem, sites, space, tolerance, memory, size * mixing, size * damping,
                patience, history[sweeps:],
            )  # fmt: skip
        else:
            evidence, status, more = energy_descent(problem, sites, space, tolerance, damping, history[sweeps:])
        sweeps += more
        if status in (CONVERGED, NOT_POSITIVE_DEFINITE) or rung == 2 or not ladder or sweeps == max_iterations:
            break
        if status == NOT_FINITE:
            sites[:] = 0.0
        rung += 1
    if wanted != 0 and status == CONVERGED:
        evidence_gradient(inverses, p, pi, b, work[0], carray(gradient_, (matrices, n, n)))
        carray(gradient_mean_, (c, n))[:] = b
    carray(evidence_, (1,))[0] = evidence
    outcome = carray(outcome_, (3,))
    outcome[0] = status
    outcome[1] = sweeps
    outcome[2] = rung


nested_ep = Entry(_nested_ep)
"""Nested EP.

Its sites are α and β (2, n, c − 1); its options are tolerance, limit on inner sweeps, memory, mixing, damping, and
whether to climb the ladder.
"""
