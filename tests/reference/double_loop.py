"""Double-loop EP: the classical scheme with a proof of convergence, for comparison with `energy_descent`.

Sources: Heskes and Zoeter, UAI 2002; Opper and Winther, JMLR 6 (2005). The notation is defined in `flat_energy`: q is
the Gaussian posterior with marginals N(μ_s, z_s), r_s are tilted densities, and sites are exp(β_s g_s − α_s g_s² / 2).

The terms KL(q ‖ prior) and E_r[log r_s − log Φ] of F(q, r) are convex. The term log(2πe z_s) / 2 is concave in the
moments (E g_s, E g_s²), and is replaced by its tangent at moments (μ_s⁰, z_s⁰). The tangent is linear, with the
coefficients l_s = μ_s⁰ / z_s⁰ and p_s = 1 / z_s⁰. So the bound is convex in (q, r), under the constraint that their
moments are equal.

Inner loop: p and l are fixed. The Lagrange multipliers of the constraints are the parameters of the sites. The dual
function is concave:

    D(α, β) = −log ∫ N(g | h, C) ∏_s exp(β_s g_s − α_s g_s² / 2) dg
              − Σ_s log ∫ Φ(g) exp((l_s − β_s) g − (p_s − α_s) g² / 2) dg.

So the sum of site and cavity is fixed. The cavity has the parameters (p − α, l − β), and differs from the cavity of the
current marginals. Let (m, v) be the tilted moments at this cavity. Then

    dD/dβ = m − μ,    dD/dα = (z + μ² − v − m²) / 2.

The direction of a step is dα = 1/v − 1/z, dβ = (m − μ) / v + dα μ. It is the parallel EP step (1/v − 1/z, m/v − μ/z).
With δ = m − μ, the slope of D along this direction is a sum over factors of

    δ² / v + (z − v − δ²) dα / 2 = δ² (1/v + 1/z) / 2 + (z − v)² / (2 v z) ≥ 0.

The slope remains nonnegative if dα is shortened, for either sign of dα. So dα can be limited such that α ≥ 0 and the
cavity precision p − α is positive. At a fixed point of EP neither limit is active. The limit α ≥ 0 allows E_q g² below
E_r g² in earlier iterations. The limit on the cavity precision is active if no cavity has the moments of q, for example
under vague priors with zero sites. The theory excludes this case, so the scheme starts after a few EP sweeps. Since D
is concave, a step ascends if the slope at its end is not negative.

Outer loop: (p, l) becomes (1/z, μ/z) of the moments at the end of the inner loop. F decreases, or is at a fixed point
of EP.

Guarantee: −D plus the tangents is an upper bound of F that is equal to F at the last moments. So F decreases (up to the
tolerance of the inner loop) and is bounded below, and every limit point is a fixed point of EP. Convergence is linear
and slow.
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
