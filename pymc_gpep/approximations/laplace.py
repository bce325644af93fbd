"""The Laplace approximation: for a softmax, for any curvature of a point, and for one latent function.

The approximation is a Gaussian at the mode of the posterior (Williams and Barber 1998; Rasmussen and Williams 2006,
section 3.5). `solvers/newton.py` finds the mode.

Laplace's method may also correct the class probabilities of a softmax (Tierney and Kadane 1986). It approximates both
evidences in the ratio p(y* | y) = p(y, y*) / p(y), for a new label y*. Their errors due to skewness are nearly equal,
and cancel (nested EP paper, section 4.1.1, LA-TKP). Averages over the Gaussian approximation keep these errors.

With one latent function the mean may be corrected (`smoothed_mode`). The log posterior is Σ ℓ_i(f_i) − ½ (f − m₀)ᵀ K⁻¹
(f − m₀), with the log density ℓ_i of point i and the prior N(m₀, K). The corrected mean maximises this expression with
g(m, v) in place of ℓ, the average of ℓ over N(m, v), at Laplace's variances v. Among Gaussians with these variances,
this mean has the smallest KL divergence (van Niekerk and Rue 2024). Newton's method uses ∂²g/∂m² = 2 ∂g/∂v.

For one function `fixed_cavity` is Laplace's method and naive TAP. The symbols h, D, b and W are defined in
`pymc_gpep.solvers.newton`. The posterior is N(f, V) with V = (K⁻¹ + W)⁻¹. With A = I + WK and B = A⁻¹ W the evidence

    Σ_i [h_i + ½ D_i b_i² + ½ log(1 + W_i D_i)] − ½ bᵀ(f − m₀) − ½ log|I + WK|.

For D = 0 this is Laplace's evidence. For any D it is EP's expression. Apart from the terms with W the evidence is
stationary in the mean. These terms have the derivative ½ τ_i in W_i. Here τ_i = D_i / (1 + W_i D_i) − V_ii is the
tilted minus the posterior variance (0 for EP's cavities). With B = (K + W⁻¹)⁻¹ and u = (I + WK)⁻¹ (½ τ ∘ ∂W/∂f) the
derivatives of the evidence are

    d/dK = ½ (bbᵀ − B) + ½ (ubᵀ + buᵀ) + diag(½ τ ∘ ∂W/∂D + (Ku) ∘ ∂b/∂D),   d/dm₀ = b + u,

with ∂W/∂D and ∂b/∂D at fixed f. The last term of d/dK applies if D = K_ii. The derivative of Laplace's evidence with
respect to a parameter θ_i of point i is ∂ℓ/∂θ − ½ τ ∂ℓ″/∂θ + (Ku) ∂ℓ′/∂θ.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from pymc_gpep.approximations.approximator import Approximator
from pymc_gpep.approximations.limits import at_least, positive, refused
from pymc_gpep.approximations.solution import Correction, Solution
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.kernels.status import CONVERGED, NOT_CONCAVE, OUT_OF_DIGITS, OUT_OF_ITERATIONS
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import (
    AverageLogDensity,
    BlockCurvature,
    CoupledCurvature,
    ParameterSlopes,
    ScalarDensity,
)
from pymc_gpep.solvers.newton import CavityAscent, ascend, at_rows, log_posterior, newton, of_width_zero, step_length
from pymc_gpep.solvers.problem import NO_PARAMETERS, Algebra, Derivatives, Found, FunctionPosterior, History, Problem
from pymc_gpep.solvers.site_algebra import Moved, SiteAlgebra
from pymc_gpep.solvers.team import one_blas_thread


@dataclass(frozen=True)
class NewtonApproximation(Approximator):
    """Approximation whose means maximise an objective by Newton's method.

    Parameters
    ----------
    tolerance : float
        Absolute tolerance on the objective's slope in the means, and on Newton's step. If rounding errors are larger,
        as for variances above about 1e6, the iteration ends at the level of rounding.
    max_iterations : int
        Limit on the steps of Newton's method.
    """

    tolerance: float = field(default=1e-9, metadata=positive())
    max_iterations: int = field(default=200, metadata=at_least(1))

    schemes: ClassVar[tuple[str, ...]] = ("Newton's method",)

    def start_size(self, n_functions: int, n_points: int) -> int:
        """Return the length of the vector from which a solve starts: weights."""
        return n_functions * n_points


# A step that changes differences of latent values by less is not shortened: the curvature changes by at most e^0.5 < 2.
_CLOSE = 0.5


class FunctionsAscent(ABC):
    """Objective of Newton's method for several functions, see `pymc_gpep.solvers.newton.Ascent`.

    Attributes
    ----------
    precision : array
        Curvature at f, in the shape of the sites.
    """

    sees_common = False

    def __init__(self, problem: Problem, density: Any, algebra: SiteAlgebra, shape: tuple[int, ...]) -> None:
        self._problem, self._density, self.algebra = problem, density, algebra
        self.f, self.gradient = np.full((2, *problem.mean.shape), np.nan)
        self.precision = np.full(shape, np.nan)

    def solve(self, residual: Array, step: Array) -> None:
        self.algebra.solve(residual, step)

    @abstractmethod
    def write_slope(self, cov: Array, slope: Array) -> None:
        """Write the derivative (c, n) of −½ log|I + WK| in the latent values, from posterior covariances (n, c, c)."""

    def parameter_slopes(self, cov: Array, moved: Moved) -> Array:
        """Return derivatives (p, n) of the evidence in parameters; `moved` is `algebra.moved` of the slope."""
        return NO_PARAMETERS


class CoupledAscent(FunctionsAscent):
    """Objective for a likelihood with `CoupledCurvature`. `precision` (c, n) is π of curvatures diag(π) − ππᵀ / 1ᵀπ."""

    def __init__(self, problem: Problem, density: CoupledCurvature) -> None:
        algebra = problem.prior.coupled(len(problem.mean), problem.team)
        super().__init__(problem, density, algebra, problem.mean.shape)

    @property
    def stiffness(self) -> Array:
        return np.maximum(self.precision, 1.0)

    def log_density(self) -> float:
        return float(self._density.log_density(self.f, self._problem.labels, self.precision, self.gradient))

    def factorise(self) -> tuple[bool, float]:
        ok, log_det = self.algebra.factorise(self.precision)
        return ok, log_det - float(np.log(self.precision.sum(axis=0)).sum())

    def length(self, x: Array, step: Array, image: Array, value: float, slope: float) -> float:
        inner = self._problem.prior.inner
        shrinkage, curvature = inner(x, step, image), inner(step, step, image)
        if np.ptp(image, axis=0).max() < _CLOSE:
            return 1.0
        y = self._problem.labels
        return step_length(lambda t: self._density.along_line(self.f, y, image, t), slope, shrinkage, curvature)

    def write_slope(self, cov: Array, slope: Array) -> None:
        self._density.curvature_slope(self.precision, cov, slope)


_SUFFICIENT = 1e-4  # A step is accepted if the objective rises by this share of the rise that the slope predicts.
_MAX_HALVINGS = 50
_CLOSE_TO_MODE = 0.1  # A step that changes latent values by less is not shortened: rounding hides its rise.


class BlockAscent(FunctionsAscent):
    """Objective for a likelihood with `BlockCurvature`. `precision` is the curvature (n, c, c) of the points."""

    stiffness = 1.0

    def __init__(self, problem: Problem, density: BlockCurvature, *, signed: bool = False) -> None:
        c, n = problem.mean.shape
        super().__init__(problem, density, problem.prior.blocks(c, signed=signed), (n, c, c))
        self._trial = np.empty((c, n))

    def log_density(self) -> float:
        return float(self._density.log_density(self.f, self._problem.labels, self.gradient))

    def factorise(self) -> tuple[bool, float]:
        self._density.curvature(self.f, self._problem.labels, self.precision)
        return self.algebra.factorise(self.precision)

    def length(self, x: Array, step: Array, image: Array, value: float, slope: float) -> float:
        t = 1.0
        if np.abs(image).max() < _CLOSE_TO_MODE:
            return t
        for _ in range(_MAX_HALVINGS):
            if log_posterior(self._problem, x + t * step, self, self._trial) >= value + _SUFFICIENT * t * slope:
                break
            t *= 0.5
        return t

    def write_slope(self, cov: Array, slope: Array) -> None:
        self._density.curvature_slope(self.f, self._problem.labels, cov, slope)


type AnyAscent = CoupledAscent | BlockAscent


def laplace_of_functions(
    problem: Problem, start: Array, history: History, ascent: AnyAscent, *, tolerance: float
) -> Found:
    """Run the Laplace approximation of several functions. `start` has the weights b (c, n), and is overwritten."""
    b = start.reshape(problem.mean.shape)
    b -= b.mean(0)  # At the mode the weights of a point sum to 0.
    x = problem.prior.coordinates(b)
    evidence, status = newton(problem, x, ascent, history, tolerance=tolerance)
    b[:] = problem.prior.weights(x, ascent.gradient)
    return found_at_mode(problem, b, x, ascent, evidence, status)


def found_at_mode(
    problem: Problem, b: Array, x: Array, ascent: AnyAscent, evidence: float, status: int, *, exact: bool = True
) -> Found:
    """Return the result of a search for the mode that ended at weights b (c, n) and coordinates x of the prior.

    If the last factorised curvature is not the exact curvature, weights and covariances in the result are NaN.
    """
    c, n = b.shape
    cov = np.full((n, c, c), np.nan)
    found = exact and status in (CONVERGED, OUT_OF_ITERATIONS, OUT_OF_DIGITS)
    if found:
        ascent.algebra.moments(b, np.empty((c, n)), cov)

    def derivatives() -> Derivatives:
        slope = np.empty((c, n))
        ascent.write_slope(cov, slope)
        moved = ascent.algebra.moved(slope)
        slopes = ascent.parameter_slopes(cov, moved)
        return Derivatives(ascent.algebra.gradient(b, moved, x), moved.weights + b, slopes)

    weights = b if found else np.full_like(b, np.nan)
    return Found(evidence, status, weights, ascent.f, cov, ascent.precision, derivatives)


_TOLERANCE = 1e-7  # Tolerance of the mode with a new point. The error of the evidence is of the same size.
_MAX_ITERATIONS = 200


@one_blas_thread()
def tierney_kadane_probabilities(solution: Solution, k_cross: Array, k_new: Array, prior_mean: Array) -> Array:
    """Return class probabilities at m new points, by Laplace's method with the new point among the data.

    For each new point and label, a search for the mode starts from the mode of the data. It takes a few iterations of
    O((c + 1) n³) each. So m points take at least mc times as long as one iteration of the fit.

    Parameters
    ----------
    solution : Solution
        Solution of `Laplace`, for a likelihood with `CoupledCurvature`.
    k_cross : array (1 or c, m, n)
        Prior covariance between new points and data.
    k_new : array (1 or c, m)
        Prior variances at the new points.
    prior_mean : array (c, m)
        Prior mean at the new points.

    Returns
    -------
    array (m, c)
        Probabilities that sum to 1 at each point; NaN if no mode was found, for example with an indefinite covariance.

    Raises
    ------
    ValueError
        If the shapes do not agree.
    """
    posterior, prior = solution.posterior, solution.posterior.prior
    curvature = solution.likelihood.computation(CoupledCurvature)
    c, n = prior.shape
    prior_mean = np.ascontiguousarray(prior_mean, np.float64)
    if prior_mean.ndim != 2 or len(prior_mean) != c:
        raise ValueError(f"prior_mean must have shape ({c}, m), but has {prior_mean.shape}.")
    m = prior_mean.shape[1]
    for name, value, shapes in (
        ("k_cross", k_cross, ((1, m, n), (c, m, n))),
        ("k_new", k_new, ((1, m), (c, m))),
    ):
        if np.shape(value) not in shapes:
            raise ValueError(f"{name} must have shape {shapes[0]} or {shapes[1]}, but has {np.shape(value)}.")
    matrices = max(len(prior.k), len(k_cross), len(k_new))
    y, k = solution.labels, np.empty((matrices, n + 1, n + 1))
    k[:, :n, :n] = prior.k
    evidences = np.full((m, c), np.nan)
    for new in range(m):
        k[:, n, :n] = k[:, :n, n] = k_cross[:, new]
        k[:, n, n] = k_new[:, new]
        mean = np.column_stack([prior.mean, prior_mean[:, new]])
        for label in range(c):
            weights = np.column_stack([posterior.weights, np.zeros(c)])
            observed = np.append(y, label) if y.ndim == 1 else np.vstack([y, np.eye(c, dtype=np.int64)[label]])
            problem = Problem(DensePrior(k, mean), mean, observed)
            ascent = CoupledAscent(problem, curvature)
            evidence, status = newton(problem, weights, ascent, History(_MAX_ITERATIONS), tolerance=_TOLERANCE)
            if status == CONVERGED:
                evidences[new, label] = evidence
    probabilities = np.exp(evidences - evidences.max(axis=1, keepdims=True))
    return probabilities / probabilities.sum(axis=1, keepdims=True)


@dataclass(frozen=True)
class Laplace(NewtonApproximation):
    """Gaussian with the posterior mode as mean, and the curvature of the log posterior at the mode."""

    name: ClassVar[str] = "laplace"
    site_form: ClassVar[SiteForm] = SiteForm.COUPLED
    needs: ClassVar[tuple[type, ...]] = (CoupledCurvature,)
    algebra: ClassVar[Algebra] = Algebra.FUNCTIONS
    corrections: ClassVar[Mapping[str, Correction]] = {
        "tk": Correction(
            "the Laplace approximation of a softmax, pm.Categorical(logit_p=...)", tierney_kadane_probabilities
        ),
    }

    def solver(self, problem: Problem, start: Array, history: History, *, likelihood: Likelihood) -> Found:
        ascent = CoupledAscent(problem, likelihood.computation(CoupledCurvature))
        return laplace_of_functions(problem, start, history, ascent, **self.settings)


@dataclass(frozen=True)
class LaplaceProbit(NewtonApproximation):
    """Gaussian with the posterior mode as mean, and the curvature of the log posterior at the mode.

    The curvature of a multinomial probit has no structure that saves work. Therefore time grows with (cn)³ if prior
    covariances are matrices.

    Parameters
    ----------
    max_size : int
        Largest accepted number cn of latent values if prior covariances are matrices; otherwise not used.
    """

    max_size: int = field(default=3000, metadata=at_least(1))

    name: ClassVar[str] = "laplace"
    site_form: ClassVar[SiteForm] = SiteForm.BLOCK
    needs: ClassVar[tuple[type, ...]] = (BlockCurvature,)
    algebra: ClassVar[Algebra] = Algebra.FUNCTIONS

    def solver(self, problem: Problem, start: Array, history: History, *, likelihood: Likelihood) -> Found:
        if (result := refused(problem, self.max_size)) is not None:
            return result
        ascent = BlockAscent(problem, likelihood.computation(BlockCurvature))
        return laplace_of_functions(problem, start, history, ascent, tolerance=self.tolerance)

    def too_large(self, n_functions: int, n_points: int) -> str:
        size = n_functions * n_points
        if size > self.max_size:
            return (
                f"A dense Laplace approximation of {n_functions} latent functions at {n_points} points is slow: it "
                f"factorises a matrix of {size} rows. Use method='nested_ep', or allow the matrix with max_size={size} "
                f"(now {self.max_size})."
            )
        return ""


_STEPS, _HALVINGS = 50, 30
_TOLERANCE_OF_MEANS = 1e-8  # Largest change of a mean that counts as converged, in standard deviations.


def smoothed_mode(problem: Problem, found: Found, terms: Callable[..., None]) -> Found:
    """Return a result of Laplace's method with means that maximise the averaged log density, and their weights.

    `terms` is the kernel of `pymc_gpep.likelihoods.local_computations.AverageLogDensity`. The evidence is unchanged.
    """
    prior_mean, variance = problem.mean[0], np.ascontiguousarray(found.cov[:, 0, 0])
    mean, b = found.mean[0].copy(), found.weights[0].copy()
    posterior = problem.prior.posterior(prior_mean)

    def look(at: Array) -> Array:
        g = np.empty((3, at.size))
        terms(at, variance, problem.labels, problem.parameters, g)
        return g

    def height(g: Array, at: Array, weights: Array) -> float:
        return float(g[0].sum() - 0.5 * weights @ (at - prior_mean))

    g = look(mean)
    for _ in range(_STEPS):
        precision = np.maximum(-2.0 * g[2], 0.0)
        if not posterior.update(precision, g[1] + precision * mean):
            break
        step, turn, before = posterior.mean - mean, posterior.weights - b, height(g, mean, b)
        length = 1.0
        for _ in range(_HALVINGS):
            new = look(mean + length * step)
            if height(new, mean + length * step, b + length * turn) >= before - 1e-10 * abs(before):
                break
            length *= 0.5
        mean, b, g = mean + length * step, b + length * turn, new
        if np.abs(step).max() < _TOLERANCE_OF_MEANS * np.sqrt(variance.max()):
            return found._replace(mean=mean[None], weights=b[None])
    return found._replace(status=OUT_OF_ITERATIONS)


@dataclass(frozen=True)
class ScalarLaplace(NewtonApproximation):
    """Gaussian with the posterior mode as mean, and the curvature of the log posterior at the mode.

    Parameters
    ----------
    smoothed_mean : bool
        Whether means maximise the log density averaged over Laplace's variances. Such means are nearer to the means of
        a skewed posterior. Variances and evidence are computed at the mode.
    """

    smoothed_mean: bool = False

    name: ClassVar[str] = "laplace"
    site_form: ClassVar[SiteForm] = SiteForm.INDEPENDENT
    needs: ClassVar[tuple[type, ...]] = (ScalarDensity,)
    algebra: ClassVar[Algebra] = Algebra.FUNCTION
    follows_parameters: ClassVar[bool] = True
    looseness: ClassVar[float] = 1e4

    def solver(self, problem: Problem, start: Array, history: History, *, likelihood: Likelihood) -> Found:
        average = of_width_zero(likelihood.computation(ScalarDensity).derivatives)
        slopes = likelihood.computation(ParameterSlopes).derivatives if likelihood.offers(ParameterSlopes) else None
        found = fixed_cavity(
            problem, start, history, average=average, slopes=slopes, wide=False, tolerance=self.tolerance
        )
        if not (self.smoothed_mean and found.status == CONVERGED):
            return found
        return smoothed_mode(problem, found, likelihood.computation(AverageLogDensity).terms)


_CONVEX = 1e-6  # A log density is not concave if its second derivative exceeds this fraction of the prior precision.


def fixed_cavity(
    problem: Problem,
    start: Array,
    history: History,
    *,
    average: Callable[..., None],
    slopes: Callable[..., None] | None = None,
    wide: bool,
    tolerance: float,
) -> Found:
    """Run Laplace's approximation. If `wide`, run naive TAP, where cavities have the prior variances.

    `start` has the weights b (1, n), and is overwritten. `average` is the kernel of
    `pymc_gpep.likelihoods.local_computations.GaussianAverage`, `slopes` the first kernel of `ParameterSlopes`.
    """
    n = problem.labels.size
    b = start.reshape(1, n)
    width = problem.prior.variances[0].copy() if wide else np.zeros(n)

    def volume(log_det: float, w: Array) -> float:
        return log_det - float(np.log1p(w * width).sum())

    ascent = CavityAscent(problem, at_rows(average, problem.labels, problem.parameters), width, volume)
    posterior = ascent.posterior
    evidence, status = ascend(problem, b, ascent, history, tolerance=tolerance)

    def mismatch() -> Array:
        return np.asarray(0.5 * (width / (1.0 + posterior.precision * width) - posterior.variance))

    def slope_in_mean() -> Array:
        return np.asarray(mismatch() * -ascent.h[3] / ascent.kept**3)

    if status == CONVERGED and not wide and (ascent.h[2] * problem.prior.variances[0] > _CONVEX).any():
        status = NOT_CONCAVE
    if status == CONVERGED:
        # Extrapolate the evidence to the end of Newton's next step. The error is of second order in the step.
        prior, x = problem.prior, posterior.coordinates
        right, image = prior.residual(ascent.gradient, x), np.empty((1, n))
        step = posterior.solve(right)
        prior.multiply(step, image)
        rise = float(image[0] @ ascent.gradient[0]) - prior.inner(x, step, image)
        evidence += 0.5 * rise + float(image[0] @ slope_in_mean())

    def derivatives() -> Derivatives:
        kept, third = ascent.kept, ascent.h[3]
        moved = posterior.moved(slope_in_mean())
        u, image = moved.weights, posterior.image(moved.coordinates)
        of_parameters = np.full_like(problem.parameters, np.nan)
        if slopes is not None and of_parameters.size:
            of_density = np.empty((len(of_parameters), 3, n))
            slopes(posterior.mean, problem.labels, problem.parameters, of_density)
            of_parameters = of_density[:, 0] + image * of_density[:, 1] - mismatch() * of_density[:, 2]
        w_slope = -0.5 * (ascent.h[4] - width * third**2 / kept) / kept**2 if wide else None
        of_variance = None if w_slope is None else mismatch() * w_slope + image * 0.5 * third / kept
        return Derivatives(posterior.gradient(moved, of_variance), posterior.weights[None] + u, of_parameters)

    return function_found(posterior, evidence, status, derivatives)


def function_found(
    posterior: FunctionPosterior, evidence: float, status: int, derivatives: Callable[[], Derivatives], rung: int = 0
) -> Found:
    """Return the result of a solver for one latent function, from its posterior."""
    return Found(
        evidence,
        status,
        posterior.weights[None],
        posterior.mean[None],
        posterior.variance[:, None, None],
        posterior.precision[None],
        derivatives,
        rung,
    )
