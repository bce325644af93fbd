"""The Laplace approximation where the curvature is diag(π) − ππᵀ / 1ᵀπ at each point: that of sites."""

from collections.abc import Callable

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.status import CONVERGED, OUT_OF_DIGITS, OUT_OF_ITERATIONS
from pymc_gpep.solvers.newton import newton, step_length
from pymc_gpep.solvers.problem import Derivatives, Found, History, Problem

__all__ = ["CoupledAscent", "laplace_coupled"]

_CLOSE = 0.5  # differences between functions that change less cannot overshoot: W changes by e^0.5 < 2 at most


class CoupledAscent:
    """The function that Newton's method climbs, see `pymc_gpep.solvers.newton.Ascent`.

    Parameters
    ----------
    problem : Problem
    log_density, along_line : kernels
        Kernels of `pymc_gpep.likelihoods.local_computations.CoupledCurvature`.
    """

    def __init__(
        self, problem: Problem, log_density: Callable[..., float], along_line: Callable[..., tuple[float, float]]
    ) -> None:
        c, n = problem.mean.shape
        self._problem, self._log_density, self._along_line = problem, log_density, along_line
        self.f, self.gradient, self.pi = np.full((3, c, n), np.nan)
        self.algebra = problem.prior.coupled(c, problem.team)

    @property
    def stiffness(self) -> Array:
        """See `pymc_gpep.solvers.newton.Ascent`."""
        return np.maximum(self.pi, 1.0)

    def log_density(self) -> float:
        return self._log_density(self.f, self._problem.labels, self.pi, self.gradient)

    def factorise(self) -> tuple[bool, float]:
        ok, log_det = self.algebra.factorise(self.pi)
        return ok, log_det - float(np.log(self.pi.sum(axis=0)).sum())

    def solve(self, residual: Array, step: Array) -> None:
        self.algebra.weights(residual, step)

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
    found = status in (CONVERGED, OUT_OF_ITERATIONS, OUT_OF_DIGITS)
    if found:
        ascent.algebra.moments(b, np.empty((c, n)), cov)

    def derivatives() -> Derivatives:
        slope, of_mean = np.empty((2, c, n))
        curvature_slope(ascent.pi, cov, slope)
        ascent.algebra.weights(slope, of_mean)
        return Derivatives(ascent.algebra.gradient(b, of_mean), of_mean + b)

    weights = b if found else np.full_like(b, np.nan)
    return Found(evidence, status, weights, ascent.f, cov, ascent.pi, derivatives)
