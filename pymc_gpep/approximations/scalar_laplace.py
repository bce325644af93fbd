"""The Laplace approximation for a likelihood of one latent function (Williams and Barber 1998)."""

from dataclasses import dataclass, field
from typing import ClassVar

from pymc_gpep.approximations.approximator import Approximator
from pymc_gpep.approximations.limits import at_least, positive
from pymc_gpep.array_types import Array, Observed
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.kernels.status import CONVERGED
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import AverageLogDensity, ParameterSlopes, ScalarDensity
from pymc_gpep.solvers.fixed_cavity import fixed_cavity
from pymc_gpep.solvers.prior_form import Algebra
from pymc_gpep.solvers.problem import Found, History, Problem
from pymc_gpep.solvers.smoothed_mode import smoothed_mode

__all__ = ["ScalarLaplace"]


@dataclass(frozen=True)
class ScalarLaplace(Approximator):
    """Gaussian at the posterior mode, with the curvature of the log posterior there.

    Parameters
    ----------
    tolerance : float
        For the gradient of the log posterior with respect to the latent values, and for Newton's step in these, in
        absolute terms. Where rounding does not allow what is asked, for variances above about 1e6, the iteration ends
        where rounding begins.
    max_iterations : int
        Limit on the steps of Newton's method.
    smoothed_mean : bool
        Whether means are those that the log density averaged over Laplace's variances has, which are nearer to the
        posterior's where that is skewed. Variances and evidences stay those at the mode.

    Examples
    --------
    >>> solution = gpep.ScalarLaplace().solve(K, mean[0], y == 2)  # (n, n), (n,), (n,)
    >>> solution.log_evidence
    """

    tolerance: float = field(default=1e-9, metadata=positive())
    max_iterations: int = field(default=200, metadata=at_least(1))
    smoothed_mean: bool = False

    name: ClassVar[str] = "laplace"
    needs: ClassVar[tuple[type, ...]] = (ScalarDensity,)
    algebra: ClassVar[Algebra] = Algebra.FUNCTION
    follows_parameters: ClassVar[bool] = True
    looseness: ClassVar[float] = 1e4
    schemes: ClassVar[tuple[str, ...]] = ("Newton's method",)

    @property
    def site_form(self) -> SiteForm:
        return SiteForm.INDEPENDENT

    def solver(self, problem: Problem, start: Array, history: History, *, likelihood: Likelihood) -> Found:
        density = likelihood.computation(ScalarDensity)

        def average(mean: Array, variance: Array, y: Observed, parameters: Array, out: Array) -> None:
            density.derivatives(mean, y, parameters, out[:4])  # of widths of 0

        slopes = likelihood.computation(ParameterSlopes).derivatives if likelihood.offers(ParameterSlopes) else None
        found = fixed_cavity(
            problem, start, history, average=average, slopes=slopes, wide=False, tolerance=self.tolerance
        )
        if not (self.smoothed_mean and found.status == CONVERGED):
            return found
        return smoothed_mode(problem, found, likelihood.computation(AverageLogDensity).terms)

    def start_size(self, n_functions: int, n_points: int) -> int:
        """Length of the vector that a solve starts from: weights."""
        return n_points
