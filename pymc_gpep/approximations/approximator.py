"""Base classes of all approximations and of EP, with their options and the method `solve`."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.approximations.cumulants import TiltedFactors
from pymc_gpep.approximations.limits import at_least, check_limits, documented, fraction, positive
from pymc_gpep.approximations.solution import Convergence, Correction, Solution
from pymc_gpep.array_types import Array, Observed
from pymc_gpep.gaussians.posterior import Posterior, make_posterior
from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.gaussians.prior_form import PriorForm
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.kernels.acceleration import interpolated_sites
from pymc_gpep.likelihoods.all_likelihoods import LIKELIHOODS
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.solvers.problem import NO_PARAMETERS, Algebra, Found, History, Outcome, Problem, from_start_or_cold, run
from pymc_gpep.solvers.site_ep import SCHEMES


@dataclass(frozen=True)
class Approximator(ABC):
    """Approximation with its options. It computes a `Solution` from prior moments and labels.

    Parameters
    ----------
    tolerance : float
        Tolerance of convergence.
    max_iterations : int
        Limit on iterations.

    Raises
    ------
    ValueError
        If an option has an invalid value.
    """

    tolerance: float
    max_iterations: int

    name: ClassVar[str]
    """Name of the method in `pm.fit(method=...)`."""
    needs: ClassVar[tuple[type, ...]]
    """Types of the local computations that a likelihood must have, see `pymc_gpep.likelihoods.local_computations`."""
    follows_parameters: ClassVar[bool] = False
    """Whether the evidence has derivatives with respect to parameters of the likelihood (`ParameterSlopes`)."""
    schemes: ClassVar[tuple[str, ...]]
    """Names of the schemes of the fallback sequence, in order."""
    looseness: ClassVar[float] = 1.0
    """Factor that multiplies the tolerance during a search for hyperparameters. Evaluations without derivatives use the
    square of the factor. It is above 1 if the error of the evidence is of second order in the tolerance."""
    bounds: ClassVar[bool] = False
    """Whether the evidence is a lower bound of the log marginal likelihood, possibly far below it."""
    matches_moments: ClassVar[bool] = False
    """Whether the posterior has (approximately) the mean and covariance of each row's tilted distribution."""
    whole_factors: ClassVar[str] = ""
    """Text for messages, such as "for a softmax", if the factor of a point depends on several numbers; else empty."""
    algebra: ClassVar[Algebra] = Algebra.MATRIX
    """Kind of linear algebra that a prior must support for the solver."""
    inverts_prior: ClassVar[bool] = False
    """Whether the solver needs the inverse of the prior covariance."""
    corrections: ClassVar[Mapping[str, Correction]] = {}
    """Corrections of predictive probabilities, by the name of the correction."""

    def __init_subclass__(cls) -> None:
        cls.__doc__ = documented(cls)

    def __post_init__(self) -> None:
        check_limits(self)

    @classmethod
    def approximates(cls, likelihood: Likelihood) -> bool:
        """Return whether a likelihood has the local computations and derivatives that the solver uses."""
        follows = cls.follows_parameters or not likelihood.has_parameters
        return follows and all(likelihood.offers(kind) for kind in cls.needs)

    @classmethod
    def takes(cls, form: type[PriorForm]) -> bool:
        """Return whether the solver supports this form of prior."""
        return cls.algebra in form.algebras

    @classmethod
    def first_likelihood(cls) -> Likelihood:
        """Return the default likelihood: the first supported likelihood in the registry."""
        return next(likelihood for likelihood in LIKELIHOODS if cls.approximates(likelihood))

    @property
    @abstractmethod
    def site_form(self) -> SiteForm:
        """Form of the sites of the approximation."""

    def loosened(self, factor: float) -> Self:
        """Return a copy of this approximation with its tolerance multiplied by `factor`."""
        return self if factor == 1.0 else replace(self, tolerance=factor * self.tolerance)

    @property
    def settings(self) -> dict[str, Any]:
        """Options of the solver by name, except the limit on iterations."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "max_iterations"}

    @abstractmethod
    def solver(self, problem: Problem, start: Array, history: History, *, likelihood: Likelihood) -> Found:
        """Run the solver from the vector `start`, and overwrite the vector; see `pymc_gpep.solvers.problem`."""

    @abstractmethod
    def start_size(self, n_functions: int, n_points: int) -> int:
        """Return the length of the vector from which a solve starts.

        Raises
        ------
        ValueError
            If there are too many functions for the approximation.
        """

    def too_large(self, n_functions: int, n_points: int) -> str:
        """Return an error message with a remedy if the prior covariance matrices are too large; else an empty text."""
        return ""

    def cold(self, n_functions: int, n_points: int, form: type[PriorForm] = DensePrior) -> Array:
        """Return the start vector of a solve without a similar problem (cold start): zeros.

        Raises
        ------
        ValueError
            If the problem is too large for the approximation.
        """
        if form.square and (refusal := self.too_large(n_functions, n_points)):
            raise ValueError(refusal)
        return np.zeros(self.start_size(n_functions, n_points))

    def between(self, starts: Array, weights: Array, nearest: int) -> Array:
        """Return the weighted sum of the starts (s, size) of similar problems.

        The weights (s,) sum to 1 and may be negative. If the sum is invalid, return the start with index `nearest`.
        """
        return np.asarray(weights @ starts)

    def solve(
        self,
        k: Array,
        mean: Array,
        labels: Observed,
        start: Array | None = None,
        *,
        likelihood: Likelihood | None = None,
        parameters: Array = NO_PARAMETERS,
        prior_type: type[PriorForm] = DensePrior,
    ) -> Solution:
        """Approximate the posterior of the latent values.

        Parameters
        ----------
        k : array (n, n) or (c, n, n)
            Prior covariance, shared by all functions or one for each function. Another `prior_type` has its own array.
        mean : array (c, n), or (n,) of one function
            Prior mean.
        labels : array (n,)
            Observations. Classes are counted from 0.
        start : array, optional
            `Solution.start` of a similar problem. The default is a cold start.
        likelihood : Likelihood, optional
            The default is `first_likelihood`.
        parameters : array (p, n), optional
            Parameters of the likelihood at each point, if the likelihood does not contain them.
        prior_type : type, optional
            Form of the prior: `DensePrior` (default), or for example `RowPrior` with coefficients (c, n, q).

        Returns
        -------
        Solution
            Posterior, evidence and convergence of the solve.

        Raises
        ------
        ValueError
            If an input has the wrong shape or is not finite, or labels are not classes. If the problem is too large for
            the approximation, or the approximation does not support the likelihood.
        """
        likelihood = self._bound(likelihood, parameters)
        prior = prior_type.checked(k, mean)
        labels = likelihood.check(labels, *prior.shape)
        begin = self.cold(*prior.shape, form=prior_type)
        if start is not None:
            if np.shape(start) != begin.shape or not np.isfinite(start).all():
                raise ValueError(f"start must be {begin.size} finite numbers, as in solution.start.")
            begin[:] = start
        outcome = self.run(prior.array, prior.mean, labels, begin, likelihood=likelihood, form=prior_type)
        return Solution(
            evidence=outcome.evidence,
            mean=outcome.mean,
            cov=outcome.cov,
            labels=labels,
            likelihood=likelihood,
            posterior=make_posterior(prior, self.site_form, outcome.precision, outcome.weights, outcome.mean),
            start=outcome.start,
            convergence=self.convergence(outcome),
        )

    def convergence(self, outcome: Outcome) -> Convergence:
        """Return the record of a solver's iteration: status, evidences, residuals, tolerance and last scheme."""
        return Convergence(outcome.status, outcome.history, self.tolerance, self.schemes[outcome.rung])

    def solve_near(
        self,
        k: Array,
        mean: Array,
        labels: Observed,
        start: Array | None,
        *,
        likelihood: Likelihood | None = None,
        parameters: Array = NO_PARAMETERS,
        prior_type: type[PriorForm] = DensePrior,
    ) -> Solution:
        """Solve from `start` if it is given. Without convergence, solve again from a cold start."""
        return from_start_or_cold(
            lambda begin: self.solve(
                k, mean, labels, begin, likelihood=likelihood, parameters=parameters, prior_type=prior_type
            ),
            start,
            lambda solution: solution.convergence.converged,
        )

    def run(
        self,
        k: Array,
        mean: Array,
        labels: Observed,
        start: Array,
        gradient: bool = False,
        *,
        likelihood: Likelihood | None = None,
        parameters: Array = NO_PARAMETERS,
        form: type[PriorForm] = DensePrior,
        trusted: bool = False,
        slopes: bool = True,
    ) -> Outcome:
        """Run the solver without checks of the arrays. For the arguments see `pymc_gpep.solvers.problem`."""
        likelihood = self._bound(likelihood, parameters)
        return run(
            lambda problem, start, history: self.solver(
                problem, start, history, likelihood=likelihood.bound_to(problem.labels, problem.parameters)
            ),
            k,
            mean,
            labels,
            start,
            self.max_iterations,
            gradient,
            relative=not likelihood.sees_common,
            form=form,
            parameters=likelihood.parameters,
            trusted=trusted,
            slopes=slopes,
        )

    def _bound(self, likelihood: Likelihood | None, parameters: Array) -> Likelihood:
        """Return the given or default likelihood with its parameters."""
        likelihood = likelihood or self.first_likelihood()
        likelihood = likelihood.given(parameters) if parameters.size else likelihood
        if likelihood.has_parameters and not likelihood.parameters.size:
            raise ValueError(
                f"The likelihood {likelihood.name!r} needs parameters=..., an array (p, n) with these rows: "
                f"{', '.join(likelihood.rows)}."
            )
        return likelihood

    def response(self, solution: Solution) -> Posterior:
        """Return the Gaussian of the linear response. Its covariance is the derivative of posterior means in a force h.

        A force h adds hᵀf to the log likelihood of the latent values f. The derivative is taken at h = 0. The Gaussian
        has the means of the solution. For EP with all couplings, and for Laplace, it is the posterior. Other
        approximations override this method. Leave-one-out uses the derivative for the means of cavities.
        """
        return solution.posterior

    def from_outliers(self, solution: Solution) -> tuple[NDArray[np.intp], Array]:
        """Return indices of outlier rows, and a start in which only outliers have sites. Both may be empty."""
        return np.empty(0, np.intp), np.empty(0)

    def tilted_factors(self, solution: Solution) -> TiltedFactors:
        """Return the factors of EP with the cumulants that EP neglects. These cumulants correct the evidence.

        Raises
        ------
        TypeError
            If the approximation is not EP, or if its factors depend on several numbers.
        """
        if self.whole_factors:
            raise TypeError(
                f"The evidence of {self.name} {self.whole_factors} has no correction. The correction needs factors "
                "that depend on one number, and these factors depend on several numbers."
            )
        raise TypeError(
            f"The evidence of {self.name} has no correction: the correction is for expectation propagation. "
            f"Fit the model with method='ep' to correct its evidence."
        )


# From this factor on the tolerance, solves use the first scheme only: they rank hyperparameters far from a maximum.
_RANKS = 1e4
# A predicted log √α of a site precision α is at most this far below the smallest of the combined values.
_FAR = 1.0


@dataclass(frozen=True)
class AcceleratedEP(Approximator):
    """EP with Anderson acceleration.

    Parameters
    ----------
    tolerance : float
        Tolerance on the largest change of a site, in units of its marginal, and on the relative change of the evidence.
        If the evidence is stationary in the sites, its error is about the square of the tolerance.
    max_iterations : int
        Limit on outer iterations.
    depth : int
        Number of past steps that Anderson acceleration combines; 0 is plain damped EP.
    mixing : float
        Fraction of the combined residual in an accelerated step, in (0, 1].
    damping : float
        Fraction of the full update in a plain step, in (0, 1].
    ladder : bool
        Whether to continue with plain and then smaller steps if the residual no longer decreases (fallback sequence).
    """

    tolerance: float = field(default=1e-6, metadata=positive())
    max_iterations: int = field(default=500, metadata=at_least(1))
    depth: int = field(default=8, metadata=at_least(0))
    mixing: float = field(default=0.9, metadata=fraction())
    damping: float = field(default=0.7, metadata=fraction())
    ladder: bool = True

    schemes: ClassVar[tuple[str, ...]] = SCHEMES

    def loosened(self, factor: float) -> Self:
        found = super().loosened(factor)
        return found if factor < _RANKS else replace(found, ladder=False)

    @property
    def iteration(self) -> dict[str, Any]:
        """Options of `pymc_gpep.solvers.site_ep.site_ep`."""
        return {name: getattr(self, name) for name in ("tolerance", "depth", "mixing", "damping", "ladder")}

    def start_size(self, n_functions: int, n_points: int) -> int:
        """Return the length of the vector from which a solve starts: sites of all latent values."""
        return 2 * n_points * n_functions

    def between(self, starts: Array, weights: Array, nearest: int) -> Array:
        return sites_between(starts, weights, nearest)


def sites_between(starts: Array, weights: Array, nearest: int) -> Array:
    """Return a start from the starts (s, 2n) of similar problems, by averages of log α and of β / √α.

    Here α are the precisions and β the locations of scalar sites. As functions of the hyperparameters, α and β vary by
    orders of magnitude, nearly in proportion. No average exceeds the largest α: a more precise site could be invalid.
    """
    start = np.empty(starts.shape[1])
    interpolated_sites(starts, weights, nearest, _FAR, start)
    return start
