r"""Double-loop EP: the classical provably convergent scheme, for comparison with `energy_descent`.

Sources: Heskes and Zoeter, UAI 2002; Opper and Winther, JMLR 6 (2005). Notation as in `flat_energy`.

In F(q, r) the terms KL(q || prior) and E_r[log r_s - log Phi] are convex, and log(2 pi e z_s) / 2 is concave in the
moments eta_s = (E g_s, E g_s^2). Bound the latter by its tangent at eta_s^0, which has natural parameters
(p_s, l_s) = (1/z_s^0, mu_s^0 / z_s^0): the bound is linear, l_s and p_s are its coefficients, and what is left is a
convex problem in (q, r) under the constraints that their moments agree.

Inner loop, (p, l) fixed. The Lagrange multipliers of the constraints are the site parameters, and the dual is the
concave

    D(alpha, beta) = -log int N(g | h, C) prod_s exp(beta_s g_s - alpha_s g_s^2 / 2) dg
                     - sum_s log int Phi(g) exp((l_s - beta_s) g - (p_s - alpha_s) g^2 / 2) dg.

So the *sum* of site and cavity is fixed: the cavity is (p - alpha, l - beta), not the cavity of the current marginals.
With marginal moments (mu, z) of q and tilted moments (m, v) at that cavity,

    dD/dbeta = m - mu,    dD/dalpha = (z + mu^2 - v - m^2) / 2.

Direction: d_alpha = 1/v - 1/z, d_beta = (m - mu) / v + d_alpha mu, which is the parallel EP step
(1/v - 1/z, m/v - mu/z). With delta = m - mu the slope of D along it is, per factor,

    delta^2 / v + (z - v - delta^2) d_alpha / 2 = delta^2 (1/v + 1/z) / 2 + (z - v)^2 / (2 v z) >= 0,

and it stays non-negative when d_alpha is shortened, in either sign. So d_alpha can be clipped to keep alpha >= 0 and
the cavity precision p - alpha positive. Both constraints are slack at every fixed point of EP; the first lets
E_q g^2 be less than E_r g^2 on the way. (The second is active as long as no cavity reproduces the moments of q, as
with vague priors at zero sites. The theory does not cover this case: start from a few EP sweeps.) Since D is
concave, a step ascends if the slope at its end is not negative.

Outer loop: (p, l) <- (1/z, mu/z) from the moments just matched. F falls, or stays at a fixed point of EP.

Guarantee: -D plus the tangents majorises F, so F falls monotonically (up to the tolerance of the inner solves), is
bounded below, and every limit point is a fixed point of EP. The convergence is linear and slow.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tests.reference.flat_energy import factors, marginals, tilted

__all__ = ["DoubleLoop", "double_loop"]

Array = NDArray[np.float64]

_LARGEST_SHARE = 1.0 - 1e-6  # largest ratio alpha / p


class DoubleLoop(NamedTuple):
    """A fixed point reached by the double loop.

    Attributes
    ----------
    evidence : float
        Minus the last bound.
    alpha, beta : ndarray, shape (n, c - 1)
        Site parameters.
    energies : list of float
        The bound after every outer step; it decreases.
    residual : float
        Largest difference of tilted and marginal moments at the start of the last outer step, in marginal units.
    posteriors : int
        Posteriors computed.
    """

    evidence: float
    alpha: Array
    beta: Array
    energies: list[float]
    residual: float
    posteriors: int


class _Inner(NamedTuple):
    """D, the marginal moments of q and the tilted moments."""

    value: float
    mean: Array
    variance: Array
    tilted_mean: Array
    tilted_variance: Array


def _mismatch(state: _Inner) -> float:
    """Largest difference of tilted and marginal moments, in marginal units."""
    return max(
        float(np.max(np.abs(state.tilted_mean - state.mean) / np.sqrt(state.variance))),
        float(np.max(np.abs(state.tilted_variance / state.variance - 1.0))),
    )


def double_loop(
    K: ArrayLike,
    y: ArrayLike,
    m: ArrayLike | None = None,
    *,
    c: int | None = None,
    start: tuple[Array, Array] | None = None,
    tolerance: float = 1e-6,
    inner_factor: float = 0.1,
    max_outer: int = 3000,
    max_inner: int = 1000,
) -> DoubleLoop:
    """Minimise the free energy by bounding its concave part.

    Parameters
    ----------
    K, y, m, c
        As in `flat_ep.flat_model`.
    start : tuple of ndarray, optional
        alpha and beta to start from, in the shape of the result; zero by default.
    tolerance : float
        Stop when tilted and marginal moments differ by less, in marginal units.
    inner_factor : float
        An inner loop ends when the mismatch is this fraction of the mismatch at its start.
    max_outer, max_inner : int
        Limits of the two loops.

    Returns
    -------
    DoubleLoop

    Raises
    ------
    ArithmeticError
        If the tolerance is not reached.
    """
    prior = factors(K, y, m, c=c)
    size = prior.h.size
    alpha, beta = (np.zeros(size), np.zeros(size)) if start is None else (start[0].ravel(), start[1].ravel())
    q = marginals(prior, alpha, beta)
    p, location = 1.0 / q.variance, q.mean / q.variance
    posteriors, residual = 1, np.inf
    energies: list[float] = []

    def evaluate(alpha: Array, beta: Array) -> _Inner:
        q = marginals(prior, alpha, beta)
        tilted_mean, tilted_variance, log_tilted = tilted(p - alpha, location - beta)
        return _Inner(float(-q.log_normaliser - log_tilted.sum()), q.mean, q.variance, tilted_mean, tilted_variance)

    for _ in range(max_outer):
        state = evaluate(alpha, beta)
        posteriors += 1
        residual = _mismatch(state)
        if residual <= tolerance:
            break
        for _ in range(max_inner):
            d_alpha = 1.0 / state.tilted_variance - 1.0 / state.variance
            d_alpha = np.clip(d_alpha, -alpha, np.maximum(_LARGEST_SHARE * p - alpha, 0.0))
            d_mean = state.tilted_mean - state.mean
            d_beta = d_mean / state.tilted_variance + d_alpha * state.mean
            size_of_step = max(
                float(np.max(np.abs(d_alpha) * state.variance)), float(np.max(np.abs(d_mean) / np.sqrt(state.variance)))
            )
            if size_of_step <= inner_factor * residual:
                break
            moments = state.variance + state.mean**2 - state.tilted_variance - state.tilted_mean**2
            slope = 0.5 * d_alpha @ moments + d_beta @ d_mean
            step = 1.0
            while True:
                new = evaluate(alpha + step * d_alpha, beta + step * d_beta)
                posteriors += 1
                moments = new.variance + new.mean**2 - new.tilted_variance - new.tilted_mean**2
                new_slope = 0.5 * d_alpha @ moments + d_beta @ (new.tilted_mean - new.mean)
                if new_slope >= 0.0 or new.value >= state.value + 1e-4 * step * slope or step < 1e-8:
                    break
                step *= min(max(float(slope / (slope - new_slope)), 0.1), 0.9)
            alpha, beta, state = np.maximum(alpha + step * d_alpha, 0.0), beta + step * d_beta, new
        # the integrals of exp(l g - p g^2 / 2) complete the bound
        energies.append(state.value + float(np.sum(0.5 * location**2 / p + 0.5 * np.log(2.0 * np.pi / p))))
        # If the constraint alpha ≥ 0 is active, the variance is at least the tilted variance.
        z = np.where(alpha > 0.0, state.variance, np.maximum(state.variance, state.tilted_variance))
        p, location = 1.0 / z, state.mean / z
    if residual > tolerance:
        raise ArithmeticError(f"no fixed point in {max_outer} outer steps: the residual is {residual:.2e}")
    n = np.size(y)
    return DoubleLoop(-energies[-1], alpha.reshape(n, -1), beta.reshape(n, -1), energies, residual, posteriors)
