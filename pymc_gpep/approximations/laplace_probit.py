"""The Laplace approximation where the curvature has no structure, as that of a multinomial probit."""

from dataclasses import dataclass, field
from typing import ClassVar

from pymc_gpep.approximations.approximator import Approximator
from pymc_gpep.approximations.limits import at_least, positive
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import BlockCurvature
from pymc_gpep.solvers.laplace_block import laplace_block
from pymc_gpep.solvers.prior_form import Algebra
from pymc_gpep.solvers.problem import Found, History, Problem

__all__ = ["LaplaceProbit"]


@dataclass(frozen=True)
class LaplaceProbit(Approximator):
    """Gaussian at the posterior mode, with the curvature of the log posterior there.

    The curvature of a multinomial probit has no structure that would save work, so that time grows with (cn)³ where
    prior covariances are matrices.

    Parameters
    ----------
    tolerance : float
        For the gradient of the log posterior with respect to the latent values, and for Newton's step in these, in
        absolute terms. Where rounding does not allow what is asked, for variances above about 1e6, the iteration ends
        where rounding begins.
    max_iterations : int
        Limit on the steps of Newton's method.
    max_size : int
        Largest number cn of latent values to accept where prior covariances are matrices; rows may be many more.

    Examples
    --------
    >>> solution = gpep.LaplaceProbit().solve(K, mean, y)  # (n, n), (3, n), (n,)
    >>> solution.log_evidence
    """

    tolerance: float = field(default=1e-9, metadata=positive())
    max_iterations: int = field(default=200, metadata=at_least(1))
    max_size: int = field(default=3000, metadata=at_least(1))

    name: ClassVar[str] = "laplace"
    needs: ClassVar[tuple[type, ...]] = (BlockCurvature,)
    algebra: ClassVar[Algebra] = Algebra.FUNCTIONS
    schemes: ClassVar[tuple[str, ...]] = ("Newton's method",)

    @property
    def site_form(self) -> SiteForm:
        return SiteForm.BLOCK

    def solver(self, problem: Problem, start: Array, history: History, *, likelihood: Likelihood) -> Found:
        curvature = likelihood.computation(BlockCurvature)
        return laplace_block(problem, start, history, **curvature._asdict(), **self.settings)

    def start_size(self, n_functions: int, n_points: int) -> int:
        """Length of the vector that a solve starts from."""
        return n_functions * n_points

    def too_large(self, n_functions: int, n_points: int) -> str:
        """See `Approximator`."""
        size = n_functions * n_points
        if size > self.max_size:
            return (
                f"A dense Laplace approximation of {n_functions} latent functions at {n_points} points is slow: they "
                f"are {size} latent values. Use nested_ep, which is made for so many, or allow it with max_size={size} "
                f"(now {self.max_size})."
            )
        return ""
