"""The contract of a solver: a problem that it is given, and what it found (`pymc_gpep.solvers.found`)."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from pymc_gpep.array_types import Array, Observed
from pymc_gpep.kernels.status import (
    CONVERGED,
    NOT_FINITE,
    NOT_POSITIVE_DEFINITE,
    OUT_OF_DIGITS,
    OUT_OF_ITERATIONS,
)
from pymc_gpep.solvers.found import NO_PARAMETERS, Derivatives, Found
from pymc_gpep.solvers.history import History
from pymc_gpep.solvers.prior_form import PriorForm
from pymc_gpep.solvers.team import ALONE, Team

__all__ = [
    "NO_PARAMETERS",
    "Derivatives",
    "Found",
    "Problem",
    "check_problem",
    "lost_in_rounding",
    "own_matrix",
    "parameter_slopes",
    "relative_problem",
]


class Problem(NamedTuple):
    """A Gaussian prior of c latent functions at n points, and the labels that were observed."""

    prior: PriorForm
    """Prior covariance, however it is given."""
    mean: Array
    """Prior mean, (c, n)."""
    labels: Observed
    """Classes 0…c−1, or other observations, (n,); (n, c) where there is a number for each class."""
    parameters: Array = NO_PARAMETERS
    """Parameters of the likelihood besides latent values at each point, (p, n)."""
    team: Team = ALONE
    """The threads that may work on it."""

    @property
    def k(self) -> Array:
        """The array of the prior; a covariance has (1 or c, n, n)."""
        return self.prior.array


def check_problem(problem: Problem, start: Array, trusted: bool = False) -> int:
    """`CONVERGED` if a solver may begin from `start`, else the status that it ends with.

    Where the prior covariance is `trusted` it has to be finite, and is not factorised.
    """
    if not all(np.isfinite(values).all() for values in (problem.k, problem.mean, problem.parameters, start)):
        return NOT_FINITE
    # Squares of prior variances are computed everywhere; where they overflow, what comes out is noise.
    if not np.isfinite(np.square(problem.prior.variances)).all():
        return NOT_FINITE
    return CONVERGED if trusted or problem.prior.is_covariance(problem.team) else NOT_POSITIVE_DEFINITE


def relative_problem(problem: Problem) -> tuple[Problem, Array]:
    """The problem with a prior mean less that of the class observed (most often) at each point, and that mean, (n,).

    For likelihoods that do not see what is added to all functions: a large number would take the digits of the rest.
    """
    y = problem.labels if problem.labels.ndim == 1 else problem.labels.argmax(axis=1)
    common = problem.mean[y, np.arange(len(y))]
    return problem._replace(mean=problem.mean - common), common


def lost_in_rounding(problem: Problem, weights: Array, history: History, status: int) -> int:
    """The status, `OUT_OF_DIGITS` where iterations ended without success as close as rounding of K b lets them come.

    `weights` are b (c, n).
    """
    close = history.smallest_residual < problem.prior.rounding(weights)
    return OUT_OF_DIGITS if status == OUT_OF_ITERATIONS and close else status


def parameter_slopes(problem: Problem, kernel: Callable[..., None] | None, mean: Array, variance: Array) -> Array:
    """Derivatives (p, n) with respect to the parameters, of what `kernel` averages over N(mean, variance) (n,).

    The kernel is one of `pymc_gpep.likelihoods.local_computations.ParameterSlopes`. Without it they are NaN.
    """
    slopes = np.full_like(problem.parameters, np.nan)
    if kernel is not None and slopes.size:
        kernel(mean, variance, problem.labels, problem.parameters, slopes)
    return slopes


def own_matrix(matrices: Array, k: int) -> Array:
    """The matrix of class k, of one that all classes share or of one for each."""
    return matrices[k if len(matrices) > 1 else 0]
