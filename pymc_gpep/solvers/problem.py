"""Interface of solvers: problem, record of iterations, result, and a function that runs a solver."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array, Observed
from pymc_gpep.kernels.status import (
    CONVERGED,
    NOT_FINITE,
    NOT_POSITIVE_DEFINITE,
    OUT_OF_DIGITS,
    OUT_OF_ITERATIONS,
    OUT_OF_MEMORY,
)
from pymc_gpep.solvers.prior_form import SolverPrior
from pymc_gpep.solvers.team import ALONE, Team, gather, one_blas_thread

type Watch = Callable[[int, float, float], None]
"""Function of the number of iterations so far, evidence and residual."""

_watch: ContextVar[Watch | None] = ContextVar("watch", default=None)


@contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """Call `watch` after each iteration of solvers in this context and thread."""
    token = _watch.set(watch)
    try:
        yield
    finally:
        _watch.reset(token)


class History:
    """Evidence and residual at each iteration, up to a limit.

    Parameters
    ----------
    limit : int
        Largest number of iterations.
    watched : bool
        Whether the function of `watching` is called for these iterations.
    """

    def __init__(self, limit: int, *, watched: bool = True) -> None:
        self.limit = limit
        self._rows: list[tuple[float, float]] = []
        self._watch = _watch.get() if watched else None

    def add(self, evidence: float, residual: float) -> None:
        """Record an iteration, and call the function of `watching`."""
        self._rows.append((evidence, residual))
        if self._watch is not None:
            self._watch(len(self._rows), evidence, residual)

    def __len__(self) -> int:
        """Number of iterations."""
        return len(self._rows)

    def is_full(self) -> bool:
        """Return whether the limit of iterations is reached."""
        return len(self._rows) >= self.limit

    @property
    def smallest_residual(self) -> float:
        """Smallest residual so far; infinite before the first iteration."""
        return min((residual for _, residual in self._rows), default=np.inf)

    @property
    def array(self) -> NDArray[np.float64]:
        """Evidence and residual, (iterations, 2)."""
        return np.array(self._rows, dtype=np.float64).reshape(-1, 2)


NO_PARAMETERS = np.empty((0, 0))
"""Empty array, for likelihoods without parameters of each row."""


class Derivatives(NamedTuple):
    """Derivatives of an evidence."""

    k: Array
    """Derivatives in the array of the prior: its covariance (1 or c, n, n), or its coefficients (1, n, q)."""
    mean: Array
    """Derivatives in the prior mean, (c, n)."""
    parameters: Array = NO_PARAMETERS
    """Derivatives in the parameters of the likelihood, (p, n); NaN if not computed."""


class Found(NamedTuple):
    """Result of a solver."""

    evidence: float
    status: int
    """A status of `pymc_gpep.kernels.status`."""
    weights: Array
    """Weights b = K⁻¹ (posterior mean − prior mean), (c, n)."""
    mean: Array
    """Posterior mean, (c, n)."""
    cov: Array
    """Posterior covariance between the functions at each point, (n, c, c)."""
    precision: Array
    """Precisions of the sites; the shape depends on the form of the sites."""
    derivatives: Callable[[], Derivatives]
    """Function that computes derivatives of the evidence; valid if the solver converged."""
    rung: int = 0
    """Position of the last scheme of the solver's fallback sequence, 0 for the first."""


class Problem(NamedTuple):
    """Gaussian prior of c latent functions at n points, and observations."""

    prior: SolverPrior
    """Prior covariance, in any form."""
    mean: Array
    """Prior mean, (c, n)."""
    labels: Observed
    """Classes 0…c−1 or other observations, (n,); counts of each class, (n, c)."""
    parameters: Array = NO_PARAMETERS
    """Parameters of the likelihood at each point, (p, n)."""
    team: Team = ALONE
    """Threads for the solver."""
    slopes: bool = True
    """Whether to compute derivatives in the parameters."""

    @property
    def k(self) -> Array:
        """Array of the prior; a covariance has the shape (1 or c, n, n)."""
        return self.prior.array


def check_problem(problem: Problem, start: Array, trusted: bool = False) -> int:
    """Return `CONVERGED` if a solver can start, else the status of the failure.

    A `trusted` prior covariance is only checked to be finite, without a factorisation.
    """
    if not all(np.isfinite(values).all() for values in (problem.k, problem.mean, problem.parameters, start)):
        return NOT_FINITE
    # If squares of prior variances overflow, results are meaningless.
    if not np.isfinite(np.square(problem.prior.variances)).all():
        return NOT_FINITE
    return CONVERGED if trusted or problem.prior.is_covariance(problem.team) else NOT_POSITIVE_DEFINITE


def relative_problem(problem: Problem) -> tuple[Problem, Array]:
    """Return the problem with prior means relative to each point's observed class, and the means (n,) of these classes.

    It is for likelihoods that do not depend on a common shift of all functions; a large shift would lose digits.
    """
    y = problem.labels if problem.labels.ndim == 1 else problem.labels.argmax(axis=1)
    common = problem.mean[y, np.arange(len(y))]
    return problem._replace(mean=problem.mean - common), common


def lost_in_rounding(problem: Problem, x: Array, history: History, status: int) -> int:
    """Return `OUT_OF_DIGITS` if iterations ended at their limit with residuals at the level of rounding; else `status`.

    `x` are the coordinates of the last latent values, see `SolverPrior.coordinates`.
    """
    close = history.smallest_residual < problem.prior.rounding(x)
    return OUT_OF_DIGITS if status == OUT_OF_ITERATIONS and close else status


def parameter_slopes(problem: Problem, kernel: Callable[..., None] | None, mean: Array, variance: Array) -> Array:
    """Return derivatives (p, n) with respect to parameters of an average over N(mean, variance), both (n,).

    `kernel` computes them; it is a kernel of `pymc_gpep.likelihoods.local_computations.ParameterSlopes`. Without a
    kernel, or without `slopes` of the problem, derivatives are NaN.
    """
    slopes = np.full_like(problem.parameters, np.nan)
    if kernel is not None and slopes.size and problem.slopes:
        kernel(mean, variance, problem.labels, problem.parameters, slopes)
    return slopes


def own_matrix(matrices: Array, k: int) -> Array:
    """Return the matrix of class k, from a shared matrix or from a matrix for each class."""
    return matrices[k if len(matrices) > 1 else 0]


class Solver(Protocol):
    """Solver with its options."""

    def __call__(self, problem: Problem, start: Array, history: History, /) -> Found:
        """Solve from `start`, and overwrite `start` with a start for a solve at nearby hyperparameters."""
        ...


class Outcome(NamedTuple):
    """Results of a solver."""

    evidence: float
    """Log evidence; NaN if the solver failed."""
    gradient: Array
    """d evidence / d array of the prior; empty if not requested, NaN unless converged."""
    gradient_mean: Array
    """d evidence / d prior mean, (c, n); empty if not requested, NaN unless converged."""
    weights: Array
    """Weights K⁻¹ (posterior mean − prior mean), (c, n)."""
    mean: Array
    cov: Array
    precision: Array
    """Site precisions; the shape depends on the form of the sites."""
    start: Array
    """Start for a solve at near hyperparameters."""
    history: Array
    """Evidence and residual at each iteration, (iterations, 2)."""
    status: int
    rung: int
    """Position of the last scheme of the solver's fallback sequence, 0 for the first."""
    gradient_parameters: Array = NO_PARAMETERS
    """d evidence / d parameters of the likelihood, (p, n); empty if not requested, NaN unless converged."""

    @property
    def iterations(self) -> int:
        """Number of posteriors computed."""
        return len(self.history)


def from_start_or_cold[S, T](solve: Callable[[S | None], T], start: S | None, is_good: Callable[[T], bool]) -> T:
    """Solve from a start, if any. If the result is not good, solve again from a cold start.

    Parameters
    ----------
    solve : callable
        Function of a start, or of None for a cold start.
    start : optional
    is_good : callable
        Function of a result, which returns False if the solve must be repeated.
    """
    found = solve(start)
    return found if start is None or is_good(found) else solve(None)


def run(
    solver: Solver,
    k: Array,
    mean: Array,
    labels: Observed,
    start: Array,
    max_iterations: int,
    gradient: bool = False,
    *,
    relative: bool,
    form: Callable[[Array, Array], SolverPrior],
    parameters: Array = NO_PARAMETERS,
    trusted: bool = False,
    slopes: bool = True,
) -> Outcome:
    """Run a solver on arrays of valid shapes. The arrays do not change.

    Parameters
    ----------
    solver : Solver
    k : array
        Array of the prior's `form`; a covariance is (1 or c, n, n).
    mean : array (c, n)
        Prior mean.
    labels : array (n,)
        Observations: classes and counts as int64, other numbers as float64.
    start : array
        Flat vector of initial sites or weights.
    max_iterations : int
    gradient : bool
        Whether derivatives of the evidence are computed.
    relative : bool
        Whether the likelihood does not depend on a common shift of a point's latent values, and labels are class
        numbers. The solver is then run with a relative prior mean.
    form : type of PriorForm
        Function that returns the prior from its array and mean.
    parameters : array (p, n)
        Parameters of the likelihood at each point.
    trusted : bool
        Whether to skip the check, by a factorisation, that the prior covariance is positive semi-definite.
    slopes : bool
        Whether derivatives in the parameters are computed.
    """
    # Kernels are compiled for contiguous and writeable arrays.
    mean, parameters = (np.require(values, np.float64, ["C", "W"]) for values in (mean, parameters))
    labels = np.require(labels, np.float64 if labels.dtype.kind == "f" else np.int64, ["C", "W"])
    start = np.array(start, dtype=np.float64)
    history = History(max_iterations)
    # Non-finite numbers result in a status, without a NumPy warning.
    with one_blas_thread(), gather(len(labels)) as team, np.errstate(all="ignore"):
        try:
            problem = Problem(form(k, mean), mean, labels, parameters, team, slopes)
            return _solve(solver, problem, start, history, gradient, relative, trusted)
        except MemoryError:
            return _failed(OUT_OF_MEMORY, mean, start, history)


def _solve(
    solver: Solver, problem: Problem, start: Array, history: History, gradient: bool, relative: bool, trusted: bool
) -> Outcome:
    status = check_problem(problem, start, trusted)
    if status != CONVERGED:
        return _failed(status, problem.mean, start, history)
    less, common = relative_problem(problem) if relative else (problem, np.zeros(len(problem.labels)))
    found = solver(less, start, history)
    slopes = Derivatives(np.empty(0), np.empty(0))
    if gradient and found.status == CONVERGED:
        slopes = found.derivatives()
    elif gradient:
        slopes = Derivatives(
            *(np.full_like(values, np.nan) for values in (problem.k, problem.mean, problem.parameters))
        )
    return Outcome(
        found.evidence,
        slopes.k,
        slopes.mean,
        found.weights,
        found.mean + common,
        found.cov,
        found.precision,
        start,
        history.array,
        found.status,
        found.rung,
        slopes.parameters,
    )


def _failed(status: int, mean: Array, start: Array, history: History) -> Outcome:
    c, n = mean.shape
    nothing = np.full((c, n), np.nan)
    return Outcome(
        np.nan, np.empty(0), np.empty(0), nothing, nothing, np.full((n, c, c), np.nan), nothing, start, history.array,
        status, 0,
    )  # fmt: skip
