"""EP that cannot cycle: descent on the free energy of `flat_energy`, by plain EP steps if they make progress.

Gradient: q has the marginals N(μ, z), and (a, b) is the cavity whose tilted distribution has the same moments. At given
marginals, KL(q ‖ prior) has the derivatives β − αμ in μ and −α / 2 in z. The function ψ of `flat_energy` has the
derivatives b − aμ and −a / 2. So

    dF/dμ = (β + b) − (α + a) μ,        dF/dz = (1/z − α − a) / 2.

Safe step: move towards α_new = 1/z − a and β_new = μ/z − b, the site that follows from the matching cavity. Along this
direction dμ = −Σ dF/dμ and dz = −2 (Σ ∘ Σ) dF/dz, with the covariance Σ of q and the elementwise product ∘. Both
matrices are positive semidefinite, so

    dF = −(dF/dμ)ᵀ Σ (dF/dμ) − 2 (dF/dz)ᵀ (Σ ∘ Σ) (dF/dz),

which is negative except at a fixed point of EP. The direction is the natural gradient of F. Tilted variances are at
most cavity variances, so z ≤ 1/a and α_new ≥ 0. Any step length in (0, 1] therefore keeps the precisions nonnegative.

Algorithm: let r be the residual (`residual` below), and r_best its smallest value in earlier iterations.
1. Try the damped parallel EP step. Accept this step if r is at most 0.9 r_best, or if F decreases by at least 1e-4 r².
2. Otherwise take the safe step. Halve its length until F decreases by 1e-4 of the first-order prediction.
Every step computes one posterior. F also needs the root of a scalar equation for each factor.

Guarantee: F ≥ 0. If infinitely many steps of kind 1 decrease F, r converges to zero. If infinitely many steps decrease
r_best, r_best converges to zero. If all steps after some iteration are of kind 2, Armijo's rule makes every limit point
stationary. In each case the iterates have a limit point that is a fixed point of EP. Rounding limits this guarantee: if
changes of F are below rounding, all EP steps are accepted, and the damping factor is halved if the residual rises.
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
