"""The fixed-point iteration of nested EP: parallel outer updates, inner EP at every point, Anderson acceleration."""

import numpy as np

from pymc_gpep.kernels.anderson import accelerated_step, weighted_norm
from pymc_gpep.kernels.compile import inlined_kernel
from pymc_gpep.kernels.inner_ep import inner_ep_update
from pymc_gpep.kernels.site_posterior import site_posterior
from pymc_gpep.kernels.status import CONVERGED, NOT_FINITE, NOT_POSITIVE_DEFINITE, OUT_OF_ITERATIONS

__all__ = ["accelerated_ep"]

_WARM_UP = 2  # damped sweeps before the first acceleration: the first steps are too nonlinear to extrapolate
_GROWTH = 2.0  # a residual this much above the smallest one means the extrapolation has gone astray
_PROGRESS = 0.7  # a residual this much below the smallest one counts as progress


@inlined_kernel
def accelerated_ep(problem, sites, space, tolerance, max_inner, memory, mixing, damping, patience, history):
    """Iterate from `sites` (2, n, c − 1), which are overwritten, until converged or without progress for `patience`.

    Damped for the first sweeps, then accelerated, and starting afresh from a damped step whenever the residual grows.
    `history` (limit, 2) receives evidence and residual. Returns evidence, status and the number of sweeps.
    """
    _, _, y = problem
    mean, cov = space[6], space[7]
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
    sweep = 0
    progress = 0
    evidence = np.nan
    while sweep < history.shape[0] and sweep - progress < patience:
        ok, gaussian = site_posterior(problem, sites, space)
        if not ok:
            return np.nan, NOT_POSITIVE_DEFINITE, sweep
        terms, residual = inner_ep_update(
            mean, cov, y, sites[0], sites[1], max_inner, tolerance, target[0], target[1], variance
        )
        change = abs(gaussian + terms - evidence)
        evidence = gaussian + terms
        history[sweep, 0] = evidence
        history[sweep, 1] = residual
        sweep += 1
        if residual < tolerance and change < tolerance * (1.0 + abs(evidence)):
            return evidence, CONVERGED, sweep
        if not np.isfinite(evidence + residual):
            return np.nan, NOT_FINITE, sweep
        if residual < _PROGRESS * best_residual:
            best_residual = residual
            progress = sweep
        for i in range(2 * half):
            f[i] = new_x[i] - x[i]
            weight[i] = v[i] * v[i] if i < half else v[i - half]
        norm = weighted_norm(weight, f)
        if norm > _GROWTH * smallest:
            stored = 0
            smallest = norm
        elif sweep > _WARM_UP + 1 and memory > 0:
            slot = stored % memory
            for i in range(2 * half):
                dx[slot, i] = x[i] - old_x[i]
                df[slot, i] = f[i] - old_f[i]
            stored += 1
        smallest = min(smallest, norm)
        if stored > 0:
            accelerated_step(weight, f, dx, df, min(stored, memory), mixing, step)
        for i in range(2 * half):
            old_x[i] = x[i]
            old_f[i] = f[i]
            # A site's precision lies in [0, 1); where acceleration leaves that, the plain step does not.
            new = x[i] + step[i]
            accelerated = stored > 0 and (i >= half or (new >= 0.0 and new < 1.0))
            x[i] = new if accelerated else x[i] + damping * f[i]
    return evidence, OUT_OF_ITERATIONS, sweep
