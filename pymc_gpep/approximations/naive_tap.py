"""Naive TAP: mean field theory with the prior's variances for those of the cavities."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from pymc_gpep.approximations.approximator import Approximator
from pymc_gpep.approximations.limits import at_least, positive
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import GaussianAverage
from pymc_gpep.solvers.fixed_cavity import fixed_cavity
from pymc_gpep.solvers.prior_form import Algebra
from pymc_gpep.solvers.problem import Found, History, Problem

__all__ = ["NaiveTAP"]


@dataclass(frozen=True)
class NaiveTAP(Approximator):
    """Sites that match tilted moments under cavities that are as wide as the prior.

    The method is EP with every cavity's variance replaced by the prior variance K_ii, an upper limit of it. This is the
    naive mean field theory of Opper and Winther (2000), in section 4.3 of Nickisch and Rasmussen (2008). It is exact
    for points that are independent under the prior. These papers give no evidence; here it is EP's expression with
    these cavities.

    Parameters
    ----------
    tolerance : float
        For the slope of what the means maximise, and for Newton's step in these, in absolute terms. Where rounding does
        not allow what is asked, the iteration ends where rounding begins.
    max_iterations : int
        Limit on the steps of Newton's method.

    Examples
    --------
    >>> solution = gpep.NaiveTAP().solve(K, mean[0], y == 2)  # (n, n), (n,), (n,)
    >>> solution.log_evidence
    """

    tolerance: float = field(default=1e-9, metadata=positive())
    max_iterations: int = field(default=200, metadata=at_least(1))

    name: ClassVar[str] = "tap_naive"
    needs: ClassVar[tuple[type, ...]] = (GaussianAverage,)
    algebra: ClassVar[Algebra] = Algebra.VARIANCES
    schemes: ClassVar[tuple[str, ...]] = ("Newton's method",)

    @classmethod
    def approximates(cls, likelihood: Likelihood) -> bool:
        """Whether sites have bounded precisions: others exceed what the prior variances in place of cavities allow."""
        return super().approximates(likelihood) and bool(np.isfinite(likelihood.largest_precision))

    @property
    def site_form(self) -> SiteForm:
        return SiteForm.INDEPENDENT

    def solver(self, problem: Problem, start: Array, history: History, *, likelihood: Likelihood) -> Found:
        average = likelihood.computation(GaussianAverage).terms
        return fixed_cavity(problem, start, history, average=average, wide=True, **self.settings)

    def start_size(self, n_functions: int, n_points: int) -> int:
        """Length of the vector that a solve starts from: weights."""
        return n_points
