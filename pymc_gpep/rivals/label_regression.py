"""Label regression: labels treated as observations with normal noise (Nickisch and Rasmussen 2008, section 8).

Labels y are −1 and +1, and σ is the standard deviation of the noise. Sites have the precision w = 1/σ² and the
locations y/σ². With the posterior N(m, V), v = diag(V), the evidence is the lower bound

    Σ g(m_i, v_i) − KL(N(m, V) ‖ prior),   g(m, v) = ∫ log p(y | f) N(f | m, v) df,

maximised over σ within limits (equation 8). Let N(m₀, K) be the prior, W = w I and b = K⁻¹(m − m₀). The bound has the
slopes r = ∂g/∂m − b in m, and diag(q) in V with q = ∂g/∂v + ½ w. With C = (I + KW)⁻¹, B = (K + W⁻¹)⁻¹ and u = (I +
WK)⁻¹ r, its derivatives at fixed sites are

    d/dK = ½ (bbᵀ − B) + ½ (ubᵀ + buᵀ) + Cᵀ diag(q) C,   d/dm₀ = b + u.

The derivative in w is (Vr)ᵀ(y − m) − Σ_ij q_j V_ij², with V = C K.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from pymc_gpep.approximations.approximator import Approximator
from pymc_gpep.approximations.laplace import function_found
from pymc_gpep.approximations.limits import at_least, positive
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.prior import DenseFunctionPosterior
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.kernels.status import CONVERGED, NOT_FINITE, NOT_POSITIVE_DEFINITE, OUT_OF_ITERATIONS
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import AverageLogDensity
from pymc_gpep.solvers.problem import Derivatives, Found, History, Problem, lost_in_rounding

_NARROW = 1e-13  # The search ends if its interval of log σ is narrower.


class _Regression:
    """Posterior and bound for a given standard deviation of the noise."""

    def __init__(self, problem: Problem, terms: Callable[..., None]) -> None:
        n = problem.labels.size
        self._problem, self._terms = problem, terms
        self.posterior = DenseFunctionPosterior(problem.prior, problem.mean[0])
        self._g = np.empty((3, n))
        self._targets = 2.0 * problem.labels - 1.0
        self.inverse = np.full((n, n), np.nan)

    def at(self, log_noise: float) -> tuple[bool, float, float]:
        """Return whether the posterior is proper, the bound, and its derivative in log σ."""
        w = np.exp(-2.0 * log_noise)
        posterior, g = self.posterior, self._g
        if not posterior.update(np.full(self._targets.size, w), w * self._targets):
            return False, np.nan, np.nan
        self._terms(posterior.mean, posterior.variance, self._problem.labels, self._problem.parameters, g)
        lower = np.tril(posterior.inverse)
        np.add(lower, np.tril(lower, -1).T, out=self.inverse)
        self.r, self.q = g[1] - posterior.weights, g[2] + 0.5 * w
        # Squares of the entries of V. Off the diagonal, V is −1/w times the inverse of I + KW.
        squares = (self.inverse / w) ** 2
        np.fill_diagonal(squares, posterior.variance**2)
        moved = posterior.variance * self.r - (self.inverse @ self.r - posterior.kept * self.r) / w
        slope = moved @ (self._targets - posterior.mean) - self.q @ squares.sum(0)
        return True, float(g[0].sum()) - posterior.divergence, float(-2.0 * w * slope)


def label_regression(
    problem: Problem,
    start: Array,
    history: History,
    *,
    terms: Callable[..., None],
    least: float,
    most: float,
    tolerance: float,
) -> Found:
    """Run label regression with a noise σ between `least` and `most`.

    `start` (1,) is overwritten by log σ. Its value is not used: both limits are always evaluated. `terms` is the kernel
    of `pymc_gpep.likelihoods.local_computations.AverageLogDensity`.
    """
    regression = _Regression(problem, terms)
    posterior = regression.posterior
    bound, status, start[0] = _maximise(regression, history, np.log(least), np.log(most), tolerance)

    def derivatives() -> Derivatives:
        moved = posterior.moved(regression.r)
        gradient = posterior.gradient(moved)
        spread = (regression.inverse * regression.q) @ regression.inverse
        gradient[0] += 0.5 * (spread + spread.T)
        return Derivatives(gradient, posterior.weights[None] + moved.weights)

    status = lost_in_rounding(problem, posterior.coordinates, history, status)
    return function_found(posterior, bound, status, derivatives)


def _maximise(
    regression: _Regression, history: History, low: float, high: float, tolerance: float
) -> tuple[float, int, float]:
    """Maximise the bound in log σ: at a limit, or at a zero of its slope by the Illinois method.

    Return bound, status and log σ. `regression` was last evaluated at this log σ.
    """

    def look(at: float) -> tuple[float, int, float]:
        ok, bound, slope = regression.at(at)
        if not ok:
            return np.nan, NOT_POSITIVE_DEFINITE, np.nan
        if not np.isfinite(bound + slope):
            return np.nan, NOT_FINITE, np.nan
        # A slope that points out of the interval counts as zero.
        outward = (at == low and slope < 0.0) or (at == high and slope > 0.0)
        history.add(bound, 0.0 if outward else abs(slope))
        found = outward or abs(slope) < tolerance * (1.0 + abs(bound))
        return bound, CONVERGED if found else OUT_OF_ITERATIONS, slope

    left, left_status, left_slope = look(low)
    right, right_status, right_slope = look(high)
    if left_status in (NOT_FINITE, NOT_POSITIVE_DEFINITE) or right_status in (NOT_FINITE, NOT_POSITIVE_DEFINITE):
        return np.nan, max(left_status, right_status), 0.0
    if right_status == CONVERGED and right >= left:
        return right, CONVERGED, high
    if left_status == CONVERGED:
        bound, status, _ = look(low)
        return bound, status, low
    bottom, top = low, high
    at = high
    bound, status = right, right_status
    last = 0
    while status != CONVERGED and top - bottom > _NARROW and not history.is_full():
        at = (bottom * right_slope - top * left_slope) / (right_slope - left_slope)
        bound, status, slope = look(at)
        if slope > 0.0:
            bottom, left_slope = at, slope
            right_slope *= 0.5 if last > 0 else 1.0
            last = 1
        else:
            top, right_slope = at, slope
            left_slope *= 0.5 if last < 0 else 1.0
            last = -1
    return bound, status, at


@dataclass(frozen=True)
class LabelRegression(Approximator):
    """Regression on labels −1 and +1. The evidence is the classifier's lower bound at the posterior of the regression.

    The standard deviation of the noise maximises the bound between its limits.

    Parameters
    ----------
    tolerance : float
        Tolerance of the bound's slope in the log of the noise, relative to the bound if the bound is large.
    max_iterations : int
        Largest number of evaluated noise values.
    least, most : float
        Limits of the standard deviation of the noise.
    """

    tolerance: float = field(default=1e-7, metadata=positive())
    max_iterations: int = field(default=100, metadata=at_least(1))
    least: float = field(default=0.5, metadata=positive())
    most: float = field(default=2.0, metadata=positive())

    name: ClassVar[str] = "lr"
    site_form: ClassVar[SiteForm] = SiteForm.INDEPENDENT
    needs: ClassVar[tuple[type, ...]] = (AverageLogDensity,)
    schemes: ClassVar[tuple[str, ...]] = ("a search for the noise",)
    bounds: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.least > self.most:
            raise ValueError(f"`least` must be at most `most` = {self.most!r}, but is {self.least!r}.")

    @classmethod
    def approximates(cls, likelihood: Likelihood) -> bool:
        """Return whether the likelihood is of two classes."""
        return super().approximates(likelihood) and likelihood.n_classes(1) == 2

    def solver(self, problem: Problem, start: Array, history: History, *, likelihood: Likelihood) -> Found:
        terms = likelihood.computation(AverageLogDensity).terms
        return label_regression(problem, start, history, terms=terms, **self.settings)

    def start_size(self, n_functions: int, n_points: int) -> int:
        """Return the length of the start, which is the log of the noise."""
        return 1
