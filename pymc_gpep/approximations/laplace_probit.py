"""The Laplace approximation where the curvature has no structure, as that of a multinomial probit."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from pymc_gpep.approximations.limits import at_least
from pymc_gpep.approximations.newton_approximation import NewtonApproximation
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.kernels.status import CONVERGED, OUT_OF_DIGITS, OUT_OF_ITERATIONS, TOO_LARGE
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import BlockCurvature
from pymc_gpep.solvers.newton import log_posterior, newton
from pymc_gpep.solvers.prior_form import Algebra
from pymc_gpep.solvers.problem import Derivatives, Found, History, Problem

_SUFFICIENT = 1e-4  # part of the increase that the slope at the start promises
_MAX_HALVINGS = 50
_CLOSE = 0.1  # closer to the mode, rounding decides comparisons, and Newton's method needs none


class _BlockAscent:
    """The function that Newton's method climbs, see `pymc_gpep.solvers.newton.Ascent`."""

    stiffness = 1.0

    def __init__(self, problem: Problem, log_density: Callable[..., float], curvature: Callable[..., None]) -> None:
        c, n = problem.mean.shape
        self._problem, self._log_density, self._curvature = problem, log_density, curvature
        self.f, self.gradient = np.full((2, c, n), np.nan)
        self.w = np.full((n, c, c), np.nan)
        self.algebra = problem.prior.blocks(c)
        self._trial = np.empty((c, n))

    def log_density(self) -> float:
        return self._log_density(self.f, self._problem.labels, self.gradient)

    def factorise(self) -> tuple[bool, float]:
        self._curvature(self.f, self._problem.labels, self.w)
        return self.algebra.factorise(self.w)

    def solve(self, residual: Array, step: Array) -> None:
        self.algebra.solve(residual, step)

    def length(self, x: Array, step: Array, image: Array, value: float, slope: float) -> float:
        t = 1.0
        if np.abs(image).max() < _CLOSE:
            return t
        for _ in range(_MAX_HALVINGS):
            if log_posterior(self._problem, x + t * step, self, self._trial) >= value + _SUFFICIENT * t * slope:
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
    cn of latent values whose covariance is a matrix.
    """
    c, n = problem.mean.shape
    b = start.reshape(c, n)
    b -= b.mean(0)  # the mode has nothing that is common to the functions
    cov = np.full((n, c, c), np.nan)
    if problem.prior.square and c * n > max_size:
        nothing = np.full_like(b, np.nan)
        return Found(np.nan, TOO_LARGE, nothing, nothing, cov, cov, lambda: Derivatives(np.empty(0), nothing))
    ascent = _BlockAscent(problem, log_density, curvature)

    def derivatives() -> Derivatives:
        slope, of_mean = np.empty((2, c, n))
        curvature_slope(ascent.f, problem.labels, cov, slope)
        ascent.algebra.weights(slope, of_mean)
        return Derivatives(ascent.algebra.gradient(b, of_mean), of_mean + b)

    x = problem.prior.coordinates(b)
    evidence, status = newton(problem, x, ascent, history, tolerance=tolerance)
    b[:] = problem.prior.weights(x, ascent.gradient)
    found = status in (CONVERGED, OUT_OF_ITERATIONS, OUT_OF_DIGITS)
    if found:
        ascent.algebra.moments(b, np.empty((c, n)), cov)
    return Found(evidence, status, b if found else np.full_like(b, np.nan), ascent.f, cov, ascent.w, derivatives)


@dataclass(frozen=True)
class LaplaceProbit(NewtonApproximation):
    """Gaussian at the posterior mode, with the curvature of the log posterior there.

    The curvature of a multinomial probit has no structure that would save work, so that time grows with (cn)³ where
    prior covariances are matrices.

    Parameters
    ----------
    max_size : int
        Largest number cn of latent values to accept where prior covariances are matrices; rows may be many more.
    """

    max_size: int = field(default=3000, metadata=at_least(1))

    name: ClassVar[str] = "laplace"
    site_form: ClassVar[SiteForm] = SiteForm.BLOCK
    needs: ClassVar[tuple[type, ...]] = (BlockCurvature,)
    algebra: ClassVar[Algebra] = Algebra.FUNCTIONS

    def solver(self, problem: Problem, start: Array, history: History, *, likelihood: Likelihood) -> Found:
        curvature = likelihood.computation(BlockCurvature)
        return laplace_block(problem, start, history, **curvature._asdict(), **self.settings)

    def too_large(self, n_functions: int, n_points: int) -> str:
        size = n_functions * n_points
        if size > self.max_size:
            return (
                f"A dense Laplace approximation of {n_functions} latent functions at {n_points} points is slow: they "
                f"are {size} latent values. Use nested_ep, which is made for so many, or allow it with max_size={size} "
                f"(now {self.max_size})."
            )
        return ""
