"""The Laplace approximation where the curvature is that of a softmax.

Williams and Barber (1998); Rasmussen and Williams (2006), section 3.5.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from pymc_gpep.approximations.approximator import Approximator, Correction
from pymc_gpep.approximations.limits import at_least, positive
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
class Laplace(Approximator):
    """Gaussian at the posterior mode, with the curvature of the log posterior there.

    Parameters
    ----------
    tolerance : float
        Tolerance on the gradient of the log posterior with respect to the latent values, and on Newton's step in these.
        Both are absolute: a softmax has a scale of one. Where rounding does not allow what is asked, for variances
        above about 1e6, the iteration ends where rounding begins.
    max_iterations : int
        Limit on the steps of Newton's method.

    Examples
    --------
    >>> solution = gpep.Laplace().solve(K, mean, y)  # (n, n), (3, n), (n,)
    >>> solution.log_evidence
    """

    tolerance: float = field(default=1e-9, metadata=positive())
    max_iterations: int = field(default=200, metadata=at_least(1))

    name: ClassVar[str] = "laplace"
    needs: ClassVar[tuple[type, ...]] = (CoupledCurvature,)
    algebra: ClassVar[Algebra] = Algebra.FUNCTIONS
    schemes: ClassVar[tuple[str, ...]] = ("Newton's method",)
    corrections: ClassVar[Mapping[str, Correction]] = {
        "tk": Correction(
            "the Laplace approximation of a softmax, pm.Categorical(logit_p=...)", tierney_kadane_probabilities
        ),
    }

    @property
    def site_form(self) -> SiteForm:
        return SiteForm.COUPLED

    def solver(self, problem: Problem, start: Array, history: History, *, likelihood: Likelihood) -> Found:
        curvature = likelihood.computation(CoupledCurvature)
        return laplace_coupled(problem, start, history, **curvature._asdict(), **self.settings)

    def start_size(self, n_functions: int, n_points: int) -> int:
        """Length of the vector that a solve starts from."""
        return n_functions * n_points
