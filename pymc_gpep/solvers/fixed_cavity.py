"""Laplace's approximation and naive TAP: Gaussians with the curvature at the mode under cavities of fixed width.

With the notation of `pymc_gpep.solvers.newton` the posterior is N(f, (K⁻¹ + W)⁻¹), and the evidence

    Σ_i [h_i + ½ D_i b_i² + ½ log(1 + W_i D_i)] − ½ bᵀ(f − m₀) − ½ log|A|

is Laplace's for D = 0, and EP's expression wherever D is. It is stationary in the mean but for the parts with W. Their
derivative is ½ τ_i, where τ_i = D_i / (1 + W_i D_i) − V_ii is the tilted less the posterior variance, 0 at EP's own
widths. With u = (I + WK)⁻¹ (½ τ ∘ ∂W/∂f) the derivatives are

    d/dK = ½ (bbᵀ − B) + ½ (ubᵀ + buᵀ) + Dg(½ τ ∘ ∂W/∂D + (Ku) ∘ ∂b/∂D),   d/dm₀ = b + u,

the last term of the first where D is K_ii, and both its derivatives at fixed f. Likewise a parameter θ_i of Laplace's
log density ℓ has the derivative ∂ℓ/∂θ − ½ τ ∂ℓ″/∂θ + (Ku) ∂ℓ′/∂θ, all of point i.
"""

from collections.abc import Callable

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.status import CONVERGED, NOT_CONCAVE
from pymc_gpep.solvers.newton import CavityAscent, ascend
from pymc_gpep.solvers.problem import Derivatives, Found, History, Problem, function_found

_CONVEX = 1e-6  # second derivative, relative to the prior precision, that is no rounding


def fixed_cavity(
    problem: Problem,
    start: Array,
    history: History,
    *,
    average: Callable[..., None],
    slopes: Callable[..., None] | None = None,
    wide: bool,
    tolerance: float,
) -> Found:
    """Laplace's approximation, or naive TAP where cavities are `wide` as the prior.

    `start`, which is overwritten, holds the weights b (1, n); `average` is the kernel of
    `pymc_gpep.likelihoods.local_computations.GaussianAverage`, `slopes` the first of `ParameterSlopes`, for Laplace's.
    """
    n = problem.labels.size
    b = start.reshape(1, n)
    width = problem.prior.variances[0].copy() if wide else np.zeros(n)

    def volume(log_det: float, w: Array) -> float:
        return log_det - float(np.log1p(w * width).sum())

    ascent = CavityAscent(problem, average, width, volume)
    posterior = ascent.posterior
    evidence, status = ascend(problem, b, ascent, history, tolerance=tolerance)

    def mismatch() -> Array:
        return np.asarray(0.5 * (width / (1.0 + posterior.precision * width) - posterior.variance))

    def slope_in_mean() -> Array:
        return np.asarray(mismatch() * -ascent.h[3] / ascent.kept**3)

    if status == CONVERGED and not wide and (ascent.h[2] * problem.prior.variances[0] > _CONVEX).any():
        status = NOT_CONCAVE
    if status == CONVERGED:
        # The evidence at the mode itself, as far as the step that was not taken says: to the square of the tolerance.
        prior, x = problem.prior, posterior.coordinates
        right, image = prior.residual(ascent.gradient, x), np.empty((1, n))
        step = posterior.solve(right)
        prior.multiply(step, image)
        rise = float(image[0] @ ascent.gradient[0]) - prior.inner(x, step, image)
        evidence += 0.5 * rise + float(image[0] @ slope_in_mean())

    def derivatives() -> Derivatives:
        kept, third = ascent.kept, ascent.h[3]
        u, image = posterior.smooth(slope_in_mean()), posterior.moved(slope_in_mean())
        of_parameters = np.full_like(problem.parameters, np.nan)
        if slopes is not None and of_parameters.size:
            of_density = np.empty((len(of_parameters), 3, n))
            slopes(posterior.mean, problem.labels, problem.parameters, of_density)
            of_parameters = of_density[:, 0] + image * of_density[:, 1] - mismatch() * of_density[:, 2]
        w_slope = -0.5 * (ascent.h[4] - width * third**2 / kept) / kept**2 if wide else None
        of_variance = None if w_slope is None else mismatch() * w_slope + image * 0.5 * third / kept
        return Derivatives(posterior.gradient(u, of_variance), posterior.weights[None] + u, of_parameters)

    return function_found(posterior, evidence, status, derivatives)
