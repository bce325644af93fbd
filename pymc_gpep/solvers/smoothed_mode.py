"""The mean of Laplace's method by the smoothed density, at the variances of that method.

The mode of Σ ℓ_i(f_i) − ½ (f − m₀)ᵀ K⁻¹ (f − m₀) lies beside the mean where the posterior is skewed. In place of ℓ this
takes its average g(m, v) over N(m, v), with Laplace's variances v. The mode is then the best mean of a Gaussian with
these variances (van Niekerk and Rue 2024). Newton's method finds it, by ∂²g/∂m² = 2 ∂g/∂v.
"""

from collections.abc import Callable

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.status import OUT_OF_ITERATIONS
from pymc_gpep.solvers.problem import Found, Problem

__all__ = ["smoothed_mode"]

_STEPS, _HALVINGS = 50, 30
_TOLERANCE = 1e-8  # largest change of a mean, in standard deviations


def smoothed_mode(problem: Problem, found: Found, terms: Callable[..., None]) -> Found:
    """Return what Laplace's method found with other means, and the weights that belong to them.

    `terms` is the kernel of `pymc_gpep.likelihoods.local_computations.AverageLogDensity`. Evidence and derivatives stay
    those of Laplace's method.
    """
    prior_mean, variance = problem.mean[0], np.ascontiguousarray(found.cov[:, 0, 0])
    mean, b = found.mean[0].copy(), found.weights[0].copy()
    posterior = problem.prior.posterior(prior_mean)

    def look(at: Array) -> Array:
        g = np.empty((3, at.size))
        terms(at, variance, problem.labels, problem.parameters, g)
        return g

    def height(g: Array, at: Array, weights: Array) -> float:
        return float(g[0].sum() - 0.5 * weights @ (at - prior_mean))

    g = look(mean)
    for _ in range(_STEPS):
        precision = np.maximum(-2.0 * g[2], 0.0)
        if not posterior.update(precision, g[1] + precision * mean):
            break
        step, turn, before = posterior.mean - mean, posterior.weights - b, height(g, mean, b)
        length = 1.0
        for _ in range(_HALVINGS):
            new = look(mean + length * step)
            if height(new, mean + length * step, b + length * turn) >= before - 1e-10 * abs(before):
                break
            length *= 0.5
        mean, b, g = mean + length * step, b + length * turn, new
        if np.abs(step).max() < _TOLERANCE * np.sqrt(variance.max()):
            return found._replace(mean=mean[None], weights=b[None])
    return found._replace(status=OUT_OF_ITERATIONS)
