"""The Laplace approximation for the softmax (Williams and Barber 1998; Rasmussen and Williams 2006, section 3.5)."""

from dataclasses import dataclass
from typing import ClassVar

from pymc_gpep.approximations.contract import Approximator
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.solvers.history import History
from pymc_gpep.solvers.laplace_softmax import laplace_softmax
from pymc_gpep.solvers.problem import Array, Found, Problem

__all__ = ["Laplace"]


@dataclass(frozen=True)
class Laplace(Approximator):
    """Gaussian at the posterior mode, with the curvature of the log posterior there.

    Parameters
    ----------
    tolerance : float
        For the gradient of the log posterior with respect to the latent values, and for Newton's step in these, in
        absolute terms: a softmax has a scale of one. Where rounding does not allow what is asked, for variances above
        about 1e6, the iteration ends where rounding begins.
    max_iterations : int
        Limit on the steps of Newton's method.
    """

    tolerance: float = 1e-9
    max_iterations: int = 200

    name: ClassVar[str] = "laplace"
    likelihood: ClassVar[str] = "softmax"
    schemes: ClassVar[tuple[str, ...]] = ("Newton's method",)
    site_form: ClassVar[SiteForm] = SiteForm.COUPLED

    def solver(self, problem: Problem, start: Array, history: History) -> Found:
        return laplace_softmax(problem, start, history, **self.settings)

    def start_size(self, c: int, n: int) -> int:
        """Length of the vector that a solve starts from."""
        return c * n
