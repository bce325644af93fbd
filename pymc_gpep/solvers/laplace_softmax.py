"""The Laplace approximation of a softmax, whole: the mode, and the derivatives of the evidence with all it moves."""

import numpy as np

from pymc_gpep.kernels.gaussians.coupled import latent_weights
from pymc_gpep.kernels.gaussians.implicit_gradient import add_implicit_gradient
from pymc_gpep.kernels.likelihoods.softmax import curvature_slope
from pymc_gpep.kernels.status import CONVERGED, OUT_OF_ITERATIONS
from pymc_gpep.solvers.coupled import evidence_gradient, marginal_moments
from pymc_gpep.solvers.history import History
from pymc_gpep.solvers.newton import newton, newton_space
from pymc_gpep.solvers.problem import Array, Found, Problem

__all__ = ["laplace_softmax"]


def laplace_softmax(problem: Problem, start: Array, history: History, *, tolerance: float) -> Found:
    """Laplace approximation of a softmax; `start`, which is overwritten, holds the weights b (c, n)."""
    c, n = problem.mean.shape
    b = start.reshape(c, n)
    space = newton_space(c, n)
    cov = np.full((n, c, c), np.nan)
    evidence, status = newton(problem, b, space, history, tolerance=tolerance)
    work = np.empty((c, n, n))
    found = status in (CONVERGED, OUT_OF_ITERATIONS)
    if found:
        marginal_moments(problem.k, space.inverses, space.p, space.pi, b, work, np.empty((c, n)), cov, problem.team)

    def derivatives() -> tuple[Array, Array]:
        slope, of_mean = np.empty((2, c, n))
        gradient = np.empty_like(problem.k)
        curvature_slope(space.pi, cov, slope)
        latent_weights(space.inverses, space.p, space.pi, slope, of_mean)
        evidence_gradient(space.inverses, space.p, space.pi, b, work[0], gradient)
        add_implicit_gradient(b, of_mean, gradient)
        return gradient, of_mean + b

    weights = b if found else np.full_like(b, np.nan)
    return Found(evidence, status, weights, space.f, cov, space.pi, derivatives)
