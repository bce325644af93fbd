"""The contract of a solver: a problem that it is given, and what it found."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.linalg.definite import is_covariance
from pymc_gpep.kernels.linalg.rounding import rounding
from pymc_gpep.kernels.status import (
    CONVERGED,
    NOT_FINITE,
    NOT_POSITIVE_DEFINITE,
    OUT_OF_DIGITS,
    OUT_OF_ITERATIONS,
)
from pymc_gpep.solvers.history import History
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


NO_PARAMETERS = np.empty((0, 0))
"""Of a likelihood that is given nothing but latent values."""


class Problem(NamedTuple):
    """A Gaussian prior of c latent functions at n points, and the labels that were observed."""

    k: Array
    """Prior covariance, (1 or c, n, n)."""
    mean: Array
    """Prior mean, (c, n)."""
    labels: NDArray[np.int64]
    """Classes 0…c−1, (n,)."""
    parameters: Array = NO_PARAMETERS
    """What the likelihood is given besides latent values at each point, (p, n)."""
    team: Team = ALONE
    """The threads that may work on it."""


class Derivatives(NamedTuple):
    """Those of an evidence."""

    k: Array
    """With respect to the prior covariance, (1 or c, n, n)."""
    mean: Array
    """With respect to the prior mean, (c, n)."""
    parameters: Array = NO_PARAMETERS
    """With respect to what else the likelihood is given, (p, n); NaN where it does not say."""


class Found(NamedTuple):
    """Where a solver ended."""

    evidence: float
    status: int
    """One of `pymc_gpep.kernels.status`."""
    weights: Array
    """b = K⁻¹ (posterior mean − prior mean), (c, n)."""
    mean: Array
    """Of the posterior, (c, n)."""
    cov: Array
    """Of the posterior, between the classes of each point, (n, c, c)."""
    precision: Array
    """Of the sites, in the shape that the approximation's posterior wants."""
    derivatives: Callable[[], Derivatives]
    """Those of the evidence, once converged."""
    rung: int = 0
    """Which of the solver's schemes had the last word, 0 for its first."""


def check_problem(problem: Problem, start: Array, trusted: bool = False) -> int:
    """`CONVERGED` if a solver may begin from `start`, else the status that it ends with.

    Where the prior covariance is `trusted` it has to be finite, and is not factorised.
    """
    if not all(np.isfinite(values).all() for values in (problem.k, problem.mean, problem.parameters, start)):
        return NOT_FINITE
    # Squares of prior variances are computed everywhere; where they overflow, what comes out is noise.
    if not np.isfinite(np.square(np.diagonal(problem.k, axis1=1, axis2=2))).all():
        return NOT_FINITE
    if trusted:
        return CONVERGED
    checked = problem.team.each(lambda matrix: is_covariance(matrix, np.empty_like(matrix)), problem.k)
    return CONVERGED if all(checked) else NOT_POSITIVE_DEFINITE


def relative_problem(problem: Problem) -> tuple[Problem, Array]:
    """The problem with a prior mean less that of the observed class at each point, and what was taken off, (n,).

    For likelihoods that do not see what is added to all functions: a large number would take the digits of the rest.
    """
    common = problem.mean[problem.labels, np.arange(problem.labels.size)]
    return problem._replace(mean=problem.mean - common), common


def lost_in_rounding(problem: Problem, weights: Array, history: History, status: int) -> int:
    """The status, `OUT_OF_DIGITS` where iterations ended without success as close as rounding of K b lets them come.

    `weights` are b (c, n).
    """
    close = history.smallest_residual < rounding(problem.k, weights)
    return OUT_OF_DIGITS if status == OUT_OF_ITERATIONS and close else status


def parameter_slopes(problem: Problem, kernel: Callable[..., None] | None, mean: Array, variance: Array) -> Array:
    """Derivatives (p, n) with respect to the parameters, of what `kernel` averages over N(mean, variance) (n,).

    That is a kernel of `pymc_gpep.likelihoods.local_computations.ParameterSlopes`; NaN where there is none.
    """
    slopes = np.full_like(problem.parameters, np.nan)
    if kernel is not None and slopes.size:
        kernel(mean, variance, problem.labels, problem.parameters, slopes)
    return slopes


def own_matrix(matrices: Array, k: int) -> Array:
    """The matrix of class k, of one that all classes share or of one for each."""
    return matrices[k if len(matrices) > 1 else 0]
