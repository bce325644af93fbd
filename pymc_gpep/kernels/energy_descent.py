"""EP that cannot cycle: descent on its free energy, with plain EP steps wherever they do no harm.

With sites exp(β g − α g²/2) for the n(c − 1) factors Φ(g), EP's fixed points are the stationary points of

    F = KL(q ‖ prior) + Σ E_r[log r − log Φ] + Σ ½ log(2πe z)

over Gaussians q with marginals N(μ, z) and densities r with the same two moments; there F = −log Z (Heskes and Zoeter
2002; Opper and Winther 2005). The best r given the moments is Φ(g) exp(b g − a g²/2) for one cavity (a, b), which a
scalar root gives, so F is a plain function of the sites, bounded below by zero. The step α ← α + t (1/z − a − α),
β ← β + t (μ/z − b − β) is its natural gradient: downhill for small t, and α stays non-negative for t ≤ 1.

An ordinary damped EP step is taken where it brings the residual to a new low or the energy down; else the safe step,
halved until the energy falls. The energy and the best residual cannot fall for ever, so some limit point of the
iteration is a fixed point, until rounding takes over: then EP steps are taken as they come, with ever more damping.
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import inlined_kernel, kernel
from pymc_gpep.kernels.inner_ep import flat_moments, matched_site
from pymc_gpep.kernels.lapack import copy_into
from pymc_gpep.kernels.normal import LOG_2PI, probit_moments
from pymc_gpep.kernels.site_posterior import site_posterior
from pymc_gpep.kernels.status import CONVERGED, NOT_FINITE, NOT_POSITIVE_DEFINITE, OUT_OF_ITERATIONS

__all__ = ["energy_descent", "matching_cavity"]

_BISECTIONS = 90
_ARMIJO = 1e-4


@kernel
def _cavity_at(z, variance):
    """Mean and 1/a of the tilted distribution of given variance whose cavity mean over √(1 + variance) is z."""
    _, h, _, truncated = probit_moments(z)
    rest = h + z if z > -5.0 else (1.0 - truncated) / h
    half = 1.0 - variance
    root = math.sqrt(half * half + 4.0 * truncated * variance)
    w = 2.0 * variance / (half + root) if half >= 0.0 else (root - half) / (2.0 * truncated)
    return (z + w * rest) / math.sqrt(1.0 + w), w


@kernel
def matching_cavity(mean, variance):
    """Natural parameters (a, b) of the cavity whose tilted distribution with Φ has these moments.

    Where there is none, a = 0 and b < 0: the best there is has less variance.
    """
    spread = math.sqrt(mean * mean + 4.0)
    limit = -2.0 / (mean + spread) if mean > 0.0 else 0.5 * (mean - spread)
    if variance >= (1.0 + 1.0 / (limit * limit)) * (1.0 - 1e-10):
        return 0.0, limit
    low, high = -1e6, max(mean, 0.0) + 40.0
    for _ in range(_BISECTIONS):
        z = 0.5 * (low + high)
        if _cavity_at(z, variance)[0] < mean:
            low = z
        else:
            high = z
    z = 0.5 * (low + high)
    _, w = _cavity_at(z, variance)
    return 1.0 / w, z * math.sqrt(1.0 + w) / w


@kernel
def _tilted_log_normaliser(a, b):
    """log ∫ Φ(g) exp(b g − a g²/2) dg, for a > 0 or b < 0."""
    if a == 0.0:
        return 0.5 * b * b - math.log(-b)
    w = 1.0 / a
    return probit_moments(b * w / math.sqrt(1.0 + w))[0] + 0.5 * b * b * w + 0.5 * (LOG_2PI + math.log(w))


@kernel
def _evaluate(problem, sites, space, moments, cavities, target):
    """Marginals of g, matching cavities and EP's new sites, each (2, n, c − 1).

    Returns success, the energy, −log Z as EP has it at these sites, and the residual of EP.
    """
    _, _, y = problem
    ok, gaussian = site_posterior(problem, sites, space)
    if not ok:
        return False, np.nan, np.nan, np.nan
    flat_moments(space[6], space[7], y, sites, moments)
    _, n, others = sites.shape
    energy = -gaussian
    negative_evidence = -gaussian
    residual = 0.0
    for i in range(n):
        for j in range(others):
            alpha, beta = sites[0, i, j], sites[1, i, j]
            mu, z = moments[0, i, j], moments[1, i, j]
            a, b = matching_cavity(mu, z)
            cavities[0, i, j] = a
            cavities[1, i, j] = b
            energy += (beta + b) * mu - 0.5 * (alpha + a) * (z + mu * mu) + 0.5 * (LOG_2PI + 1.0 + math.log(z))
            energy -= _tilted_log_normaliser(a, b)
            keep = 1.0 - alpha * z
            cavity_mean, cavity_variance = (mu - beta * z) / keep, z / keep
            log_z, target[0, i, j], target[1, i, j] = matched_site(cavity_mean, cavity_variance)
            negative_evidence -= log_z - 0.5 * math.log(keep)
            negative_evidence += 0.5 * (mu * mu / z - cavity_mean * cavity_mean / cavity_variance)
            residual = max(residual, abs(target[0, i, j] - alpha) * z, abs(target[1, i, j] - beta) * math.sqrt(z))
    return True, energy, negative_evidence, residual


@inlined_kernel
def energy_descent(problem, sites, space, tolerance, damping, history):
    """Go down from `sites` (2, n, c − 1), which are overwritten. Returns evidence, status and posteriors.

    `space` is left at the sites returned.
    """
    shape = sites.shape
    moments, cavities, target = np.empty(shape), np.empty(shape), np.empty(shape)
    trial_moments, trial_cavities, trial_target = np.empty(shape), np.empty(shape), np.empty(shape)
    trial = np.empty(shape)
    flat, flat_trial = sites.reshape(sites.size), trial.reshape(sites.size)
    sweep = 0
    ok, energy, cost, residual = _evaluate(problem, sites, space, moments, cavities, target)
    if not ok:
        return np.nan, NOT_POSITIVE_DEFINITE, sweep
    if not np.isfinite(energy + cost + residual):
        return np.nan, NOT_FINITE, sweep
    best = residual
    step = 0.25
    last = np.inf
    while sweep < history.shape[0]:
        history[sweep, 0] = -cost
        history[sweep, 1] = residual
        sweep += 1
        if residual < tolerance and abs(cost - last) < tolerance * (1.0 + abs(cost)):
            # The space may hold a trial that was turned down.
            site_posterior(problem, sites, space)
            return -cost, CONVERGED, sweep
        last = cost
        rounding = 1e-11 * (1.0 + abs(energy)) * math.sqrt(sites.size)
        goal = target.reshape(sites.size)
        for i in range(sites.size):
            flat_trial[i] = flat[i] + damping * (goal[i] - flat[i])
        ok, new_energy, new_cost, new_residual = _evaluate(
            problem, trial, space, trial_moments, trial_cavities, trial_target
        )
        ok = ok and np.isfinite(new_energy + new_cost + new_residual)
        fall = energy - new_energy
        lost_in_rounding = ok and residual < 1e-3 and abs(fall) <= rounding
        taken = ok and (lost_in_rounding or new_residual <= 0.9 * best or fall >= _ARMIJO * residual * residual)
        if not taken:
            step = min(1.0, 4.0 * step)
        while not taken and sweep < history.shape[0]:
            predicted = 0.0
            _safe_step(sites, moments, cavities, step, trial)
            ok, new_energy, new_cost, new_residual = _evaluate(
                problem, trial, space, trial_moments, trial_cavities, trial_target
            )
            ok = ok and np.isfinite(new_energy + new_cost + new_residual)
            if ok:
                predicted = _first_order(sites, moments, cavities, trial_moments)
            taken = ok and new_energy <= energy + _ARMIJO * min(predicted, 0.0) + (rounding if step < 1e-6 else 0.0)
            if not taken:
                step *= 0.5
                history[sweep, 0] = -cost
                history[sweep, 1] = residual
                sweep += 1
                if step < 1e-12:
                    return -cost, OUT_OF_ITERATIONS, sweep
        if not taken:
            break
        if lost_in_rounding and new_residual > residual:
            damping = max(0.5 * damping, 0.05)
        copy_into(sites, trial)
        copy_into(moments, trial_moments)
        copy_into(cavities, trial_cavities)
        copy_into(target, trial_target)
        energy, cost, residual = new_energy, new_cost, new_residual
        best = min(best, residual)
    site_posterior(problem, sites, space)
    return -cost, OUT_OF_ITERATIONS, sweep


@kernel
def _safe_step(sites, moments, cavities, step, trial):
    """Go by `step` towards the sites that the matching cavities leave over."""
    _, n, others = sites.shape
    for i in range(n):
        for j in range(others):
            z = moments[1, i, j]
            alpha = 1.0 / z - cavities[0, i, j]
            beta = moments[0, i, j] / z - cavities[1, i, j]
            trial[0, i, j] = max(0.0, sites[0, i, j] + step * (alpha - sites[0, i, j]))
            trial[1, i, j] = sites[1, i, j] + step * (beta - sites[1, i, j])


@kernel
def _first_order(sites, moments, cavities, trial_moments):
    """Change of the energy to first order in the marginal moments.

    dF/dμ = (β + b) − (α + a) μ and dF/dz = ½ (1/z − α − a).
    """
    _, n, others = sites.shape
    total = 0.0
    for i in range(n):
        for j in range(others):
            alpha, beta = sites[0, i, j] + cavities[0, i, j], sites[1, i, j] + cavities[1, i, j]
            mu, z = moments[0, i, j], moments[1, i, j]
            total += (beta - alpha * mu) * (trial_moments[0, i, j] - mu)
            total += 0.5 * (1.0 / z - alpha) * (trial_moments[1, i, j] - z)
    return total
