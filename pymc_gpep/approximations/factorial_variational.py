"""The factorial variational method (Csató, Fokoué, Opper, Schottky and Winther 2000; Nickisch and Rasmussen 2008)."""

from dataclasses import dataclass, field
from typing import ClassVar

from pymc_gpep.approximations.approximator import Approximator
from pymc_gpep.approximations.limits import at_least, positive
from pymc_gpep.approximations.linear_response import factorial_response
from pymc_gpep.approximations.solution import Solution
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.posterior import DensePosterior
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import GaussianAverage, ParameterSlopes
from pymc_gpep.solvers.factorial_variational import factorial_variational, without_points
from pymc_gpep.solvers.problem import Found, History, Problem

__all__ = ["FactorialVariational"]


@dataclass(frozen=True)
class FactorialVariational(Approximator):
    """Independent latent values, of any distributions; the evidence is a lower bound.

    The Gaussian has their means and variances. Section 7 of Nickisch and Rasmussen (2008). It needs the inverse of the
    prior covariance, and its bound falls without limit where latent values become equal. A point of which nothing was
    observed, such as a count under an exposure of 0, has no factor. It follows the prior given the others, so that the
    bound is the same without it.

    Parameters
    ----------
    tolerance : float
        For the slope of what the means maximise, and for Newton's step in these, in absolute terms. Where rounding does
        not allow what is asked, the iteration ends where rounding begins.
    max_iterations : int
        Limit on the steps of Newton's method.

    Examples
    --------
    >>> solution = gpep.FactorialVariational().solve(K, mean[0], y == 2)  # (n, n), (n,), (n,)
    >>> solution.log_evidence
    """

    tolerance: float = field(default=1e-9, metadata=positive())
    max_iterations: int = field(default=200, metadata=at_least(1))

    name: ClassVar[str] = "fv"
    needs: ClassVar[tuple[type, ...]] = (GaussianAverage,)
    follows_parameters: ClassVar[bool] = True
    schemes: ClassVar[tuple[str, ...]] = ("Newton's method",)
    bounds: ClassVar[bool] = True
    inverts_prior: ClassVar[bool] = True

    @classmethod
    def approximates(cls, likelihood: Likelihood) -> bool:
        """Whether a likelihood has what this needs, and makes what the means maximise concave."""
        return likelihood.log_concave and super().approximates(likelihood)

    @property
    def site_form(self) -> SiteForm:
        return SiteForm.FACTORIAL

    def solver(self, problem: Problem, start: Array, history: History, *, likelihood: Likelihood) -> Found:
        average = likelihood.computation(GaussianAverage).terms
        slopes = likelihood.computation(ParameterSlopes).average if likelihood.offers(ParameterSlopes) else None

        def solve(problem: Problem, start: Array) -> Found:
            return factorial_variational(problem, start, history, average=average, slopes=slopes, **self.settings)

        silent = likelihood.says_nothing(problem.labels)
        return without_points(solve, problem, start, silent) if silent.any() else solve(problem, start)

    def start_size(self, n_functions: int, n_points: int) -> int:
        """Length of the vector that a solve starts from: weights."""
        return n_points

    def response(self, solution: Solution) -> DensePosterior:
        """The Gaussian of the sites that the factors stand for: the means follow each other."""
        return factorial_response(solution)
