"""Interface of solvers: prior, posterior of one latent function, problem, record of iterations, result, and `run`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from typing import ClassVar, NamedTuple, Protocol

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
from pymc_gpep.solvers.site_algebra import Moved, SiteAlgebra
from pymc_gpep.solvers.team import ALONE, Team, gather, one_blas_thread

EPSILON = float(np.finfo(np.float64).eps)
# Rounding error of a Newton step relative to the variances; see `pymc_gpep.kernels.linalg.lapack`.
STEP_ROUNDING = 8.0 * EPSILON


class FunctionPosterior(ABC):
    """Posterior of f ~ N(m₀, K) times sites exp(νᵀf − ½ fᵀ diag(π) f). Moments are NaN until they are computed.

    Parameters
    ----------
    prior : SolverPrior
        Prior with the covariance K.
    prior_mean : array (n,)
        Prior mean m₀.

    Attributes
    ----------
    precision : array (n,)
        Site precisions π.
    coordinates : array (1, q)
        Coordinates x of the mean, see `SolverPrior.coordinates`.
    weights : array (n,)
        b = K⁻¹ (mean − m₀) = ν − π mean.
    mean, variance : array (n,)
    log_det : float
        log|I + πK|.
    """

    def __init__(self, prior: "SolverPrior", prior_mean: Array) -> None:
        self._prior, self._prior_mean = prior, prior_mean
        self.precision, self.weights, self.mean, self.variance = np.full((4, prior_mean.size), np.nan)
        self.log_det = np.nan
        self.coordinates: Array = self.weights[None] if prior.by_weights else np.empty((1, 0))

    @abstractmethod
    def decompose(self, precision: Array) -> bool:
        """Factorise for site precisions (n,), which suffices for `smooth`. Return whether the posterior is proper."""

    def invert(self) -> None:  # noqa: B027  there may be nothing to compute
        """Compute the inverse for `spread` and `kept`, at about the cost of the decomposition."""

    @abstractmethod
    def spread(self) -> None:
        """Compute the variances for the factorised precisions."""

    @property
    def site_variance(self) -> Array:
        """Variance (n,) of the part of latent values on which sites act."""
        return self.variance

    @property
    @abstractmethod
    def kept(self) -> Array:
        """Ratio of posterior to cavity variance, 1 − π `site_variance`, (n,)."""

    @abstractmethod
    def solve(self, right: Array) -> Array:
        """Return Newton's step in the coordinates for a right-hand side of `SolverPrior.residual`, both (1, q)."""

    def _step(self, force: Array) -> tuple[Array, Array]:
        """Return coordinates (1, q) and values (n,) of (K⁻¹ + π)⁻¹ r, for r (n,)."""
        step = self.solve(self._prior.pull(force[None]))
        return step, self.image(step)

    def image(self, x: Array) -> Array:
        """Return f − m₀ (n,) for coordinates x."""
        image = np.empty((1, self.mean.size))
        self._prior.multiply(x, image)
        return image[0]

    def moved(self, force: Array) -> Moved:
        """Return the change of the mean if rᵀf is added to the log density, for r (n,)."""
        step, image = self._step(force)
        return Moved(self._prior.weights(step, (force - self.precision * image)[None]), step)

    def smooth(self, force: Array) -> Array:
        """Return (I + πK)⁻¹ r (n,), for r (n,)."""
        return self.moved(force).weights[0]

    @abstractmethod
    def gradient(self, moved: Moved | None = None, of_variance: Array | None = None) -> Array:
        """Return the derivative of the log normaliser at fixed sites, in the array of the prior.

        The derivative in K is ½ (bbᵀ − M) with M = (π⁻¹ + K)⁻¹. If the mean moves by `moved`, u, the term ½ (ubᵀ + buᵀ)
        is added. `of_variance` (n,) is added to the derivative in the diagonal of K.
        """

    def locate(self, location: Array) -> None:
        """Compute weights and mean for the current precisions, and locations ν.

        One Newton correction follows, since for large π rounding of ν would change the mean.
        """
        x, image = self._step(location - self.precision * self._prior_mean)
        np.add(self._prior_mean, image, out=self.mean)
        self.coordinates = x + self.solve(self._prior.residual((location - self.precision * self.mean)[None], x))
        np.add(self._prior_mean, self.image(self.coordinates), out=self.mean)
        self.weights[:] = self._prior.weights(self.coordinates, (location - self.precision * self.mean)[None])[0]

    def put(self, x: Array, gradient: Array, mean: Array) -> None:
        """Store a mode: coordinates, gradient of the log density, and mean (n,)."""
        self.coordinates, self.mean[:] = x.copy(), mean
        self.weights[:] = self._prior.weights(self.coordinates, gradient[None])[0]

    def update(self, precision: Array, location: Array) -> bool:
        """Compute all moments for these sites. Return whether the posterior is proper."""
        if not self.decompose(precision):
            return False
        self.invert()
        self.locate(location)
        self.spread()
        return True

    @property
    def log_normaliser(self) -> float:
        """Log ∫ p(f) ∏ sites df with sites scaled to 1 at the mean, −½ log|I + πK| − ½ bᵀ(mean − m₀)."""
        return -0.5 * (self.log_det + self.length)

    @property
    def length(self) -> float:
        """Quadratic form bᵀK b of the prior at the mean."""
        return self._prior.inner(self.coordinates, self.coordinates, (self.mean - self._prior_mean)[None])

    @property
    def divergence(self) -> float:
        """KL(posterior ‖ prior) = ½ (bᵀ(mean − m₀) + Σ kept − n + log|I + πK|)."""
        return 0.5 * float((self.kept - 1.0).sum()) - self.log_normaliser


class Algebra(Enum):
    """Capability of a prior that a solver requires."""

    MATRIX = "the covariance as an array"
    FUNCTION = "the posterior of one function"
    VARIANCES = "the posterior of one function with derivatives in prior variances"
    FUNCTIONS = "sites that couple the functions of a point"


def check_finite(arrays: Mapping[str, Array]) -> None:
    """Raise a ValueError if an array is not finite."""
    for name, values in arrays.items():
        if not np.isfinite(values).all():
            raise ValueError(
                f"{name} must be finite, but has {np.count_nonzero(~np.isfinite(values))} values that are not."
            )


class Prior(ABC):
    """Gaussian prior of sampled variables x: c latent functions at n points, or standard normals that determine them.

    Attributes
    ----------
    mean : array (c, n)
        Prior mean m.
    """

    mean: Array

    def check(self) -> None:  # noqa: B027  there may be nothing to check
        """Raise a NotPositiveDefiniteError if the covariance is not positive definite."""

    def functions(self, x: Array) -> Array:
        """Return the latent values (..., c, n) of sampled variables x; x itself if it contains latent values."""
        return x

    def pulled(self, slope: Array) -> Array:
        """Transform a derivative (c, n) in latent values to a derivative in x."""
        return slope

    @property
    def shape(self) -> tuple[int, int]:
        """Number of latent functions, and of points: (c, n)."""
        c, n = self.mean.shape
        return c, n

    @abstractmethod
    def draw(self, rng: np.random.Generator, count: int) -> Array:
        """Return draws of f, (count, c, n)."""


class SolverPrior(Prior):
    """Gaussian prior of c latent functions at n points, f = m + J z with standard normals z.

    Functions are independent, f_k = m_k + J_k z_k with z (c, q), except in forms where they share z (1, q).

    Parameters
    ----------
    array : array with three axes
        Numbers that define the covariance. Derivatives of evidences are with respect to this array.
    mean : array (c, n)
        Prior mean m.
    """

    def __init__(self, array: Array, mean: Array) -> None:
        # Kernels are compiled for arrays that are contiguous and writeable.
        self.array: Array = np.require(array, np.float64, ["C", "W"])
        self.mean: Array = np.require(mean, np.float64, ["C", "W"])

    square: ClassVar[bool]
    """Whether solvers use n × n matrices."""
    by_weights: ClassVar[bool] = True
    """Whether `coordinates` are weights b. New rows are then predicted from covariances with the data."""

    @property
    def flat(self) -> NDArray[np.int64]:
        """Positions (p,) of the variables with a flat prior."""
        return np.zeros(0, np.int64)

    @property
    def least_kept(self) -> float:
        """Smallest ratio of posterior to cavity variance without loss of digits."""
        return EPSILON

    @property
    @abstractmethod
    def variances(self) -> Array:
        """Prior variances, (1 or c, n)."""

    @abstractmethod
    def is_covariance(self, team: Team) -> bool:
        """Return whether the covariance is positive semi-definite up to rounding."""

    # Coordinates of Newton's method.

    def coordinates(self, b: Array) -> Array:
        """Return the coordinates x of f = m + K b for Newton's method. By default they are the weights b (c, n).

        For f = m + J x with few variables, the coordinates are these variables x (1, q). Under a wide prior, large
        terms cancel in K b, but not in J x.
        """
        return b

    def weights(self, x: Array, gradient: Array) -> Array:
        """Return b (c, n) for the coordinates x of a mode with ∇ log p(y | f) = `gradient` (c, n)."""
        return x

    @abstractmethod
    def multiply(self, x: Array, out: Array) -> None:
        """Write f − m for coordinates x into `out` (c, n): K b for weights b (c, n)."""

    def pull(self, force: Array) -> Array:
        """Return the right-hand side of Newton's step at coordinates 0, for a gradient (c, n)."""
        return force

    def residual(self, gradient: Array, x: Array) -> Array:
        """Return the right-hand side of Newton's step at coordinates x, in the shape of x."""
        return self.pull(gradient) - x

    def inner(self, x: Array, step: Array, image: Array) -> float:
        """Return the inner product of coordinates x and `step` under the prior; `image` is f − m of `step`."""
        return float(np.vdot(x, image))

    def variance_gradient(self, of_variance: Array) -> Array:
        """Return the derivative of Σ_i v_i K_ii with respect to the array of the prior, for one function and v (n,).

        Raises
        ------
        TypeError
            If the form of the prior does not support `Algebra.VARIANCES`.
        """
        raise TypeError(f"{type(self).__name__} has no derivatives in prior variances.")

    def rounding(self, x: Array) -> float:
        """Return the largest change of a Newton step by rounding, at the coordinates x."""
        return STEP_ROUNDING * float(self.variances.max() * np.abs(x).sum())

    def newton_direction(
        self, curvature: Array, slope: Array, reduction: float, limit: int, image: Array, pull: Array
    ) -> None:
        """Solve (I + WK) p = r approximately. Write p into `pull`, K p into `image`. It is for one function.

        `curvature` is W (n,) and `slope` is r (1, n). An iteration stops at the relative residual `reduction`, or after
        `limit` steps. Forms without an iteration use a factorisation.
        """
        posterior = self.posterior(self.mean[0])
        posterior.decompose(curvature)
        pull[0] = posterior.smooth(slope[0])
        self.multiply(pull, image)

    # Posterior moments.

    @abstractmethod
    def posterior(self, prior_mean: Array, *, signed: bool = False) -> FunctionPosterior:
        """Return the posterior of one function with prior mean (n,). `signed` precisions may be negative."""

    def coupled(self, n_functions: int, team: Team) -> SiteAlgebra:
        """Return the algebra of sites with Π_i = diag(π_i) − π_iπ_iᵀ / 1ᵀπ_i, for π (c, n).

        The log determinant that its `factorise` returns is log|I + KΠ| + Σ_i log 1ᵀπ_i.
        """
        raise TypeError(f"{type(self).__name__} is a prior of one latent function.")

    def blocks(self, n_functions: int, *, signed: bool = False) -> SiteAlgebra:
        """Return the algebra of sites with any semi-definite Π_i (n, c, c) whose rows sum to zero.

        If `signed`, Π_i may have negative eigenvalues.
        """
        raise TypeError(f"{type(self).__name__} is a prior of one latent function.")


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
