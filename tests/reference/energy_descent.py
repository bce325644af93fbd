r"""EP that cannot cycle: descent on the free energy of `flat_energy`, by plain EP steps if they make progress.

Gradient. Write (mu, z) for the marginal moments of q and (a, b) for the cavity that matches them. Since KL(q || prior)
at given marginals has derivatives beta - alpha mu and -alpha / 2, and psi has b - a mu and -a / 2,

    dF/dmu = (beta + b) - (alpha + a) mu,        dF/dz = (1/z - alpha - a) / 2.

Safe step. Go towards alpha_new = 1/z - a, beta_new = mu/z - b: the site that the matching cavity leaves over. Along
it d mu = -Sigma dF/dmu and d z = -2 (Sigma o Sigma) dF/dz, both products positive semidefinite, so

    dF = -(dF/dmu)' Sigma (dF/dmu) - 2 (dF/dz)' (Sigma o Sigma) (dF/dz),

which is negative except at a fixed point of EP. It is the natural gradient of F. Tilted variances never exceed cavity
variances, hence z <= 1/a and alpha_new >= 0: any step length in (0, 1] keeps the precisions non-negative.

Algorithm. With r the residual (`residual` below) and r_best its smallest value so far:
1. Try the damped parallel EP step. Take it if its r is at most 0.9 r_best, or if F falls by 1e-4 r^2 at least.
2. Otherwise take the safe step, halved until F falls by 1e-4 of the first-order prediction.
Every step costs one posterior; F needs one scalar root per factor besides.

Guarantee. F >= 0. Infinitely many steps of kind 1 that lower F drive r to zero, and so do infinitely many steps that
lower r_best. If all steps from some point on are of kind 2, Armijo's rule makes every limit point stationary. In each
case the iterates have a limit point that is a fixed point of EP. Rounding limits this guarantee: once changes of F are
lost in rounding, all EP steps are accepted, with a damping that is halved whenever the residual rises.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tests.reference.flat_energy import Energy, Factors, energy, factors, tilted

__all__ = ["Descent", "energy_descent", "parallel_ep_trace"]

Array = NDArray[np.float64]


class Descent(NamedTuple):
    """A fixed point that descent has reached.

    Attributes
    ----------
    evidence : float
        -F.
    alpha, beta : ndarray, shape (n, c - 1)
        Site parameters.
    energies : list of float
        F after every step.
    residual : float
        See `energy_descent`.
    safe_steps, posteriors : int
        Natural-gradient steps taken, and posteriors computed in all.
    """

    evidence: float
    alpha: Array
    beta: Array
    energies: list[float]
    residual: float
    safe_steps: int
    posteriors: int


def _moment_match(alpha: Array, beta: Array, point: Energy) -> tuple[Array, Array, float]:
    """EP's undamped change of the sites, and the residual: tilted minus marginal moments, in marginal units."""
    mean, variance, _ = point.q
    tilted_mean, tilted_variance, _ = tilted(1.0 / variance - alpha, mean / variance - beta)
    residual = max(
        float(np.max(np.abs(tilted_mean - mean) / np.sqrt(variance))),
        float(np.max(np.abs(tilted_variance / variance - 1.0))),
    )
    return 1.0 / tilted_variance - 1.0 / variance, tilted_mean / tilted_variance - mean / variance, residual


def energy_descent(
    K: ArrayLike,
    y: ArrayLike,
    m: ArrayLike | None = None,
    *,
    c: int | None = None,
    damping: float = 0.5,
    tolerance: float = 1e-9,
    max_steps: int = 2000,
    ep_steps: bool = True,
) -> Descent:
    """Minimise the free energy from zero sites.

    Parameters
    ----------
    K, y, m, c
        As in `flat_ep.flat_model`.
    damping : float
        Step length of the EP proposals.
    tolerance : float
        Stop when tilted means and variances differ from the marginal ones by less than this, relative to the
        marginal standard deviation and variance.
    max_steps : int
        Steps before giving up.
    ep_steps : bool
        Without EP proposals every step is a safe step, until F equals its minimum up to rounding.

    Returns
    -------
    Descent

    Raises
    ------
    ArithmeticError
        If the residual is still above `tolerance`.
    """
    prior: Factors = factors(K, y, m, c=c)
    size = prior.h.size
    alpha, beta = np.zeros(size), np.zeros(size)
    point = energy(prior, alpha, beta)
    ep_alpha, ep_beta, residual = _moment_match(alpha, beta, point)
    best, energies, safe_steps, posteriors, step = residual, [point.value], 0, 1, 0.25
    for _ in range(max_steps):
        if residual <= tolerance:
            break
        rounding = 1e-11 * (1.0 + abs(point.value)) * float(np.sqrt(size))
        new_alpha, new_beta = alpha + damping * ep_alpha, beta + damping * ep_beta
        candidate = energy(prior, new_alpha, new_beta)
        posteriors += 1
        fall = point.value - candidate.value
        improved = _moment_match(new_alpha, new_beta, candidate)[2] <= 0.9 * best
        at_the_end = residual < 1e-3 and abs(fall) <= rounding
        if not (at_the_end or (ep_steps and (improved or fall >= 1e-4 * residual**2))):
            (mean, variance, _), a, b = point.q, point.a, point.b
            slope_mean = (beta + b) - (alpha + a) * mean
            slope_variance = 0.5 * (1.0 / variance - alpha - a)
            step = min(1.0, 4.0 * step)
            while True:
                new_alpha = alpha + step * (1.0 / variance - a - alpha)
                new_beta = beta + step * (mean / variance - b - beta)
                candidate = energy(prior, new_alpha, new_beta)
                posteriors += 1
                predicted = slope_mean @ (candidate.q.mean - mean)
                predicted += slope_variance @ (candidate.q.variance - variance)
                if candidate.value <= point.value + 1e-4 * min(float(predicted), 0.0) + (
                    rounding if step < 1e-6 else 0.0
                ):
                    break
                step *= 0.5
            safe_steps += 1
        alpha, beta, point = new_alpha, new_beta, candidate
        previous = residual
        ep_alpha, ep_beta, residual = _moment_match(alpha, beta, point)
        best = min(best, residual)
        if at_the_end and residual > previous:
            damping = max(0.5 * damping, 0.05)
        energies.append(point.value)
    if residual > tolerance:
        raise ArithmeticError(f"no fixed point in {max_steps} steps: the residual is {residual:.2e}")
    n = np.size(y)
    return Descent(-point.value, alpha.reshape(n, -1), beta.reshape(n, -1), energies, residual, safe_steps, posteriors)


def parallel_ep_trace(
    K: ArrayLike, y: ArrayLike, m: ArrayLike | None = None, *, c: int | None = None, damping: float, sweeps: int
) -> Array:
    """Residuals of plain damped parallel EP from zero sites. They show whether it converges.

    Parameters
    ----------
    K, y, m, c
        As in `flat_ep.flat_model`.
    damping : float
        Step length.
    sweeps : int
        Number of sweeps.

    Returns
    -------
    ndarray, shape (sweeps,)
    """
    prior = factors(K, y, m, c=c)
    alpha, beta = np.zeros(prior.h.size), np.zeros(prior.h.size)
    trace = []
    for _ in range(sweeps):
        step_alpha, step_beta, residual = _moment_match(alpha, beta, energy(prior, alpha, beta))
        alpha, beta = alpha + damping * step_alpha, beta + damping * step_beta
        trace.append(residual)
    return np.array(trace)
