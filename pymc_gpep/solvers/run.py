"""One run of a solver: its input checked, its matrices worked on by a team, its outcome as plain arrays."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from pymc_gpep.array_types import Array, Observed
from pymc_gpep.kernels.status import CONVERGED, OUT_OF_MEMORY
from pymc_gpep.solvers.dense_form import DenseForm
from pymc_gpep.solvers.history import History
from pymc_gpep.solvers.prior_form import PriorForm
from pymc_gpep.solvers.problem import NO_PARAMETERS, Derivatives, Found, Problem, check_problem, relative_problem
from pymc_gpep.solvers.team import gather, one_blas_thread

__all__ = ["Outcome", "Solver", "from_start_or_cold", "run"]


class Solver(Protocol):
    """A solver with its options."""

    def __call__(self, problem: Problem, start: Array, history: History, /) -> Found:
        """Solve, from `start`, which is overwritten by where a neighbouring solve may start."""
        ...


class Outcome(NamedTuple):
    """Results of a solver."""

    evidence: float
    """NaN where the solver failed."""
    gradient: Array
    """d evidence / d what the prior covariance is made of; empty unless it was wanted, NaN unless converged."""
    gradient_mean: Array
    """d evidence / d prior mean, (c, n); empty unless it was wanted, NaN unless converged."""
    weights: Array
    """K⁻¹ (posterior mean − prior mean), (c, n)."""
    mean: Array
    cov: Array
    precision: Array
    """Site precisions, in the shape of the approximation's posterior."""
    start: Array
    """Where a solve at neighbouring hyperparameters starts."""
    history: Array
    """Evidence and residual at each iteration, (iterations, 2)."""
    status: int
    rung: int
    """Which of the solver's schemes had the last word, 0 for its first."""
    gradient_parameters: Array = NO_PARAMETERS
    """d evidence / d parameters of the likelihood, (p, n); empty unless it was wanted, NaN unless converged."""

    @property
    def iterations(self) -> int:
        """Number of posteriors computed."""
        return len(self.history)


def from_start_or_cold[S, T](solve: Callable[[S | None], T], start: S | None, is_good: Callable[[T], bool]) -> T:
    """Solve from a start if there is one, and once more from cold where what comes of it is not good.

    Parameters
    ----------
    solve : callable
        Takes a start, or None for a cold one.
    start : optional
    is_good : callable
        Says of a result of `solve` whether it converged, or is worth keeping.
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
    form: type[PriorForm] = DenseForm,
    parameters: Array = NO_PARAMETERS,
    trusted: bool = False,
) -> Outcome:
    """Run a solver on arrays of the right shapes; none of them is overwritten.

    Parameters
    ----------
    solver : Solver
    k : array
        The array of the prior, as its `form` wants it: a covariance is (1 or c, n, n).
    mean : array (c, n)
        Prior mean.
    labels : array (n,)
        Observations: classes and counts as int64, other numbers as float64.
    start : array
        Sites or weights that the solver starts from, flat.
    max_iterations : int
    gradient : bool
        Whether derivatives of the evidence are wanted.
    relative : bool
        Whether the likelihood does not see what is added to all latent values of a point, and labels are numbers of
        these. The solver may then be given less of the prior mean.
    form : type of PriorForm
        How the prior covariance is given.
    parameters : array (p, n)
        Parameters of the likelihood besides latent values at each point.
    trusted : bool
        Whether the prior covariance need not be factorised to see that it is one.
    """
    # Kernels are compiled for arrays that are contiguous and writeable.
    mean, parameters = (np.require(values, np.float64, ["C", "W"]) for values in (mean, parameters))
    labels = np.require(labels, np.float64 if labels.dtype.kind == "f" else np.int64, ["C", "W"])
    start = np.array(start, dtype=np.float64)
    history = History(max_iterations)
    # What is not finite ends as a status; nothing is to be warned of on the way.
    with one_blas_thread(), gather(len(labels)) as team, np.errstate(all="ignore"):
        try:
            problem = Problem(form(k), mean, labels, parameters, team)
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
