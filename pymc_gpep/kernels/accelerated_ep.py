"""The fixed-point iteration of EP, parallel, with Anderson acceleration: one for all kinds of sites."""

import numpy as np

from pymc_gpep.kernels.anderson import accelerated_step, weighted_norm
from pymc_gpep.kernels.compile import inlined_kernel
from pymc_gpep.kernels.status import CONVERGED, NOT_FINITE, NOT_POSITIVE_DEFINITE, OUT_OF_ITERATIONS

__all__ = ["accelerated_ep"]

_WARM_UP = 2  # damped sweeps before the first acceleration: the first steps are too nonlinear to extrapolate,
_NEAR = 0.1  # unless the residual is already this small, as it is from the sites of neighbouring hyperparameters
# A squared norm of the residual this much above the smallest one means that the extrapolation has gone astray. Near the
# fixed point, where the iteration is all but linear, it may grow for a sweep and the memory is still worth keeping.
_GROWTH, _GROWTH_NEAR = 2.0, 100.0
_PROGRESS = 0.7  # a residual this much below the smallest one counts as progress


@inlined_kernel
def accelerated_ep(sweep, settings, problem, sites, space, tolerance, memory, mixing, damping, patience, history):
    """Iterate from `sites`, which are overwritten, until converged or without progress for `patience`.

    `sites` (2, n, d) are the precisions and the locations of d scalar sites for each point; all precisions of EP's
    sites for this likelihood lie in [0, 1). `sweep(settings, problem, sites, space, target, scale)` is the kind of EP:
    it computes the posterior that the sites imply, writes the sites that match the tilted moments into `target` and the
    marginal variances of what they act on into `scale` (n, d), and returns success, evidence, and the largest change of
    a site in units of its marginal.

    Damped for the first sweeps, then accelerated, and starting afresh from a damped step whenever the residual grows.
    `history` (limit, 2) receives evidence and residual. Returns evidence, status and the number of sweeps.
    """
    _, n, others = sites.shape
    half = n * others
    target = np.empty((2, n, others))
    variance = np.empty((n, others))
    # The sites as one vector x, its residual f, and the weights that make it free of units.
    x = sites.reshape(2 * half)
    new_x = target.reshape(2 * half)
    v = variance.reshape(half)
    f = np.empty(2 * half)
    weight = np.empty(2 * half)
    old_x = np.empty(2 * half)
    old_f = np.empty(2 * half)
    step = np.empty(2 * half)
    dx = np.empty((memory, 2 * half))
    df = np.empty((memory, 2 * half))
    stored = 0
    smallest = np.inf
    best_residual = np.inf
    last_residual = np.inf
    sweeps = 0
    progress = 0
    evidence = np.nan
    while sweeps < history.shape[0] and sweeps - progress < patience:
        ok, new_evidence, residual = sweep(settings, problem, sites, space, target, variance)
        if not ok:
            return np.nan, NOT_POSITIVE_DEFINITE, sweeps
        change = abs(new_evidence - evidence)
        evidence = new_evidence
        history[sweeps, 0] = evidence
        history[sweeps, 1] = residual
        sweeps += 1
        if residual < tolerance and change < tolerance * (1.0 + abs(evidence)):
            return evidence, CONVERGED, sweeps
        if not np.isfinite(evidence + residual):
            return np.nan, NOT_FINITE, sweeps
        if residual < _PROGRESS * best_residual:
            best_residual = residual
            progress = sweeps
        for i in range(2 * half):
            f[i] = new_x[i] - x[i]
            weight[i] = v[i] * v[i] if i < half else v[i - half]
        norm = weighted_norm(weight, f)
        if norm > (_GROWTH if last_residual > _NEAR else _GROWTH_NEAR) * smallest:
            stored = 0
            smallest = norm
        elif memory > 0 and sweeps > 1 and (sweeps > _WARM_UP + 1 or last_residual < _NEAR):
            slot = stored % memory
            for i in range(2 * half):
                dx[slot, i] = x[i] - old_x[i]
                df[slot, i] = f[i] - old_f[i]
            stored += 1
        smallest = min(smallest, norm)
        last_residual = residual
        if stored > 0:
            accelerated_step(weight, f, dx, df, min(stored, memory), mixing, step)
        for i in range(2 * half):
            old_x[i] = x[i]
            old_f[i] = f[i]
            # A site's precision lies in [0, 1); where acceleration leaves that, the plain step does not.
            new = x[i] + step[i]
            accelerated = stored > 0 and (i >= half or (new >= 0.0 and new < 1.0))
            x[i] = new if accelerated else x[i] + damping * f[i]
    return evidence, OUT_OF_ITERATIONS, sweeps
