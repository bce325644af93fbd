"""The Laplace approximation where the curvature is diag(π) − ππᵀ at each point: c + 1 factorisations of n × n matrices.

The algebra is that of `pymc_gpep.kernels.gaussians.coupled`, for sites of precision π with 1ᵀπ = 1.
"""

from collections.abc import Callable

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.gaussians.coupled import latent_weights
from pymc_gpep.kernels.gaussians.implicit_gradient import add_implicit_gradient
from pymc_gpep.kernels.status import CONVERGED, OUT_OF_DIGITS, OUT_OF_ITERATIONS
from pymc_gpep.solvers.concave_line import step_length
from pymc_gpep.solvers.coupled import evidence_gradient, factorise, marginal_moments
from pymc_gpep.solvers.history import History
from pymc_gpep.solvers.newton import newton
from pymc_gpep.solvers.problem import Derivatives, Found, Problem

__all__ = ["CoupledAscent", "laplace_coupled"]

_CLOSE = 0.5  # differences between functions that change less cannot overshoot: W changes by e^0.5 < 2 at most


class CoupledAscent:
    """What Newton's method climbs, see `pymc_gpep.solvers.newton.Ascent`.

    Parameters
    ----------
    problem : Problem
    log_density, along_line : kernels
        As of `pymc_gpep.likelihoods.local_computations.CoupledCurvature`.
    """

    stiffness = 1.0

    def __init__(
        self, problem: Problem, log_density: Callable[..., float], along_line: Callable[..., tuple[float, float]]
    ) -> None:
        c, n = problem.mean.shape
        self._problem, self._log_density, self._along_line = problem, log_density, along_line
        self.f, self.gradient, self.pi, self._factorised = np.full((4, c, n), np.nan)
        self.inverses, self.p = np.empty((c, n, n)), np.empty((n, n))

    def log_density(self) -> float:
        return self._log_density(self.f, self._problem.labels, self.pi, self.gradient)

    def factorise(self) -> tuple[bool, float]:
        self._factorised[:] = self.pi
        return factorise(self._problem.k, self.pi, self.inverses, self.p, self._problem.team)

    def solve(self, residual: Array, step: Array) -> None:
        latent_weights(self.inverses, self.p, self._factorised, residual, step)

    def length(self, b: Array, step: Array, image: Array, value: float, slope: float) -> float:
        shrinkage, curvature = float(np.vdot(b, image)), float(np.vdot(step, image))
        if np.ptp(image, axis=0).max() < _CLOSE:
            return 1.0
        y = self._problem.labels
        return step_length(lambda t: self._along_line(self.f, y, image, t), shrinkage, curvature)


def laplace_coupled(
    problem: Problem,
    start: Array,
    history: History,
    *,
    log_density: Callable[..., float],
    along_line: Callable[..., tuple[float, float]],
    curvature_slope: Callable[..., None],
    tolerance: float,
) -> Found:
    """Laplace approximation; `start`, which is overwritten, holds the weights b (c, n).

    The kernels are those of `pymc_gpep.likelihoods.local_computations.CoupledCurvature`.
    """
    c, n = problem.mean.shape
    b = start.reshape(c, n)
    b -= b.mean(0)  # the mode has nothing that is common to the functions
    ascent = CoupledAscent(problem, log_density, along_line)
    cov = np.full((n, c, c), np.nan)
    evidence, status = newton(problem, b, ascent, history, tolerance=tolerance)
    work = np.empty((c, n, n))
    found = status in (CONVERGED, OUT_OF_ITERATIONS, OUT_OF_DIGITS)
    if found:
        marginal_moments(problem.k, ascent.inverses, ascent.p, ascent.pi, b, work, np.empty((c, n)), cov, problem.team)

    def derivatives() -> Derivatives:
        slope, of_mean = np.empty((2, c, n))
        gradient = np.empty_like(problem.k)
        curvature_slope(ascent.pi, cov, slope)
        latent_weights(ascent.inverses, ascent.p, ascent.pi, slope, of_mean)
        evidence_gradient(ascent.inverses, ascent.p, ascent.pi, b, work[0], gradient)
        add_implicit_gradient(b, of_mean, gradient)
        return Derivatives(gradient, of_mean + b)

    weights = b if found else np.full_like(b, np.nan)
    return Found(evidence, status, weights, ascent.f, cov, ascent.pi, derivatives)
