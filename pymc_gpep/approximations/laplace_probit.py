"""The Laplace approximation for the multinomial probit, without any approximation of the curvature."""

from dataclasses import dataclass
from typing import Any, ClassVar

from pymc_gpep.approximations.contract import Approximator
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.solvers.history import History
from pymc_gpep.solvers.laplace_probit import laplace_probit
from pymc_gpep.solvers.problem import Array, Found, Problem

__all__ = ["LaplaceProbit"]


@dataclass(frozen=True)
class LaplaceProbit(Approximator):
    """Gaussian at the posterior mode, with the curvature of the log posterior there.

    The curvature of a multinomial probit has no structure that would save work, so that time grows with (cn)³.

    Parameters
    ----------
    tolerance : float
        For the gradient of the log posterior with respect to the latent values, and for Newton's step in these, in
        absolute terms. Where rounding does not allow what is asked, for variances above about 1e6, the iteration ends
        where rounding begins.
    max_iterations : int
        Limit on the steps of Newton's method.
    max_size : int
        Largest number cn of latent values to accept.
    """

    tolerance: float = 1e-9
    max_iterations: int = 200
    max_size: int = 3000

    name: ClassVar[str] = "laplace"
    likelihood: ClassVar[str] = "multinomial_probit"
    schemes: ClassVar[tuple[str, ...]] = ("Newton's method",)
    site_form: ClassVar[SiteForm] = SiteForm.BLOCK

    def solver(self, problem: Problem, start: Array, history: History) -> Found:
        return laplace_probit(problem, start, history, **self.settings)

    def start_size(self, c: Any, n: Any) -> Any:
        """Length of the vector that a solve starts from.

        Raises
        ------
        ValueError
            If there are more than `max_size` latent values.
        """
        if isinstance(c, int) and c * n > self.max_size:  # in a graph they are symbols
            raise ValueError(
                f"{c} classes at {n} points are {c * n} latent values, and a dense Laplace approximation of so many is "
                f"slow: use nested_ep, which is made for this, or allow it with max_size={c * n} (now {self.max_size})."
            )
        return c * n
