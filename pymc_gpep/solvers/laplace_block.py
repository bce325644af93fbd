"""The Laplace approximation where the curvature has no structure but its blocks: dense algebra on all cn latent values.

The algebra is that of `pymc_gpep.kernels.gaussians.block_sites`.
"""

from collections.abc import Callable

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.gaussians.block_sites import (
    block_gradient,
    block_marginals,
    block_roots,
    factorise_blocks,
    project,
    smooth_blocks,
)
from pymc_gpep.kernels.gaussians.implicit_gradient import add_implicit_gradient
from pymc_gpep.kernels.linalg.lapack import multiply_functions
from pymc_gpep.kernels.status import CONVERGED, OUT_OF_DIGITS, OUT_OF_ITERATIONS, TOO_LARGE
from pymc_gpep.solvers.history import History
from pymc_gpep.solvers.newton import log_posterior, newton
from pymc_gpep.solvers.problem import Derivatives, Found, Problem

__all__ = ["laplace_block"]

_SUFFICIENT = 1e-4  # part of the increase that the slope at the start promises
_MAX_HALVINGS = 50
_CLOSE = 0.1  # closer to the mode, rounding decides comparisons, and Newton's method needs none


class _BlockAscent:
    """What Newton's method climbs, see `pymc_gpep.solvers.newton.Ascent`."""

    stiffness = 1.0

    def __init__(
        self, problem: Problem, log_density: Callable[..., float], curvature: Callable[..., None], size: int
    ) -> None:
        c, n = problem.mean.shape
        self._problem, self._log_density, self._curvature = problem, log_density, curvature
        self.f, self.gradient = np.full((2, c, n), np.nan)
        self.w = np.full((n, c, c), np.nan)
        self.roots, self.lower = np.empty((n, c, c - 1)), np.empty((size, size))
        self._image, self._trial = np.empty((2, c, n))

    def log_density(self) -> float:
        return self._log_density(self.f, self._problem.labels, self.gradient)

    def factorise(self) -> tuple[bool, float]:
        self._curvature(self.f, self._problem.labels, self.w)
        block_roots(self.w, self.roots)
        ok, log_det = factorise_blocks(self._problem.k, self.roots, self.lower)
        return ok, log_det

    def solve(self, residual: Array, step: Array) -> None:
        multiply_functions(self._problem.k, residual, self._image)
        project(self._problem.k, self.roots, self.lower, residual, self._image, step)

    def length(self, b: Array, step: Array, image: Array, value: float, slope: float) -> float:
        t = 1.0
        if np.abs(image).max() < _CLOSE:
            return t
        for _ in range(_MAX_HALVINGS):
            if log_posterior(self._problem, b + t * step, self, self._trial) >= value + _SUFFICIENT * t * slope:
                break
            t *= 0.5
        return t


def laplace_block(
    problem: Problem,
    start: Array,
    history: History,
    *,
    log_density: Callable[..., float],
    curvature: Callable[..., None],
    curvature_slope: Callable[..., None],
    tolerance: float,
    max_size: int,
) -> Found:
    """Laplace approximation; `start`, which is overwritten, holds the weights b (c, n).

    The kernels are those of `pymc_gpep.likelihoods.local_computations.BlockCurvature`; `max_size` is the largest number
    cn of latent values.
    """
    k = problem.k
    c, n = problem.mean.shape
    b = start.reshape(c, n)
    b -= b.mean(0)  # the mode has nothing that is common to the functions
    cov = np.full((n, c, c), np.nan)
    size = n * (c - 1) if c * n <= max_size else 0
    ascent = _BlockAscent(problem, log_density, curvature, size)
    smooth = np.empty((c, n, size))

    def derivatives() -> Derivatives:
        slope, image, of_mean = np.empty((3, c, n))
        curvature_slope(ascent.f, problem.labels, cov, slope)
        multiply_functions(k, slope, image)
        project(k, ascent.roots, ascent.lower, slope, image, of_mean)
        gradient = np.empty_like(k)
        block_gradient(ascent.roots, ascent.lower, b, smooth[0], gradient)
        add_implicit_gradient(b, of_mean, gradient)
        return Derivatives(gradient, of_mean + b)

    if c * n > max_size:
        return Found(np.nan, TOO_LARGE, np.full_like(b, np.nan), ascent.f, cov, ascent.w, derivatives)
    evidence, status = newton(problem, b, ascent, history, tolerance=tolerance)
    found = status in (CONVERGED, OUT_OF_ITERATIONS, OUT_OF_DIGITS)
    if found:
        smooth_blocks(k, ascent.roots, ascent.lower, smooth)
        block_marginals(k, smooth, cov)
    return Found(evidence, status, b if found else np.full_like(b, np.nan), ascent.f, cov, ascent.w, derivatives)
