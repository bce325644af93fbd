"""The Gaussian nearest to the posterior (Opper and Archambeau 2009; Nickisch and Rasmussen 2008, section 5)."""

from dataclasses import dataclass
from typing import ClassVar

from pymc_gpep.approximations.approximator import AcceleratedBound
from pymc_gpep.approximations.linear_response import average_response, bound_response
from pymc_gpep.approximations.solution import Solution
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.posterior import DensePosterior
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import AverageLogDensity, GaussianAverage, ParameterSlopes, QuadraticBound
from pymc_gpep.solvers.prior_form import Algebra
from pymc_gpep.solvers.problem import Found, History, Problem
from pymc_gpep.solvers.scalar_bound import average_target, bound_target, scalar_bound


@dataclass(frozen=True)
class KL(AcceleratedBound):
    """The Gaussian q with the smallest KL(q ‖ posterior); the evidence is a lower bound, the best by a Gaussian."""

    name: ClassVar[str] = "kl"
    needs: ClassVar[tuple[type, ...]] = (AverageLogDensity,)
    algebra: ClassVar[Algebra] = Algebra.FUNCTION
    follows_parameters: ClassVar[bool] = True

    def solver(self, problem: Problem, start: Array, history: History, *, likelihood: Likelihood) -> Found:
        terms = likelihood.computation(AverageLogDensity).terms
        average = likelihood.computation(GaussianAverage).terms if likelihood.offers(GaussianAverage) else None
        slopes = likelihood.computation(ParameterSlopes).average_log if likelihood.offers(ParameterSlopes) else None
        return scalar_bound(
            problem,
            start,
            history,
            terms=terms,
            target=average_target,
            slopes=slopes,
            average=average,
            largest_precision=likelihood.largest_precision,
            least_precision=likelihood.least_precision,
            several_rows=likelihood.several_rows,
            **self.settings,
        )

    def response(self, solution: Solution) -> DensePosterior:
        """The Gaussian with what is left of the precisions where variances follow the means."""
        return average_response(solution)


@dataclass(frozen=True)
class QuadraticVB(AcceleratedBound):
    """The best Gaussian under quadratic functions below the log density of each point, these chosen best as well.

    For the logit the bound is that of Jaakkola and Jordan (2000). For the probit it is one of curvature 1, which is
    variational Bayes with utilities (Girolami and Rogers 2006). The evidence is a lower bound below that of `KL`.
    """

    name: ClassVar[str] = "vb"
    needs: ClassVar[tuple[type, ...]] = (QuadraticBound,)
    algebra: ClassVar[Algebra] = Algebra.FUNCTION

    def solver(self, problem: Problem, start: Array, history: History, *, likelihood: Likelihood) -> Found:
        terms = likelihood.computation(QuadraticBound).terms
        return scalar_bound(
            problem,
            start,
            history,
            terms=terms,
            target=bound_target,
            largest_precision=likelihood.largest_precision,
            **self.settings,
        )

    def response(self, solution: Solution) -> DensePosterior:
        """The Gaussian with the curvature of the bound in the means, which may be far below the precisions."""
        return bound_response(solution)
