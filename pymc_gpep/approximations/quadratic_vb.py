"""Variational Bayes by a quadratic bound of every log density (Nickisch and Rasmussen 2008, section 6)."""

from dataclasses import dataclass
from typing import ClassVar

from pymc_gpep.approximations.accelerated_ep import AcceleratedBound
from pymc_gpep.approximations.linear_response import bound_response
from pymc_gpep.approximations.solution import Solution
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.posterior import DensePosterior
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import QuadraticBound
from pymc_gpep.solvers.prior_form import Algebra
from pymc_gpep.solvers.problem import Found, History, Problem
from pymc_gpep.solvers.scalar_bound import bound_target, scalar_bound


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
