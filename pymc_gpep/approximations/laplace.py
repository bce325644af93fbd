"""The Laplace approximation where the curvature is that of a softmax.

Williams and Barber (1998); Rasmussen and Williams (2006), section 3.5.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from pymc_gpep.approximations.approximator import Correction
from pymc_gpep.approximations.newton_approximation import NewtonApproximation
from pymc_gpep.approximations.tierney_kadane import tierney_kadane_probabilities
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import CoupledCurvature
from pymc_gpep.solvers.laplace_coupled import laplace_coupled
from pymc_gpep.solvers.prior_form import Algebra
from pymc_gpep.solvers.problem import Found, History, Problem

__all__ = ["Laplace"]


@dataclass(frozen=True)
class Laplace(NewtonApproximation):
    """Gaussian at the posterior mode, with the curvature of the log posterior there.

    Examples
    --------
    >>> solution = gpep.Laplace().solve(K, mean, y)  # (n, n), (3, n), (n,)
    >>> solution.log_evidence
    """

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
        curvature = likelihood.computation(CoupledCurvature)
        return laplace_coupled(problem, start, history, **curvature._asdict(), **self.settings)
