"""Variational Bayes for the multinomial probit (Girolami and Rogers 2006)."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.approximations.approximator import Approximator
from pymc_gpep.approximations.limits import at_least, positive
from pymc_gpep.approximations.linear_response import curvature_response
from pymc_gpep.approximations.solution import Solution
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.posterior import DensePosterior
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import BlockCurvature, UtilityBound
from pymc_gpep.solvers.problem import Found, History, Problem
from pymc_gpep.solvers.variational_bayes import variational_bayes

__all__ = ["VariationalBayes"]


@dataclass(frozen=True)
class VariationalBayes(Approximator):
    """Factorised posterior q(f) q(v) of latent values and utilities v; the evidence is a lower bound.

    The posterior means are the mode of the posterior of the latent values, to which Newton steps go up. On iris and
    wine 3 to 25 of them suffice, whatever the prior variance (up to e¹²) and the length scale. Classes are independent
    under q(f), with covariance K (K + I)⁻¹: one factorisation for each distinct prior covariance is all there is.

    Parameters
    ----------
    tolerance : float
        For the largest change of a mean utility, and the distance of the means from the optimum in units of the
        posterior.
    max_iterations : int
        Limit on Newton steps.
    max_products : int
        Limit on matrix products with the prior covariance, for each class, in one Newton step.

    Examples
    --------
    >>> solution = gpep.VariationalBayes().solve(K, mean, y)  # (n, n), (3, n), (n,)
    >>> solution.log_evidence
    """

    tolerance: float = field(default=1e-8, metadata=positive())
    max_iterations: int = field(default=200, metadata=at_least(1))
    max_products: int = field(default=50, metadata=at_least(0))

    name: ClassVar[str] = "vb"
    needs: ClassVar[tuple[type, ...]] = (UtilityBound, BlockCurvature)  # the latter for the response
    schemes: ClassVar[tuple[str, ...]] = ("Newton's method",)
    bounds: ClassVar[bool] = True

    @property
    def site_form(self) -> SiteForm:
        return SiteForm.INDEPENDENT

    def solver(self, problem: Problem, start: Array, history: History, *, likelihood: Likelihood) -> Found:
        bound = likelihood.computation(UtilityBound)
        return variational_bayes(problem, start, history, terms=bound.terms, **self.settings)

    def start_size(self, n_functions: int, n_points: int) -> int:
        """Length of the vector that a solve starts from."""
        return n_functions * n_points

    def bound(
        self, posterior: DensePosterior, labels: NDArray[np.int64], likelihood: Likelihood
    ) -> tuple[float, Array]:
        """The bound with q(f) a posterior whose sites have precision 1, and mean utilities (c, n) under the best q(v).

        The posterior with these in the place of what was observed, with unit noise, is the paper's next one (4.6).
        """
        mean, weights = (np.ascontiguousarray(each) for each in (posterior.mean, posterior.weights))
        c, n = mean.shape
        slope, curvature = np.empty((c, n)), np.empty((n, c, c))
        terms = likelihood.computation(UtilityBound).terms
        value = terms(labels, mean, weights, posterior.prior.mean, slope, curvature)
        return float(value) - 0.5 * posterior.log_determinant, mean + slope + weights

    def response(self, solution: Solution) -> DensePosterior:
        """Laplace's posterior: the means are the mode of the posterior of the latent values, and move as that does."""
        return curvature_response(solution)
