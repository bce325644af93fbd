"""Elliptical slice sampling (Murray, Adams and MacKay 2010): updates of a Gaussian vector without a step size."""

from collections.abc import Callable

import numpy as np

from pymc_gpep.array_types import Array

_NOTHING = 1e-10  # If the bracket of angles is narrower, in radians, the current state is returned.


def elliptical_slice(
    x: Array, direction: Array, log_ratio: Callable[[Array], float], current: float, rng: np.random.Generator
) -> tuple[Array, float, int]:
    """Draw a new x by a transition that leaves the density ∝ N(x; 0, Σ) exp(log_ratio(x)) invariant.

    Points on the ellipse through x and the direction are tried until `log_ratio` exceeds the slice level. Their angles
    are drawn from a bracket that shrinks towards x (figure 2 of the paper).

    Parameters
    ----------
    x : array
        Current state, of any shape, minus the mean of the Gaussian.
    direction : array, shape of x
        A fresh draw from N(0, Σ), independent of x.
    log_ratio : callable
        Log of the density without its Gaussian factor. States with a value of NaN or −∞ are rejected.
    current : float
        Value of `log_ratio` at x.
    rng : Generator

    Returns
    -------
    x : array
        New state; the current state if the bracket becomes too narrow.
    value : float
        `log_ratio` at the new state.
    evaluations : int
        Number of evaluations of `log_ratio`.
    """
    # If the current density is 0, the first state with a positive density is accepted.
    level = current - rng.standard_exponential() if current > -np.inf else -np.inf
    angle = 2.0 * np.pi * rng.random()
    low, high = angle - 2.0 * np.pi, angle
    evaluations = 0
    while high - low > _NOTHING:
        proposal = np.cos(angle) * x + np.sin(angle) * direction
        value = float(log_ratio(proposal))
        evaluations += 1
        if value > level:
            return proposal, value, evaluations
        if angle < 0.0:
            low = angle
        else:
            high = angle
        angle = low + (high - low) * rng.random()
    return x, current, evaluations
